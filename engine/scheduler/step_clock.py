"""The clock of the engine's thread: how long each step and each prompt chunk kept the device busy."""

import time


class StepClock:
    """Measures the time from one completion to the next.

    The device works in the order of dispatch, and the engine's thread waits in that order too. So the time
    between two waits belongs to what the second one waited for.
    """

    def __init__(self) -> None:
        self._read_at: float | None = None

    def reset(self) -> None:
        """Forget the last completion, because something else happens before the next one."""
        self._read_at = None

    def lap(self) -> float | None:
        """Record a completion. Returns the seconds since the previous one, or None after a reset."""
        now = time.perf_counter()
        taken_s = None if self._read_at is None else now - self._read_at
        self._read_at = now
        return taken_s
