"""The clock of the engine's thread: how long each step, and all else on the device, kept the device busy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import cast

import mlx.core as mx
from mlx.utils import tree_flatten

Done = Callable[[float | None], None]
"""Called with the seconds that the device took, None if they are not known. May wait for the device."""

Fail = Callable[[Exception], None]
"""Called with the exception of work that failed."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Work that was dispatched and not waited for. is_computed: its evaluation waits for all of the work."""

    is_computed: mx.array
    dispatched_at: float
    is_measured: bool
    done: Done | None
    fail: Fail | None


class StepClock:
    """Measures the time from one completion to the next.

    The device works in the order of dispatch, and the engine's thread waits in that order too. So the time
    between two waits belongs to what the second one waited for. For steps the caller waits and calls lap().
    All other work is dispatched here, and settle() waits for it: after the step that was dispatched before
    it was read, and before the step that was dispatched after it is read.
    """

    def __init__(self) -> None:
        self._read_at: float | None = None
        self._works: list[_Work] = []

    def dispatch(self, arrays: Sequence[object], done: Done | None = None, fail: Fail | None = None) -> None:
        """Start computing arrays, or trees of arrays, without waiting for them.

        done, fail: one of them is called by settle(). Without fail, settle() raises the exception.
        """
        dispatched_at = perf_counter()
        # Not the arrays themselves: a reference would make the next step copy the buffer that it writes to.
        leaves = [leaf for _, leaf in cast(list[tuple[str, object]], tree_flatten(arrays))]
        is_computed = mx.depends([mx.zeros(1)], [leaf for leaf in leaves if isinstance(leaf, mx.array)])[0]
        mx.async_eval(arrays, is_computed)
        self._works.append(_Work(is_computed, dispatched_at, True, done, fail))

    def settle(self) -> None:
        """Wait for all that was dispatched, in order."""
        while self._works:
            work = self._works.pop(0)
            try:
                mx.eval(work.is_computed)
                taken_s = self._lap_since(work.dispatched_at)
                if work.done:
                    work.done(taken_s if work.is_measured else None)
            except Exception as fault:
                self.reset()
                if work.fail is None:
                    raise
                work.fail(fault)

    def reset(self) -> None:
        """Forget the last completion: the engine's thread waited for something else in the meantime.

        The times of steps and of other work dispatched up to now are then not known.
        """
        self._read_at = None
        self._works = [replace(work, is_measured=False) for work in self._works]

    def lap(self) -> float | None:
        """Record a completion. Returns the seconds since the previous one, or None after a reset."""
        before, self._read_at = self._read_at, perf_counter()
        return None if before is None else self._read_at - before

    def _lap_since(self, dispatched_at: float) -> float:
        """Record the completion of work before which the device may have been idle."""
        before, self._read_at = self._read_at or 0.0, perf_counter()
        return self._read_at - max(before, dispatched_at)
