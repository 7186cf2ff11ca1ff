"""The clock of the engine's thread: how long each step and each prompt chunk kept the device busy."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import cast

import mlx.core as mx
from mlx.utils import tree_flatten

from engine.stations import station

NUM_PLAIN = 5
"""Plain steps of which the median says what one takes."""

Done = Callable[[float | None], None]
"""Called with the seconds that the device took, None if they are not known. May wait for the device."""

Fail = Callable[[Exception], None]
"""Called with the exception of work that failed."""

Dispatch = Callable[[Sequence[object], Done, Fail], None]
"""Dispatches work. See StepClock.dispatch()."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Work that was dispatched and not waited for. is_computed: its evaluation waits for all of the work."""

    is_computed: mx.array
    dispatched_at: float
    done: Done
    fail: Fail
    is_measured: bool = True


class StepClock:
    """Measures the time from one completion to the next.

    The device works in the order of dispatch, and the engine's thread waits in that order too. So the time
    between two waits belongs to what the second one waited for. But MLX holds a thread up in the middle of a
    dispatch that is too far ahead of the device. So work other than steps is dispatched once all before it is
    computed, and the next step once that work is computed. Both can be built before.
    """

    def __init__(self) -> None:
        self._read_at: float | None = None
        self._num_skipped = 0
        self._works: list[_Work] = []
        self._plain_s: deque[float] = deque(maxlen=NUM_PLAIN)

    @property
    def plain_s(self) -> float:
        """What a plain step takes, by the last few; 0 before any is known.

        The measure of how long anything may keep rows waiting that takes as long as the model is large.
        """
        return median(self._plain_s) if self._plain_s else 0.0

    def note_plain(self, seconds: float) -> None:
        """Record what a plain step took."""
        self._plain_s.append(seconds)

    def dispatch(self, arrays: Sequence[object], done: Done, fail: Fail) -> None:
        """Start computing arrays, or trees of arrays, without waiting for them; first wait for earlier work.

        done, fail: settle() calls one of them.
        """
        self.settle()
        dispatched_at = perf_counter()
        leaves = [leaf for _, leaf in cast(list[tuple[str, object]], tree_flatten(arrays))]
        # Not the arrays themselves: a reference would make the next step copy the buffer that it writes to.
        is_computed = mx.depends([mx.zeros(1)], [leaf for leaf in leaves if isinstance(leaf, mx.array)])[0]
        mx.async_eval(arrays, is_computed)
        self._works.append(_Work(is_computed, dispatched_at, done, fail))

    def settle(self) -> bool:
        """Wait for the work in flight; return whether there was any. Raises what its fail() raises."""
        if not self._works:
            return False
        self._settle()
        return True

    @station("waiting")
    def _settle(self) -> None:
        while self._works:
            work = self._works.pop()
            try:
                mx.eval(work.is_computed)
                before, self._read_at = self._read_at or 0.0, perf_counter()
                taken_s = self._read_at - max(before, work.dispatched_at)
                work.done(taken_s if work.is_measured else None)
            except Exception as fault:
                self.reset()
                work.fail(fault)

    def skip_steps(self, num_steps: int) -> None:
        """Do not measure the next steps that are read: they contain something else."""
        self._num_skipped = max(self._num_skipped, num_steps)

    def reset(self) -> None:
        """Forget the last completion: the engine's thread waited for something else in the meantime.

        The time of what is in flight is then not known.
        """
        self._read_at = None
        self._works = [replace(work, is_measured=False) for work in self._works]

    def restart(self) -> None:
        """Measure the next step from now on. Nothing may be in flight."""
        self._read_at = perf_counter()

    def clear(self) -> None:
        """Forget the last completion and the work in flight, as nobody waits for it any more."""
        self._read_at = None
        self._works = []

    def lap(self) -> float | None:
        """Record the completion of a step. Returns the seconds since the last one, None if not known."""
        before, self._read_at = self._read_at, perf_counter()
        if self._num_skipped:
            self._num_skipped -= 1
            return None
        return None if before is None else self._read_at - before
