"""Hold an answer's reasoning to a number of tokens: at the budget, the marker that ends it is forced.

A matcher like that of a grammar, so that drafts and masks need nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from reprise.engine.interface.request import Grammar, ThinkingBudget
from reprise.engine.sampling.grammar import Grammars, Mask, Matcher
from reprise.engine.sampling.triggered_grammar import TriggeredMatcher
from reprise.engine.text.markers import ends_with
from reprise.engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Position:
    """The position of an answer in its reasoning.

    latest: its last tokens, as many as the longest marker has. num_spent: tokens of the reasoning so far.
    num_forced: tokens of the end marker that were forced so far.
    """

    is_open: bool
    is_over: bool = False
    latest: tuple[int, ...] = ()
    num_spent: int = 0
    num_forced: int = 0


def make_matcher(
    grammars: Grammars, grammar: Grammar, tokenizer: Tokenizer, prompt: Sequence[int] = ()
) -> Matcher:
    """Make a matcher for an empty answer, which holds its reasoning to the budget if there is one.

    With a trigger only the calls that it begins are held to the grammar, one that the prompt has begun too.

    Raises GrammarError if the grammar cannot be used.
    """
    inner: Matcher | None = None
    if grammar.trigger is not None:
        inner = TriggeredMatcher(grammar.trigger, lambda: grammars.matcher(grammar), tokenizer.piece, prompt)
    elif grammar.kind != "any":
        inner = grammars.matcher(grammar)
    if grammar.thinking is not None:
        return BudgetedMatcher(grammar.thinking, inner, tokenizer.vocab_size)
    assert inner is not None
    return inner


def triggered_matcher(matcher: Matcher | None) -> TriggeredMatcher | None:
    """Return the part of a matcher that holds only calls to a grammar; None if it has none."""
    if isinstance(matcher, BudgetedMatcher):
        matcher = matcher.inner
    return matcher if isinstance(matcher, TriggeredMatcher) else None


class BudgetedMatcher(Matcher):
    """The position of an answer in its reasoning and in its grammar; false once neither constrains it.

    inner: the grammar's matcher; None without a grammar.
    """

    def __init__(self, budget: ThinkingBudget, inner: Matcher | None, vocab_size: int) -> None:
        self._thinking = budget
        self.inner = inner
        self._vocab_size = vocab_size
        self._longest = max(len(budget.start), len(budget.end), 1)
        self._position = _Position(budget.is_open)

    def __bool__(self) -> bool:
        return self.inner is not None or not self._position.is_over

    def commit(self, tokens: Sequence[int]) -> None:
        """Advance by tokens of the answer. Raises as Matcher.commit()."""
        for token in tokens:
            self._position = self._after(self._position, token)
        if self.inner is not None:
            self.inner.commit(tokens)

    @property
    def may_run_ahead(self) -> bool:
        """Whether the next step may be dispatched before the token of this one is known."""
        return self._position.is_over and self.inner is not None and self.inner.may_run_ahead

    @property
    def is_complete(self) -> bool:
        """Whether the grammar lets the answer end here."""
        return self.inner is None or self.inner.is_complete

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next; often there are none."""
        position = self._position
        if self._forced(position) is not None:
            return list(self._thinking.end[position.num_forced :])
        return [] if self.inner is None else self.inner.forced_tokens()

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """Count the leading tokens that budget and grammar allow."""
        position, count = self._position, 0
        for token in tokens:
            if self._forced(position) not in (None, token):
                break
            position = self._after(position, token)
            count += 1
        return count if self.inner is None else self.inner.count_allowed(list(tokens)[:count])

    def masks(self, drafted: Sequence[int] = ()) -> list[Mask | None]:
        """Return the mask of the next token and of the token after each drafted one. See Matcher.masks()."""
        free: list[Mask | None] = [None] * (len(drafted) + 1)
        masks = free if self.inner is None else self.inner.masks(drafted)
        position = self._position
        for index, mask in enumerate(masks):
            forced = self._forced(position)
            if forced is not None:
                only = np.zeros(self._vocab_size, np.bool_)
                only[forced] = True
                # Where a grammar does not allow the marker, the reasoning goes on until it does.
                masks[index] = only if mask is None or mask[forced] else mask
            if index < len(drafted):
                position = self._after(position, drafted[index])
        return masks

    def _forced(self, position: _Position) -> int | None:
        """Return the token that must come next; None if the budget leaves a choice."""
        budget = self._thinking
        if position.is_over or not position.is_open:
            return None
        if position.num_forced or position.num_spent + len(budget.end) >= budget.num_tokens:
            return budget.end[position.num_forced]
        return None

    def _after(self, position: _Position, token: int) -> _Position:
        if position.is_over:
            return position
        is_forced = self._forced(position) == token
        latest = (*position.latest, token)[-self._longest :]
        if not position.is_open:
            start = self._thinking.start
            return replace(position, latest=latest, is_open=bool(start) and ends_with(latest, start))
        has_ended = ends_with(latest, self._thinking.end)
        return replace(
            position,
            latest=latest,
            is_open=not has_ended,
            is_over=has_ended and not self._thinking.is_repeated,
            num_spent=position.num_spent + 1,
            num_forced=position.num_forced + 1 if is_forced and not has_ended else 0,
        )
