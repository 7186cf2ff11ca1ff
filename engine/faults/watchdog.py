"""Notices when work is there and nothing goes on: an engine that hangs raises nothing."""

import logging
import threading
import time
from collections.abc import Callable, Hashable

log = logging.getLogger("reprise.engine")

LOOKS_IN_A_STALL = 16
LONGEST_PAUSE_S = 1.0


class Watchdog:
    """Looks from time to time, on a thread of its own.

    stall_s: nothing for so long is a stall.
    progress: something that changes whenever work goes on, None while there is none; called on that thread.
    on_stall: called there once for each stall.

    reason: what stalls, while it does.
    """

    def __init__(
        self, stall_s: float, progress: Callable[[], Hashable], on_stall: Callable[[], None]
    ) -> None:
        self.reason: str | None = None
        self._stall_s = stall_s
        self._progress = progress
        self._on_stall = on_stall
        self._pause_s = min(LONGEST_PAUSE_S, stall_s / LOOKS_IN_A_STALL)
        self._seen: Hashable = None
        self._idle_s = 0.0
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="reprise-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; the reason of a stall stays. Harmless if it never began, or twice."""
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        looked_at = time.monotonic()
        while not self._is_stopped.wait(self._pause_s):
            now = time.monotonic()
            # A machine that slept has not stalled: however long since the last look, it was one pause.
            self._look(min(now - looked_at, 2 * self._pause_s))
            looked_at = now

    def _look(self, since_s: float) -> None:
        seen = self._progress()
        if seen is None or seen != self._seen:
            if self.reason is not None:
                log.warning("the engine goes on, after a stall")
            self._seen, self._idle_s, self.reason = seen, 0.0, None
            return
        self._idle_s += since_s
        if self._idle_s >= self._stall_s and self.reason is None:
            reason = f"no token and no prefill progress for {self._stall_s:g} s while requests wait"
            log.error("the engine stalls: %s", reason)
            self._on_stall()
            # Last: who sees the stall finds it counted.
            self.reason = reason
