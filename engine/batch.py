"""The sequences that decode together, and what the device holds for them: rows and the step in flight."""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.kv_cache.rows import BatchedRows, Rows, Sharing, make_rows
from engine.sampling.logprobs import Likelihoods, measure
from engine.sampling.sampler import Sampler
from engine.sequence import Prefill, Sequence
from engine.speculative.draft_model.reader import Reader
from engine.speculative.heads.drafter import HeadDrafter, RowDrafter
from engine.speculative.heads.taps import Recorded
from engine.stations import station


@dataclass
class Step:
    """A plain decode step that was dispatched and whose tokens have not been read yet.

    members: the sequences that take part, in the order of their rows.
    tokens: (rows,) sampled token ids, on the device.
    measured: log probabilities of the tokens, if any request wants them.
    is_steady: whether the device was busy when it was dispatched: with another step of the same sequences, or
        with something that is not part of its time.
    follows_drafts: whether it was dispatched after drafts were verified, or a text read by the draft model.
    is_computed: whether it was waited for. taken_s: the seconds that it then had taken, None if not known.
    """

    members: list[Sequence]
    tokens: mx.array
    measured: Likelihoods | None
    is_steady: bool
    follows_drafts: bool = False
    is_computed: bool = False
    taken_s: float | None = None


class Batch:
    """The decoding sequences in the order of their rows, which is the same in both models.

    rows: the target model's rows. draft_model: it, or a head of the target; its rows stand in the same order.
    in_flight: the dispatched step whose tokens have not been read yet, if there is one.
    """

    def __init__(self, model: Any, vocab_size: int, sharing: Sharing, draft_model: RowDrafter | None) -> None:
        self._model = model
        self.vocab_size = vocab_size
        self._sharing = sharing
        self.draft_model = draft_model
        self.clear()

    def clear(self) -> None:
        """Drop all rows."""
        self.rows = make_rows(self._model, self._sharing)
        if self.draft_model:
            self.draft_model.clear()
        self.in_flight: Step | None = None
        self._sampler: Sampler | None = None
        # Last: if this raises, the members must still be found, for their terminal events.
        self.members: list[Sequence] = []

    @property
    def rows_by_model(self) -> list[Rows]:
        """The rows of the target model and, if there is one, of the draft model."""
        return [self.rows, *([self.draft_model.rows] if self.draft_model else [])]

    @property
    def sampler(self) -> Sampler:
        """The sampler for the present rows; made again after a row joined or left."""
        if self._sampler is None:
            rows = [s.make_row_sampling(self.vocab_size) for s in self.members]
            self._sampler = Sampler(rows, self.vocab_size)
        return self._sampler

    def join(self, sequence: Sequence, reader: Reader | None = None) -> None:
        """Make a prefilled sequence the last row. Its last token is fed by the next step.

        reader: will read the sequence's text for the draft model; None if it drafts nothing for it.
        If this raises, some caches may hold the sequence and others not: none of the rows can be used then.
        """
        prefill = sequence.prefill
        self.rows.add(prefill.caches, prefill.num_computed)
        if self.draft_model:
            # The same drafter has made it.
            self.draft_model.add(reader)  # type: ignore[arg-type]
        # The rows own the caches from now on.
        sequence.prefill = Prefill()
        self.members.append(sequence)
        self._sampler = None

    def free(self, leaving: list[int]) -> None:
        """Remove rows, given in ascending order; the last row takes the place of each.

        A sequence that will decode again later must not have a token in flight.
        """
        for row in reversed(leaving):
            self.rows.remove(row)
            if self.draft_model:
                self.draft_model.remove(row)
            self.members[row] = self.members[-1]
            self.members.pop()
        self._sampler = None

    def start_copies(self) -> None:
        """Start copying what rows that joined or left have moved, as no step does so soon."""
        for rows in self.rows_by_model:
            if isinstance(rows, BatchedRows):
                rows.start_copies()

    @station("dispatch")
    def dispatch(self, before: Callable[[], bool]) -> Step | None:
        """Dispatch one token for every row without waiting for it; returns the step that was in flight.

        before: called when all is ready to be dispatched; waits for work other than steps, and returns
            whether there was any.
        If this raises, that step is still in flight.
        """
        previous = self.in_flight
        if not self.members:
            self.in_flight = None
            return previous
        ahead = {s: row for row, s in enumerate(previous.members)} if previous else {}
        newest = self._newest_tokens(ahead)
        for row, penalties in enumerate(self.sampler.penalties):
            if penalties is None:
                continue
            if (sequence := self.members[row]) in ahead:
                # Its newest token is on the device only.
                penalties.observe(newest[row : row + 1])
            else:
                sequence.count_for_penalties()
        with self.recording() as recorded:
            logits = self.rows.forward(newest[:, None])[:, -1]
        states = self.hand_over(recorded, [1] * len(self.members))
        tokens = self.sampler.sample(logits, [len(s.tokens) + (s in ahead) for s in self.members])
        measured = measure(logits, tokens, [s.request.top_logprobs for s in self.members])
        has_waited = before()
        mx.async_eval(tokens, *states, *(measured.arrays if measured else ()))
        is_steady = has_waited or (previous is not None and previous.members == self.members)
        self.in_flight = Step(list(self.members), tokens, measured, is_steady)
        return previous

    def recording(self) -> AbstractContextManager[Recorded | None]:
        """Record the target's states in a forward pass over all rows, if a head reads those of any."""
        return self.draft_model.record() if isinstance(self.draft_model, HeadDrafter) else nullcontext()

    def hand_over(self, recorded: Recorded | None, num_final: SequenceOf[int]) -> list[mx.array]:
        """Hand the states of a forward pass over to the head; return them, not yet evaluated.

        num_final: (rows,) how many of the tokens fed stay in each row's caches.
        """
        if recorded is None or not isinstance(self.draft_model, HeadDrafter):
            return []
        return self.draft_model.receive(recorded, num_final)

    def _newest_tokens(self, ahead: dict[Sequence, int]) -> mx.array:
        """(rows,) the last token of every row.

        ahead: the rows of the step in flight, by sequence; their newest tokens are on the device only.
        """
        if self.in_flight is None:
            return mx.array([s.tokens[-1] for s in self.members])
        if self.in_flight.members == self.members:
            return self.in_flight.tokens
        sampled = self.in_flight.tokens
        known = mx.array([s.tokens[-1] for s in self.members], sampled.dtype)
        places = [ahead.get(s, len(ahead) + row) for row, s in enumerate(self.members)]
        return mx.concatenate([sampled, known])[mx.array(places)]

    def take_in_flight(self) -> Step | None:
        """Return the step in flight, if there is one; the caller has to read it."""
        step, self.in_flight = self.in_flight, None
        return step
