"""Carry events from the engine's thread to the event loop, built for many small events.

The two threads share the interpreter lock, so time spent here per token is taken from the engine. Therefore
at most one wake-up of the event loop is pending at any time, for all streams together. It delivers all events
that have arrived by then.
"""

import asyncio
import contextlib
from collections import deque

from reprise.engine.interface.events import Event

ChoiceEvent = tuple[int, Event]
"""(index of the choice, event)."""


class EventQueue:
    """Events of one HTTP request, in order of arrival. Use it on the event loop only."""

    def __init__(self, silence_s: float) -> None:
        """Create an empty queue.

        silence_s: receive() returns an empty list after this many seconds without an event.
        """
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._events: list[ChoiceEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_received_s = self._loop.time()

    def put(self, event: ChoiceEvent) -> None:
        """Add an event."""
        self._events.append(event)
        self.wake()

    def wake(self) -> None:
        """Make a waiting receive() return, even without an event."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> list[ChoiceEvent]:
        """Wait for an event and return all that have arrived; none after silence_s, or after wake()."""
        if not self._events:
            self._waiter = self._loop.create_future()
            if self._timer is None:
                self._timer = self._loop.call_later(self._silence_s, self._check_silence)
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._last_received_s = self._loop.time()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_silence(self) -> None:
        # The timer restarts itself for the time that is left: a new timer for each token costs too much.
        left_s = self._last_received_s + self._silence_s - self._loop.time()
        if left_s <= 0:
            self.wake()
            left_s = self._silence_s
        self._timer = self._loop.call_later(left_s, self._check_silence)


class EventBridge:
    """Takes events on the engine's thread and puts them into event queues on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[tuple[EventQueue, ChoiceEvent]] = deque()
        self._is_wake_scheduled = False

    def post(self, event_queue: EventQueue, event: ChoiceEvent) -> None:
        """Send an event to a queue. Callable from any thread; neither blocks nor raises."""
        self._posted.append((event_queue, event))
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            # A closed loop raises RuntimeError; then no request waits for the event anymore.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Reset the flag first: an event posted after the last check below must schedule another wake.
        self._is_wake_scheduled = False
        while self._posted:
            event_queue, event = self._posted.popleft()
            event_queue.put(event)
