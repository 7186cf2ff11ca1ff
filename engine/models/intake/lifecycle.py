"""The engine's state from loading to dead, and the number of live requests. Safe on any thread."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from reprise.engine.interface.embeddings import Embedded
from reprise.engine.interface.errors import RETRY_AFTER_S, EngineError
from reprise.engine.interface.events import Failed, Finished
from reprise.engine.interface.status import EngineStatus
from reprise.engine.models.intake.queue_limit import Queue

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
