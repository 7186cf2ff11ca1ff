"""Refuse a request when the queue is full, and say when to come back."""

from reprise.engine.interface.errors import EngineError
from reprise.engine.models.intake.retry_after import AnswerTimes


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
