"""Measure how late the event loop wakes, by a timer of its own."""

import asyncio
from collections.abc import Callable

PERIOD_S = 0.1
"""Time between two timers. What blocks the loop for longer than this delays at least one of them."""


class LoopLag:
    """Sets timers while it runs, and reports by how many seconds each was late.

    observe: called with the lag of each timer, >= 0.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, observe: Callable[[float], None]) -> None:
        self._loop = loop
        self._observe = observe
        self._due = loop.time() + PERIOD_S
        self._timer = loop.call_at(self._due, self._wake)

    def stop(self) -> None:
        """Set no more timers."""
        self._timer.cancel()

    def _wake(self) -> None:
        now = self._loop.time()
        self._observe(max(0.0, now - self._due))
        self._due = now + PERIOD_S
        self._timer = self._loop.call_at(self._due, self._wake)
