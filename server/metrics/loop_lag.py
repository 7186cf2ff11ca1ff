"""Watch the event loop: how late it wakes, and what held it."""

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from reprise.engine.interface.spans import OTHER, SpanClock

PERIOD_S = 0.05
"""Time between two timers. What blocks the loop for longer than this delays at least one of them."""
HELD_S = 0.1
"""How late a timer must be for the loop to count as held."""
NOT_HELD = "none"
"""In place of a span: another thread had the interpreter, or the machine was busy."""
_ROOT = Path(__file__).parents[3]


class LoopLag:
    """Sets timers on the event loop; reports how late each fires, in seconds, and what held the loop.

    The thread's CPU time distinguishes the loop's own work from waiting for the machine.
    Create it on the loop's thread.

    spans: the clock of the loop's thread. observe: called with the lag of each timer, >= 0.
    hold: called for each lag above HELD_S with the span whose work held the loop (NOT_HELD if the loop itself
        did hardly any), the timer's lateness, a lower bound of the CPU time that the loop's thread used
        meanwhile, and the loop's line and function, as "reprise.server.app:12 create_app", or "" if not seen.
    spent: returns the thread's CPU time in seconds.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spans: SpanClock,
        observe: Callable[[float], None],
        hold: Callable[[str, float, float, str], None],
        spent: Callable[[], float] = time.thread_time,
    ) -> None:
        self._loop = loop
        self._spans = spans
        self._observe, self._hold, self._spent = observe, hold, spent
        self._thread_id = threading.get_ident()
        self._seen = ""
        self._before, self._spent_before = dict(spans.seconds), spent()
        self._due = loop.time() + PERIOD_S
        self._timer = loop.call_at(self._due, self._wake)
        self._stopped = threading.Event()
        threading.Thread(target=self._look, name="loop-lag", daemon=True).start()

    def stop(self) -> None:
        """Set no more timers."""
        self._timer.cancel()
        self._stopped.set()

    def _wake(self) -> None:
        now, spent = self._loop.time(), self._spent()
        late_s = max(0.0, now - self._due)
        self._observe(late_s)
        # Counts what the loop has done outside of all spans until now.
        self._spans.enter(OTHER)
        self._spans.leave()
        if late_s > HELD_S:
            # Before the timer was due, others may have run for all of the period.
            own_s = max(0.0, spent - self._spent_before - PERIOD_S)
            # The span that the loop spent the most time in since the timer before.
            busiest = max(
                self._spans.seconds, key=lambda name: self._spans.seconds[name] - self._before[name]
            )
            span = busiest if own_s > HELD_S else NOT_HELD
            self._hold(span, late_s, own_s, self._seen)
        self._seen = ""
        self._before, self._spent_before = dict(self._spans.seconds), spent
        self._due = now + PERIOD_S
        self._timer = self._loop.call_at(self._due, self._wake)

    def _look(self) -> None:
        """Record where the loop's thread is while a timer is late. Runs on a separate thread."""
        while not self._stopped.wait(PERIOD_S):
            if not self._seen and self._loop.time() - self._due > HELD_S / 2:
                self._seen = _place_of(self._thread_id)


def _place_of(thread_id: int) -> str:
    """Return a thread's innermost line in this program, and what it calls there."""
    frame = innermost = sys._current_frames().get(thread_id)
    while frame is not None and innermost is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(_ROOT) and "site-packages" not in path.parts:
            return _line(frame) if frame is innermost else f"{_line(frame)}: {_line(innermost)}"
        frame = frame.f_back
    return ""


def _line(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__')}:{frame.f_lineno} {frame.f_code.co_name}"
