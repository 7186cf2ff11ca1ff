"""How fast requests end, from which a client that is refused learns when to come again."""

from collections import deque
from time import perf_counter

REMEMBERED_ENDS = 64
MAX_WAIT_S = 60.0
"""A longer wait would be a guess, and OpenAI's clients obey none that is longer."""


class Pace:
    """The times at which the last sequences ended. Not safe between threads by itself."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=REMEMBERED_ENDS)

    def note_end(self) -> None:
        """A sequence has ended."""
        self._ends.append(perf_counter())

    def wait_s(self, num_ends: int, unknown_s: float) -> float:
        """Seconds in which num_ends sequences end, at the pace of the last ones and of the time since.

        unknown_s: where too few have ended to tell.
        """
        if len(self._ends) < 2:
            return unknown_s
        passed_s = perf_counter() - self._ends[0]
        return min(MAX_WAIT_S, num_ends * passed_s / (len(self._ends) - 1))
