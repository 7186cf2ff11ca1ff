"""The sequences that decode together, and what the device holds for them."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median
from time import perf_counter
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from reprise.engine.batch.sequence import Prefill, Sequence, StepError
from reprise.engine.interface.spans import span
from reprise.engine.interface.status import GAP_BOUNDS_S, EngineCounts
from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.rows import Rows, Sharing, make_rows
from reprise.engine.sampling.logits import Likelihood, Likelihoods
from reprise.engine.sampling.sampler import Sampler
from reprise.engine.speculative.draft_model.draft_prefill import TextPrefill
from reprise.engine.speculative.heads.head import TappedStates
from reprise.engine.speculative.heads.head_drafter import HeadDrafter, RowDrafter


class EngineStats:
    """Counts since the engine started.

    num_failed_steps: steps that raised.
    num_preemptions: sequences that were put back into the queue to free memory.
    The others: see EngineCounts.
    """

    def __init__(self) -> None:
        self.num_failed_steps = 0
        self.num_preemptions = 0
        self.num_read_ahead = self.num_read_ahead_used = self.num_read_ahead_wasted = 0
        self.read_ahead_s, self.num_to_read = 0.0, 0
        self._gaps = [0] * (len(GAP_BOUNDS_S) + 1)
        self._gap_sum_s = 0.0

    def add_tokens(self, num_tokens: int, last_at: float) -> float:
        """Count the gaps between a sequence's tokens in the histogram of times between tokens.

        num_tokens: tokens committed by the step, >= 1.
        last_at: when the sequence's previous token was committed, by perf_counter(); 0 if it had none.
        Returns perf_counter(), to be the next last_at.
        """
        now = perf_counter()
        if last_at:
            self._gaps[bisect_left(GAP_BOUNDS_S, now - last_at)] += 1
            self._gap_sum_s += now - last_at
        # Tokens of one step are committed together, with gaps of 0.
        self._gaps[0] += num_tokens - 1
        return now

    def counts(self) -> EngineCounts:
        """Return all counts."""
        return EngineCounts(
            num_failed_steps=self.num_failed_steps,
            num_preemptions=self.num_preemptions,
            gaps_up_to=tuple(accumulate(self._gaps)),
            gap_sum_s=self._gap_sum_s,
            num_read_ahead=self.num_read_ahead,
            num_read_ahead_used=self.num_read_ahead_used,
            num_read_ahead_wasted=self.num_read_ahead_wasted,
            read_ahead_s=self.read_ahead_s,
            num_to_read=self.num_to_read,
        )


NUM_PLAIN = 5
"""Number of plain steps for the median time."""

MIN_WAIT_S = 0.0001
"""Minimum seconds that count as waiting for the device."""

Done = Callable[[float | None], None]
"""Called with the seconds that the device took, None if they are not known. May wait for the device."""

Fail = Callable[[Exception], None]
"""Called with the exception of a chunk that failed."""


@dataclass
class Step:
    """A plain decode step that was dispatched and whose tokens have not been fetched yet.

    members: the sequences that take part, in the order of their rows.
    tokens: (rows,) sampled token ids, on the device.
    measured: log probabilities of the tokens, if any request wants them.
    follows_drafts: whether it was dispatched after drafts were verified, or after draft prefill.
    is_steady: whether the device was busy when the step was dispatched: with another step of the same
        sequences, or with work that is not part of the step's time.
    is_computed: whether it was waited for before it was fetched.
    taken_s: the seconds that the step took, once it was waited for; None if they are not known.
    was_awaited: whether the engine's thread had to wait for the device; known once it was fetched.
    """

    members: list[Sequence]
    tokens: mx.array
    measured: Likelihoods | None
    follows_drafts: bool = False
    is_steady: bool = False
    is_computed: bool = False
    taken_s: float | None = None
    was_awaited: bool = False


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A dispatched chunk of a prompt. is_computed: evaluating this array waits for the whole chunk."""

    is_computed: mx.array
    dispatched_at: float
    done: Done
    fail: Fail
    is_measured: bool = True


class Device:
    """Dispatches work, waits for it, and measures the time from one completion to the next.

    step: the plain step in flight, if there is one.
    settled_s: seconds spent in waiting for chunks since the start.
    """

    def __init__(self) -> None:
        self.step: Step | None = None
        self.settled_s = 0.0
        self._lap_at: float | None = None
        self._num_skipped = 0
        self._chunk: _Chunk | None = None
        self._plain_s: deque[float] = deque(maxlen=NUM_PLAIN)

    @property
    def plain_s(self) -> float:
        """The median seconds of the last few plain steps; 0 before any is known.

        Limits on how long other work may keep rows waiting count in plain steps, so they grow with the model.
        """
        return median(self._plain_s) if self._plain_s else 0.0

    def note_plain(self, seconds: float) -> None:
        """Add the seconds of one plain step to the median plain_s."""
        self._plain_s.append(seconds)

    def dispatch_step(self, step: Step, states: SequenceOf[mx.array]) -> None:
        """Start computing a plain step and its states for a head, once the chunk in flight is computed.

        If this raises, the step that was in flight before stays in flight.
        """
        has_waited = self.settle()
        mx.async_eval(step.tokens, *states, *(step.measured.arrays if step.measured else ()))
        step.is_steady = has_waited or (self.step is not None and self.step.members == step.members)
        self.step = step

    def dispatch(self, arrays: SequenceOf[object], done: Done, fail: Fail) -> None:
        """Start computing a chunk's arrays, or trees of arrays, once all that is in flight is computed.

        done, fail: settle() calls one of the two for this chunk.
        Raises StepError if the step in flight fails.
        """
        self.wait_for_step()
        self.settle()
        dispatched_at = perf_counter()
        leaves = [leaf for _, leaf in cast(list[tuple[str, object]], tree_flatten(arrays))]
        # Not the arrays themselves: a reference would make the next step copy the buffer that it writes to.
        is_computed = mx.depends([mx.zeros(1)], [leaf for leaf in leaves if isinstance(leaf, mx.array)])[0]
        mx.async_eval(arrays, is_computed)
        self._chunk = _Chunk(is_computed, dispatched_at, done, fail)

    @span("waiting")
    def compute(self, arrays: SequenceOf[mx.array]) -> None:
        """Wait for the chunk in flight, then compute these arrays and wait for them too."""
        # Only now, when everything is ready to dispatch, so that the times can be told apart.
        self.settle()
        mx.eval(*arrays)

    def settle(self) -> bool:
        """Wait for the chunk in flight; return whether there was one. Raises what its fail() raises."""
        chunk, self._chunk = self._chunk, None
        if chunk is None:
            return False
        start = perf_counter()
        with span("waiting"):
            try:
                mx.eval(chunk.is_computed)
                before, self._lap_at = self._lap_at or 0.0, perf_counter()
                taken_s = self._lap_at - max(before, chunk.dispatched_at)
                chunk.done(taken_s if chunk.is_measured else None)
            except Exception as fault:
                self.reset()
                chunk.fail(fault)
        self.settled_s += perf_counter() - start
        return True

    def take_step(self) -> Step | None:
        """Remove the step in flight, if there is one, and return it; the caller has to fetch it."""
        step, self.step = self.step, None
        return step

    def wait_for_step(self) -> None:
        """Wait for the step in flight, if there is one, and measure it. Raises StepError."""
        step = self.step
        if step is None or step.is_computed:
            return
        try:
            with span("waiting"):
                mx.eval(step.tokens)
        except Exception as fault:
            raise StepError(step.members, fault) from fault
        step.is_computed, step.taken_s = True, self.lap()

    def fetch(self, step: Step) -> tuple[list[int], SequenceOf[Likelihood | None]]:
        """Wait for a step, measure it, and return each row's token and likelihood. Raises StepError."""
        try:
            start = perf_counter()
            with span("waiting"):
                tokens: list[int] = step.tokens.tolist()  # type: ignore[assignment]
            step.was_awaited = step.is_computed or perf_counter() - start > MIN_WAIT_S
            likelihoods = step.measured.fetch() if step.measured else [None] * len(tokens)
        except Exception as fault:
            raise StepError(step.members, fault) from fault
        if not step.is_computed:
            step.taken_s = self.lap()
        if step.taken_s and step.is_steady:
            self.note_plain(step.taken_s)
        return tokens, likelihoods

    def skip_moves(self) -> None:
        """Do not time the next step: it also moves rows, because one joined or left."""
        num_steps = 1 if self.step is None or self.step.is_computed else 2
        self._num_skipped = max(self._num_skipped, num_steps)

    def reset(self) -> None:
        """Forget when the last work completed, as the engine's thread has waited for other work since.

        The work in flight then gets no measured time.
        """
        self._lap_at = None
        if self._chunk:
            self._chunk = replace(self._chunk, is_measured=False)

    def pause(self) -> None:
        """Wait for all work in flight, as another model has the device next. Raises that work's exception."""
        self.settle()
        self.wait_for_step()
        # The next step's time would contain what the other model does.
        self.reset()

    def restart(self) -> None:
        """Let the next step's measured time begin now. Nothing may be in flight."""
        self._lap_at = perf_counter()

    def clear(self) -> None:
        """Forget all work in flight, which nobody waits for any more, and when the last work completed."""
        self.step = self._lap_at = self._chunk = None

    def lap(self) -> float | None:
        """Note that a step has completed; return the seconds since the last completion, None if not known."""
        before, self._lap_at = self._lap_at, perf_counter()
        if self._num_skipped:
            self._num_skipped -= 1
            return None
        return None if before is None else self._lap_at - before


class Batch:
    """The decoding sequences, in the order of their rows in the target model and in the draft model alike.

    rows: the target model's rows. draft_model: the draft model or the target's head; None if neither drafts.
    device: computes the steps of these rows.
    """

    def __init__(
        self, model: Any, vocab_size: int, sharing: Sharing, draft_model: RowDrafter | None, device: Device
    ) -> None:
        self.device = device
        self._model = model
        self.vocab_size = vocab_size
        self._sharing = sharing
        self.draft_model = draft_model
        self.clear()

    def clear(self) -> None:
        """Drop all rows, and the step in flight."""
        self.rows = make_rows(self._model, self._sharing)
        if self.draft_model:
            self.draft_model.clear()
        if isinstance(self.draft_model, HeadDrafter):
            self.draft_model.target = self.rows
        self.device.step = None
        self._sampler: Sampler | None = None
        # Last: if this raises, the members must still be found, for their terminal events.
        self.members: list[Sequence] = []

    @property
    def rows_by_model(self) -> list[Rows]:
        """The rows of the target model and, if there is one, of the draft model."""
        return [self.rows, *([self.draft_model.rows] if self.draft_model else [])]

    @property
    def sampler(self) -> Sampler:
        """The sampler for the present rows; a new one is made after a row joined or left."""
        if self._sampler is None:
            rows = [s.make_row_sampling(self.vocab_size) for s in self.members]
            self._sampler = Sampler(rows, self.vocab_size)
        return self._sampler

    def join(self, sequence: Sequence, draft_prefill: TextPrefill | None = None) -> None:
        """Make a prefilled sequence the last row. Its last token is fed by the next step.

        draft_prefill: of the sequence's text; None if no model drafts for it.
        If this raises, only some caches may hold the sequence, so no row can be used any more.
        """
        prefill = sequence.prefill
        self.rows.add(prefill.caches, prefill.num_computed)
        if prefill.looking and (delta := prefill.looking.delta):
            assert isinstance(self.rows, BatchedRows)
            self.rows.shared.shift(len(self.members), delta)
        if self.draft_model:
            # The same drafter has made it.
            self.draft_model.add(draft_prefill)  # type: ignore[arg-type]
        # The rows own the caches from now on.
        sequence.prefill = Prefill()
        self.members.append(sequence)
        self._sampler = None
        self.device.skip_moves()

    def free(self, leaving: list[int]) -> None:
        """Remove the leaving rows, given in ascending order; the last row moves into each freed place.

        A sequence that will decode again later must not have a token in flight.
        """
        for row in reversed(leaving):
            self.rows.remove(row)
            if self.draft_model:
                self.draft_model.remove(row)
            self.members[row] = self.members[-1]
            self.members.pop()
        self._sampler = None
        self.device.skip_moves()

    def start_copies(self) -> None:
        """Start copying the rows that a joining or leaving row moved, where no step follows that would."""
        for rows in self.rows_by_model:
            if isinstance(rows, BatchedRows):
                rows.start_copies()

    def tapping(self) -> AbstractContextManager[TappedStates | None]:
        """Collect the target's hidden states in a forward pass over all rows, if a head reads any row's."""
        return self.draft_model.tapping() if isinstance(self.draft_model, HeadDrafter) else nullcontext()

    def hand_over(self, tapped: TappedStates | None, num_final: SequenceOf[int]) -> list[mx.array]:
        """Hand the states of a forward pass over to the head; return them, not yet evaluated.

        num_final: (rows,) how many of the tokens fed stay in each row's caches.
        """
        if tapped is None or not isinstance(self.draft_model, HeadDrafter):
            return []
        return self.draft_model.receive(tapped, num_final)
