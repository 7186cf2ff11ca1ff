"""Profile a thread: the seconds that it spends in each span of its work.

A span, such as planning, is marked by a decorator or a `with` statement:

    @span("planning")
    def _plan(self): ...

A thread is in one span at a time: an inner span pauses the outer one. Threads without a SpanClock measure
nothing.
"""

import threading
from collections.abc import Callable, Iterable
from functools import wraps
from time import perf_counter
from types import TracebackType
from typing import Literal, ParamSpec, TypeVar

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

Given = ParamSpec("Given")
Result = TypeVar("Result")
_thread = threading.local()


class SpanClock:
    """Adds up a thread's seconds in each span. Any thread may read them.

    seconds: span, or OTHER -> seconds. The time in the present span is missing.
    now: returns the time in seconds.
    """

    def __init__(self, spans: Iterable[str], now: Callable[[], float] = perf_counter) -> None:
        self.seconds = dict.fromkeys([*spans, OTHER], 0.0)
        self._now = now
        self._path = [OTHER]
        self._since = now()

    def start(self) -> None:
        """Begin to measure the calling thread."""
        self._since = self._now()
        _thread.clock = self

    def stop(self) -> None:
        """Stop measuring. To be called on the measured thread."""
        _thread.clock = None

    def enter(self, name: str) -> None:
        """Enter a span, which pauses the present one."""
        now = self._now()
        self.seconds[self._path[-1]] += now - self._since
        self._since = now
        self._path.append(name)

    def leave(self) -> None:
        """Leave the present span, and resume the one that it paused."""
        now = self._now()
        self.seconds[self._path.pop()] += now - self._since
        self._since = now

    def spend(self, name: str, taken_s: float) -> None:
        """Move the last taken_s seconds, as the caller measured them, from the present span to another."""
        self.seconds[name] += taken_s
        self._since += taken_s


def spend(name: EngineSpan, taken_s: float) -> None:
    """Move the thread's last taken_s seconds, as the caller measured them, from its span to another.

    For work in small parts that are timed anyway. The thread must not have changed spans meanwhile.
    """
    clock = getattr(_thread, "clock", None)
    if clock is not None:
        clock.spend(name, taken_s)


class span:  # noqa: N801 - used like a function
    """Marks a span, as a decorator or in a `with` statement.

    Only for code that does not await: another task would run in this span.
    """

    __slots__ = ("_name",)

    def __init__(self, name: EngineSpan | LoopSpan) -> None:
        self._name = name

    def __enter__(self) -> None:
        clock = getattr(_thread, "clock", None)
        if clock is not None:
            clock.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        clock = getattr(_thread, "clock", None)
        if clock is not None:
            clock.leave()

    def __call__(self, function: Callable[Given, Result]) -> Callable[Given, Result]:
        """Return the function as one that runs in this span."""

        name = self._name

        @wraps(function)
        def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
            clock = getattr(_thread, "clock", None)
            if clock is None:
                return function(*args, **kwargs)
            clock.enter(name)
            try:
                return function(*args, **kwargs)
            finally:
                clock.leave()

        return run
