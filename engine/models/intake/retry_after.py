"""Estimate Retry-After from how long requests take, on this machine and now."""

from collections import deque
from statistics import mean
from time import perf_counter

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
