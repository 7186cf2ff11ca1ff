"""The device as the engine's thread sees it: what was dispatched and not fetched yet, and how long each took.

The device works in the order of dispatch, and the engine's thread waits in that order too. So the time
between two waits belongs to what the second one waited for. But MLX holds a thread up in the middle of a
dispatch that is too far ahead of the device. So a prompt's chunk is dispatched once all before it is
computed, and the next step once that chunk is computed. Both can be built before.
"""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import cast

import mlx.core as mx
from mlx.utils import tree_flatten

from reprise.engine.batch.sequence import Sequence
from reprise.engine.batch.step_error import StepError
from reprise.engine.interface.stations import station
from reprise.engine.sampling.logprobs import Likelihood, Likelihoods

NUM_PLAIN = 5
"""Plain steps of which the median says what one takes."""

MIN_WAIT_S = 0.0001
"""Seconds from which on the engine's thread counts as having waited for the device."""

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
    was_awaited: whether the device was busy longer than the engine's thread, known once it was fetched.
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
    """A prompt's chunk that was dispatched. is_computed: its evaluation waits for all of the chunk."""

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
        self._chunks: list[_Chunk] = []
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
        """Start computing a plain step and its states for a head, once the chunks in flight are computed.

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
        self._chunks.append(_Chunk(is_computed, dispatched_at, done, fail))

    @station("waiting")
    def compute(self, arrays: SequenceOf[mx.array]) -> None:
        """Wait for the chunks in flight, then compute these arrays and wait for them too."""
        # Only now, when all is ready to be dispatched; so their times can be told apart.
        self.settle()
        mx.eval(*arrays)

    def settle(self) -> bool:
        """Wait for the chunks in flight; return whether there were any. Raises what their fail() raises."""
        if not self._chunks:
            return False
        self._settle()
        return True

    @station("waiting")
    def _settle(self) -> None:
        start = perf_counter()
        while self._chunks:
            chunk = self._chunks.pop()
            try:
                mx.eval(chunk.is_computed)
                before, self._lap_at = self._lap_at or 0.0, perf_counter()
                taken_s = self._lap_at - max(before, chunk.dispatched_at)
                chunk.done(taken_s if chunk.is_measured else None)
            except Exception as fault:
                self.reset()
                chunk.fail(fault)
        self.settled_s += perf_counter() - start

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
            with station("waiting"):
                mx.eval(step.tokens)
        except Exception as fault:
            raise StepError(step.members, fault) from fault
        step.is_computed, step.taken_s = True, self.lap()

    def fetch(self, step: Step) -> tuple[list[int], SequenceOf[Likelihood | None]]:
        """Wait for a step, measure it, and return each row's token and likelihood. Raises StepError."""
        try:
            start = perf_counter()
            with station("waiting"):
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
        """Do not measure the next step: rows are moved in it, as one joined or left."""
        self.skip_steps(1 if self.step is None or self.step.is_computed else 2)

    def skip_steps(self, num_steps: int) -> None:
        """Do not measure the next steps that are fetched: their times contain other work."""
        self._num_skipped = max(self._num_skipped, num_steps)

    def reset(self) -> None:
        """Forget when the last work completed, as the engine's thread has waited for other work since.

        The work in flight then gets no measured time.
        """
        self._lap_at = None
        self._chunks = [replace(chunk, is_measured=False) for chunk in self._chunks]

    def pause(self) -> None:
        """Wait for all work in flight, as another model has the device next. Raises that work's fault."""
        self.settle()
        self.wait_for_step()
        # The next step's time would contain what the other model does.
        self.reset()

    def restart(self) -> None:
        """Let the next step's measured time begin now. Nothing may be in flight."""
        self._lap_at = perf_counter()

    def clear(self) -> None:
        """Forget all work in flight, which nobody waits for any more, and when the last work completed."""
        self.step, self._lap_at, self._chunks = None, None, []

    def lap(self) -> float | None:
        """Note that a step has completed; return the seconds since the last completion, None if not known."""
        before, self._lap_at = self._lap_at, perf_counter()
        if self._num_skipped:
            self._num_skipped -= 1
            return None
        return None if before is None else self._lap_at - before
