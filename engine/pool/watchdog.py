"""Share the thread's time among models, and notice a stall: an engine that hangs raises nothing.

During a stall server/generation/service.py refuses new requests, and /health says why.
"""

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

SLICE_S = 0.05
"""Seconds by which one may be ahead of the others. Not 0: a switch waits for the step in flight."""

Runner = TypeVar("Runner", bound=Hashable)


class TimeShares(Generic[Runner]):
    """Divides time evenly among the models that have work: the model that has had the least runs next.

    A model that gets work again starts level with the one that has had the least: idle time is not saved up.
    """

    def __init__(self) -> None:
        self._spent_s: dict[Runner, float] = {}
        self._current: Runner | None = None
        self._passes_on = False

    def choose(self, runners: Iterable[Runner]) -> Runner | None:
        """Return the model to run next; None if there is none. runners: all models that have work."""
        waiting = list(runners)
        spent = {one: self._spent_s[one] for one in waiting if one in self._spent_s}
        least_s = min(spent.values(), default=0.0)
        self._spent_s = {one: spent.get(one, least_s) - least_s for one in waiting}
        if not waiting:
            return None
        if self._passes_on or self._current not in self._spent_s or self._spent_s[self._current] >= SLICE_S:
            others = [one for one in waiting if one is not self._current] if self._passes_on else []
            self._current = min(others or waiting, key=self._spent_s.__getitem__)
        return self._current

    def charge(self, runner: Runner, taken_s: float, *, passes_on: bool = False) -> None:
        """Count the seconds that a model has run. passes_on: whether another model with work runs next."""
        self._passes_on = passes_on
        if runner in self._spent_s:
            self._spent_s[runner] += taken_s


log = logging.getLogger("reprise.engine")

CHECKS_PER_STALL = 16
MAX_PAUSE_S = 1.0


class Watchdog:
    """Checks progress regularly, on a thread of its own.

    stall_s: seconds without progress that count as a stall.
    progress: returns a value that changes with all progress; None without work.
    on_stall: called once for each stall. reason: why the engine is stalled; None while it is not.
    look: called at every check, about once a second.
    """

    def __init__(
        self,
        stall_s: float,
        progress: Callable[[], Hashable],
        on_stall: Callable[[], None],
        look: Callable[[], None],
    ) -> None:
        self.reason: str | None = None
        self._stall_s = stall_s
        self._look = look
        self._progress = progress
        self._on_stall = on_stall
        self._pause_s = min(MAX_PAUSE_S, stall_s / CHECKS_PER_STALL)
        self._seen: Hashable = None
        self._idle_s = 0.0
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reprise-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, if it runs. The reason of a stall stays."""
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        checked_at = time.monotonic()
        while not self._is_stopped.wait(self._pause_s):
            now = time.monotonic()
            # A machine that slept has not stalled: a pause counts at most twice its length.
            self._check(min(now - checked_at, 2 * self._pause_s))
            checked_at = now
            self._look()

    def _check(self, since_s: float) -> None:
        seen = self._progress()
        if seen is None or seen != self._seen:
            if self.reason is not None:
                log.warning("the engine makes progress again after a stall")
            self._seen, self._idle_s, self.reason = seen, 0.0, None
            return
        self._idle_s += since_s
        if self._idle_s >= self._stall_s and self.reason is None:
            reason = f"no token and no prefill progress for {self._stall_s:g} s while requests wait"
            log.error("the engine stalls: %s", reason)
            self._on_stall()
            # Set last, so that a stall is counted before it can be seen.
            self.reason = reason
