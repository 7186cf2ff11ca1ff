"""The lifecycle of a model's engine: what it takes on, its queue's limit, and when to try again."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import mean
from time import perf_counter
from typing import Any, Literal

from reprise.engine.interface.embeddings import Embedded
from reprise.engine.interface.errors import RETRY_AFTER_S, EngineError
from reprise.engine.interface.events import Failed, Finished
from reprise.engine.interface.status import EngineStatus

NUM_KEPT = 64
"""Number of recent answers that count."""
MIN_WAIT_S = 1.0
"""Seconds to which the wait is rounded up: a client that asks more often gains nothing."""
MAX_WAIT_S = 60.0
"""A longer wait would be a guess, and OpenAI's clients ignore longer ones."""


class AnswerTimes:
    """The seconds that recent answers took from admission to end. Not thread-safe by itself.

    Idle time does not count, so clients of a burst after a quiet night are not told to wait for a minute.
    """

    def __init__(self) -> None:
        self._taken_s: deque[float] = deque(maxlen=NUM_KEPT)
        self._changed_at: float | None = None

    def begin(self) -> None:
        """Note that a request came while no other ran."""
        self._changed_at = perf_counter()

    def end(self, taken_s: float | None, is_last: bool) -> None:
        """Note that a request ended. taken_s: seconds since its admission; None if it was not answered.

        is_last: whether no live request is left.
        """
        self._changed_at = None if is_last else perf_counter()
        if taken_s is not None:
            self._taken_s.append(taken_s)

    def wait_s(self) -> float:
        """Return the seconds until the running requests end, if they take as long as earlier ones.

        If more seconds than that have passed since the last end, return those: what took long takes longer.
        """
        usual_s = mean(self._taken_s) if self._taken_s else 0.0
        since_s = 0.0 if self._changed_at is None else perf_counter() - self._changed_at
        return min(MAX_WAIT_S, max(MIN_WAIT_S, usual_s, since_s))


class Queue:
    """Counts the requests that run or wait, and refuses one too many. Not thread-safe by itself.

    max_live: requests that may run or wait at once.
    """

    def __init__(self, max_live: int) -> None:
        self.num_live = 0
        self.num_ended = 0
        self._max_live = max_live
        self._answer_times = AnswerTimes()

    def enter(self) -> None:
        """Count one more live request. Raises EngineError if the queue is full."""
        if self.num_live >= self._max_live:
            raise EngineError(
                "queue_full",
                f"{self.num_live} requests are running or waiting; try again later",
                self.wait_s(),
            )
        if not self.num_live:
            self._answer_times.begin()
        self.num_live += 1

    def leave(self, answered_s: float | None) -> None:
        """Count a request's end. answered_s: seconds since its admission; None if it was not answered."""
        self.num_live -= 1
        self.num_ended += 1
        self._answer_times.end(answered_s, is_last=not self.num_live)

    def wait_s(self) -> float:
        """Return the estimated seconds until the running requests have ended."""
        return self._answer_times.wait_s()


log = logging.getLogger("reprise.engine")

State = Literal["loading", "ready", "draining", "dead"]


class Lifecycle:
    """Decides whether a request is accepted, and counts those that were.

    max_live: requests that may run or wait at once. queue: counts those that do.
    fault: why the engine is dead.
    """

    def __init__(self, max_live: int) -> None:
        self.state: State = "loading"
        self.fault: str | None = None
        self.queue = Queue(max_live)
        self._drained_at: float | None = None
        self._lock = threading.Lock()

    def begin_ready(self) -> None:
        """Accept requests from now on, unless draining has begun."""
        with self._lock:
            if self.state == "loading":
                self.state = "ready"

    def begin_draining(self, drain_s: float) -> None:
        """Accept no more requests; running ones have drain_s seconds to finish."""
        with self._lock:
            if self.state != "dead":
                self.state = "draining"
            self._drained_at = time.perf_counter() + drain_s

    def die(self, fault: str) -> None:
        """Accept no more requests, because of a fault."""
        with self._lock:
            self.state, self.fault = "dead", fault

    @property
    def is_dead(self) -> bool:
        """Whether a fault has ended the engine."""
        return self.state == "dead"

    @property
    def is_out_of_time(self) -> bool:
        """Whether draining has taken as long as it may."""
        return self._drained_at is not None and time.perf_counter() >= self._drained_at

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """Count one more live request, which the caller puts into the engine's inbox within this context.

        The state cannot change within it, so no request arrives after the engine's last look at its inbox.
        Raises EngineError if the engine takes no requests or the queue is full.
        """
        with self._lock:
            if self.state == "dead":
                raise EngineError("engine_dead", f"the engine has stopped: {self.fault}")
            if self.state != "ready":
                raise EngineError("draining", "the server is not taking requests now", self._retry_after_s())
            self.queue.enter()
            yield

    @contextmanager
    def held(self) -> Iterator[State]:
        """Keep the state unchanged within this context; yields the state."""
        with self._lock:
            yield self.state

    def note_end(self, end: Finished | Failed | Embedded) -> None:
        """Count the end of an accepted request. end: its terminal event."""
        answered_s = end.usage.total_s - end.usage.queue_s if isinstance(end, Finished) else None
        with self._lock:
            self.queue.leave(answered_s)

    def counting(self, request_id: str, sink: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap an accepted request's sink in one that counts the request's end, and never raises."""

        def counted(event: Any) -> None:
            if isinstance(event, Finished | Failed | Embedded):
                self.note_end(event)
            try:
                sink(event)
            # A sink must not raise; if it does, only its own request is affected.
            except Exception:
                log.error("the sink of request %s raised", request_id, exc_info=True)

        return counted

    def status(self, num_running: int) -> EngineStatus:
        """Return the engine's status for /health. num_running: requests that have been admitted."""
        with self._lock:
            num_waiting = max(0, self.queue.num_live - num_running)
            return EngineStatus(self.state, num_running, num_waiting, self.fault, self._retry_after_s())

    def _retry_after_s(self) -> float:
        """Seconds until the running requests will have ended or, while draining, until the server is gone."""
        if self.state == "draining" and self._drained_at is not None:
            return max(RETRY_AFTER_S, self._drained_at - time.perf_counter())
        return self.queue.wait_s()
