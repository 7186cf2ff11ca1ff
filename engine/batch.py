"""The sequences that decode together, and what the device holds of them: rows, tokens on their way."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.kv_cache.rows import Rows, make_rows
from engine.sampling.logprobs import Likelihoods, measure
from engine.sampling.sampler import Sampler
from engine.sequence import Sequence
from engine.speculative.draft_model.model import DraftModel


@dataclass
class Step:
    """A dispatched decode step: who took part, in row order, and their (rows,) tokens, not yet read.

    measured: how likely the tokens are, if anybody wants to know.
    """

    members: list[Sequence]
    tokens: mx.array
    measured: Likelihoods | None


class Batch:
    """Sequences in the order of their rows, which stand side by side in the model and the draft model.

    rows: of the model. parts: rows of both.
    feed: (rows,) the newest token of each, which the next step feeds; it may not be computed yet.
    unread: the step whose tokens nobody has waited for yet, if there is one.
    """

    def __init__(self, model: Any, vocab_size: int, batched: bool, draft_model: DraftModel | None) -> None:
        self._model = model
        self._vocab_size = vocab_size
        self._batched = batched
        self.draft_model = draft_model
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.members: list[Sequence] = []
        self.rows = make_rows(self._model, self._batched)
        if self.draft_model:
            self.draft_model.clear()
        self.next_tokens = mx.array([], mx.int32)
        self.in_flight: Step | None = None
        self._sampler: Sampler | None = None

    @property
    def parts(self) -> list[Rows]:
        """The rows of both models, as far as they are there."""
        return [self.rows, *([self.draft_model.rows] if self.draft_model else [])]

    @property
    def sampler(self) -> Sampler:
        """Draws for the rows as they are now."""
        if self._sampler is None:
            settings = [(s.request.sampling, s.penalties) for s in self.members]
            self._sampler = Sampler(settings, self._vocab_size)
        return self._sampler

    def join(self, sequence: Sequence) -> None:
        """A prefilled sequence becomes the last row; its last token is fed by the next step.

        If this raises it may have got into some of the caches: none of the rows can be trusted then.
        """
        self.rows.add(sequence.caches, sequence.num_computed)
        if self.draft_model:
            self._join_draft_model(self.draft_model, sequence)
        last = mx.array(sequence.tokens[-1:], self.next_tokens.dtype)
        self.next_tokens = mx.concatenate([self.next_tokens, last]) if self.members else last
        sequence.caches, sequence.draft_reader = [], None
        self.members.append(sequence)
        self._sampler = None

    def _join_draft_model(self, model: DraftModel, sequence: Sequence) -> None:
        """Rows stand side by side in both models: one that the draft model has not read has empty caches."""
        if sequence.draft_reader is None and sequence.drafts:
            sequence.drafts.uses_model = False
        if sequence.drafts:
            sequence.drafts.length.begin()
        if sequence.drafts and sequence.draft_reader:
            strategy = model.translation.strategy
            sequence.drafts.counts.track_translation(sequence.draft_reader.translator, strategy)
        model.add(sequence.draft_reader)

    def free(self, leaving: list[int]) -> None:
        """Give up rows, told in ascending order. Who goes on later must not have a token unread."""
        order = list(range(len(self.members)))
        for row in reversed(leaving):
            self.rows.remove(row)
            if self.draft_model:
                self.draft_model.remove(row)
            self.members[row], order[row] = self.members[-1], order[-1]
            self.members.pop()
            order.pop()
        # Not a lazy nothing: that would keep what it was taken from.
        self.next_tokens = self.next_tokens[mx.array(order, mx.int32)] if order else mx.array([], mx.int32)
        self._sampler = None

    def dispatch(self) -> None:
        """Dispatch one token for every row; nothing is read."""
        if not self.members:
            return
        for row, sequence in enumerate(self.members):
            if sequence.num_dispatched == sequence.num_answered:
                sequence.count_for_penalties()
            elif sequence.penalties:
                # Its newest token is on the device alone.
                sequence.penalties.observe(self.next_tokens[row : row + 1])
        logits = self.rows.forward(self.next_tokens[:, None])[:, -1]
        tokens = self.sampler.sample(logits, [s.next_position for s in self.members])
        measured = measure(logits, tokens, [s.request.top_logprobs for s in self.members])
        mx.async_eval(tokens, *(measured.arrays if measured else ()))
        for sequence in self.members:
            sequence.num_dispatched += 1
        self.next_tokens = tokens
        self.in_flight = Step(list(self.members), tokens, measured)

    def take_in_flight(self) -> Step | None:
        """The step whose tokens are to be waited for; from now on that is the caller's."""
        step, self.in_flight = self.in_flight, None
        return step
