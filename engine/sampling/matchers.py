"""Constrain only an answer's tool calls to a grammar, and limit the tokens of its reasoning.

Both have the interface of a whole answer's matcher, for drafts and masks.

Text outside of tool calls is free. While it is written, steps are dispatched ahead: if the token in flight
turns out to begin a call, the next is chosen among those that may follow. When the reasoning's budget is
spent, its end marker is forced.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import mlx.core as mx
import numpy as np

from reprise.engine.interface.request import Grammar, ThinkingBudget, Trigger
from reprise.engine.sampling.grammar import Grammars, Mask, Matcher
from reprise.engine.text.markers import ends_with
from reprise.engine.text.tokenizer import Tokenizer

MAX_PROMPT_TOKENS = 16
"""How many of the prompt's last tokens may have begun a call."""


class TriggeredMatcher(Matcher):
    """The position of one answer outside or inside a call.

    tokens: single tokens that begin a call; see Trigger.
    trigger: what begins a call. start: makes a matcher positioned before it. piece: returns a token's bytes.
    prompt: the tokens before the answer, which may already have begun a call.
    """

    def __init__(
        self,
        trigger: Trigger,
        start: Callable[[], Matcher],
        piece: Callable[[int], bytes],
        prompt: Sequence[int] = (),
    ) -> None:
        self.tokens, self._text = frozenset(trigger.tokens), trigger.text.encode()
        self._start, self._piece = start, piece
        self._next = start()
        self._call: Matcher | None = None
        # The answer's last tokens, if they may begin the trigger's text.
        self._begun: list[int] = []
        self._first_masks: dict[int, mx.array] | None = None
        tail = list(prompt[-MAX_PROMPT_TOKENS:])
        begins = [at for at, token in enumerate(tail) if token in self.tokens]
        if begins and self._is_call(tail[begins[-1] :]):
            self.commit(tail[begins[-1] :])

    @property
    def may_run_ahead(self) -> bool:
        """See Matcher."""
        return self._call is None and not self._begun

    @property
    def is_complete(self) -> bool:
        """See Matcher."""
        return self._call is None or self._call.is_complete

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end of the answer may follow: never, since a call may."""
        return False

    def commit(self, tokens: Sequence[int]) -> None:
        """See Matcher."""
        left = list(tokens)
        while left:
            if self._call is None:
                num_free, begun, is_call = self._find_call(left)
                left = left[num_free:]
                self._begun = [] if is_call else begun
                if not is_call:
                    return
                self._call, self._next = self._next, self._start()
                left = begun + left
            # At least one, so that what the grammar does not allow is an error.
            num = max(1, self._call.count_valid(left))
            self._call.commit(left[:num])
            left = left[num:]
            if self._call.is_over:
                self._call = None

    def forced_tokens(self) -> list[int]:
        """See Matcher."""
        return [] if self._call is None else self._call.forced_tokens()

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """Count the leading tokens that may follow, at most up to the end of the next call."""
        if self._call is not None:
            return self._call.count_allowed(tokens)
        num_free, begun, is_call = self._find_call(tokens)
        if not is_call:
            return num_free
        num_allowed = self._next.count_allowed([*begun, *tokens[num_free:]])
        return num_free + max(0, num_allowed - len(begun))

    def masks(self, drafted: Sequence[int] = ()) -> list[Mask | None]:
        """Return the masks as Matcher.masks() does; None where any token may come."""
        if self._call is not None:
            return _without_ends(self._call, self._call.masks(drafted))
        num_free, begun, is_call = self._find_call(drafted)
        if not is_call:
            return [None] * (len(drafted) + 1)
        masks = self._next.masks([*begun, *drafted[num_free:]])
        return [*[None] * num_free, *_without_ends(self._next, masks[len(begun) :])]

    def mask_behind(self, token: mx.array) -> mx.array:
        """Return which tokens may follow a token that is only known on the device: (vocabulary,) bool.

        That token follows the answer outside a call. Call it only if single tokens can begin a call.
        """
        if self._first_masks is None:
            self._first_masks = {one: self._first_mask(one) for one in sorted(self.tokens)}
        allowed = [mx.logical_or(token != begin, mask) for begin, mask in self._first_masks.items()]
        return reduce(mx.logical_and, allowed)

    def _first_mask(self, begin: int) -> mx.array:
        """Return which tokens may follow a token that begins a call: (vocabulary,) bool."""
        call = self._start()
        is_call = self._is_call([begin])
        call.commit([begin] if is_call else [])
        (mask,) = call.masks()
        assert mask is not None
        return mx.array(mask) if is_call else mx.ones(len(mask), mx.bool_)

    def _is_call(self, tokens: list[int]) -> bool:
        return self._next.count_valid(tokens) == len(tokens)

    def _find_call(self, tokens: Sequence[int]) -> tuple[int, list[int], bool]:
        """Find where tokens after the answer, outside a call, begin a call.

        Returns the number of tokens up to the end of the trigger, or of all without one; the tail of the
        answer and these tokens that holds the trigger, or may begin its text; and whether a call begins.
        """
        begun = self._begun
        for at, token in enumerate(tokens):
            begun = self._of_trigger([*begun, token]) if self._text else [token]
            is_trigger = self._text in self._joined(begun) if self._text else token in self.tokens
            if is_trigger and self._is_call(begun):
                return at + 1, begun, True
            if is_trigger or not self._text:
                begun = []
        return len(tokens), begun, False

    def _of_trigger(self, tokens: list[int]) -> list[int]:
        """Return the shortest tail of tokens that holds the trigger's text or may begin it; perhaps none."""
        text, sought = self._joined(tokens), self._text
        longest = min(len(sought) - 1, len(text))
        start = text.find(sought)
        if start < 0:
            num = next((n for n in range(longest, 0, -1) if text.endswith(sought[:n])), 0)
            start = len(text) - num
        for at in range(len(tokens)):
            if len(self._joined(tokens[: at + 1])) > start:
                return tokens[at:]
        return []

    def _joined(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self._piece, tokens))


def _without_ends(matcher: Matcher, masks: Sequence[Mask | None]) -> list[Mask | None]:
    """Return the masks, with None for those that allow nothing but the end of the answer."""
    return [None if matcher.allows_only_end(mask) else mask for mask in masks]


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


class BudgetedMatcher(Matcher):
    """The position of an answer in its reasoning and its grammar. Falsy once neither constrains it.

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
        """See Matcher."""
        for token in tokens:
            self._position = self._after(self._position, token)
        if self.inner is not None:
            self.inner.commit(tokens)

    @property
    def may_run_ahead(self) -> bool:
        """See Matcher."""
        return self._position.is_over and self.inner is not None and self.inner.may_run_ahead

    @property
    def is_complete(self) -> bool:
        """See Matcher."""
        return self.inner is None or self.inner.is_complete

    def forced_tokens(self) -> list[int]:
        """See Matcher."""
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
        """See Matcher."""
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


def make_matcher(
    grammars: Grammars, grammar: Grammar, tokenizer: Tokenizer, prompt: Sequence[int] = ()
) -> Matcher:
    """Make a matcher for an empty answer, with its thinking budget if there is one.

    With a trigger, the grammar constrains only calls, including one that the prompt has begun.

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
    """Return the part of a matcher that constrains only calls; None if it has none."""
    if isinstance(matcher, BudgetedMatcher):
        matcher = matcher.inner
    return matcher if isinstance(matcher, TriggeredMatcher) else None
