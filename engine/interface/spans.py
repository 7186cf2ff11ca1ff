"""Profile a thread: the seconds that it spends in each span of its work.

A span, such as planning, is marked by a decorator or a `with` statement:

    @span("planning")
    def _plan(self): ...

A thread is in one span at a time: an inner span pauses the outer one. Threads without a SpanClock measure
nothing.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from time import perf_counter
from typing import Literal

EngineSpan = Literal[
    "idle",
    "trials",
    "messages",
    "retiring",
    "admission",
    "memory",
    "planning",
    "drafters",
    "grammars",
    "draft_model",
    "dispatch",
    "waiting",
    "commit",
    "prefill",
]
"""Parts of the work of the engine's thread, in the order of a step. docs/metrics.md says what each is."""

LoopSpan = Literal["connections", "bodies", "submission", "output", "format"]
"""Parts of the work of the server's event loop, in the order of a request."""

OTHER = "other"
"""The name of the time outside of all spans."""


class SpanClock:
    """Adds up a thread's seconds in each span. Any thread may read them.

    seconds: span, or OTHER -> seconds. The time in the present span, which runs from `since`, is missing.
    now: returns the time in seconds.
    """

    def __init__(self, spans: Iterable[str], now: Callable[[], float] = perf_counter) -> None:
        self.seconds = dict.fromkeys([*spans, OTHER], 0.0)
        self._now = now
        self._path = [OTHER]
        self.since = now()

    def start(self) -> None:
        """Begin to measure the calling thread."""
        self.since = self._now()
        _thread.clock = self

    def stop(self) -> None:
        """Stop measuring. To be called on the measured thread."""
        _thread.clock = None

    def enter(self, name: str) -> None:
        """Enter a span, which pauses the present one."""
        now = self._now()
        self.seconds[self._path[-1]] += now - self.since
        self.since = now
        self._path.append(name)

    def leave(self) -> None:
        """Leave the present span, and resume the one that it paused."""
        now = self._now()
        self.seconds[self._path.pop()] += now - self.since
        self.since = now


class _Thread(threading.local):
    clock: SpanClock | None = None


_thread = _Thread()


def spend(name: EngineSpan, taken_s: float) -> None:
    """Move the thread's last taken_s seconds, as the caller measured them, from its span to another.

    For work in small parts that the caller times anyway. The span must not have changed meanwhile.
    """
    if clock := _thread.clock:
        clock.seconds[name] += taken_s
        clock.since += taken_s


class span(ContextDecorator):  # noqa: N801 - used like a function
    """Marks a span, as a decorator or in a `with` statement.

    Only for code that does not await: another task would run in this span.
    """

    def __init__(self, name: EngineSpan | LoopSpan) -> None:
        self._name = name

    def __enter__(self) -> None:
        if clock := _thread.clock:
            clock.enter(self._name)

    def __exit__(self, *raised: object) -> None:
        if clock := _thread.clock:
            clock.leave()
