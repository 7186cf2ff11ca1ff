"""Estimate Retry-After from recent completions."""

from collections import deque
from time import perf_counter

NUM_KEPT = 64
"""Number of recent completions that count."""
MAX_WAIT_S = 60.0
"""A longer wait would be a guess, and OpenAI's clients ignore longer ones."""


class CompletionRate:
    """The times at which the most recent requests ended. Not thread-safe by itself."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=NUM_KEPT)

    def note_end(self) -> None:
        """Record that a request ended now."""
        self._ends.append(perf_counter())

    def wait_s(self, num_ends: int, unknown_s: float) -> float:
        """Return the seconds until num_ends more requests end, at the rate since the oldest kept end.

        unknown_s: returned while fewer than two have ended.
        """
        if len(self._ends) < 2:
            return unknown_s
        passed_s = perf_counter() - self._ends[0]
        return min(MAX_WAIT_S, num_ends * passed_s / (len(self._ends) - 1))
