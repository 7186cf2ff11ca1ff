"""What a step costs: seconds by rows and width, measured at load and learned from while serving."""

import math
import time
from bisect import bisect_left
from collections.abc import Mapping

FOLLOW = 0.1
"""How fast all costs follow a step that surprised (a longer context, a busy machine)."""

CORRECT = 0.03
"""How fast one shape's own cost follows it."""

LARGEST_SURPRISE = math.log(2.0)

Table = Mapping[tuple[int, int], float]
"""(rows, width) -> seconds. A full grid: every width measured for every number of rows."""


class StepCosts:
    """c(rows, width) in seconds, between grid points by straight lines, beyond the grid by the last slope.

    table: what was measured at load, width 1 included. Raises ValueError if it is no full grid of
    positive numbers.
    """

    def __init__(self, table: Table) -> None:
        self.rows = sorted({rows for rows, _ in table})
        self.widths = sorted({width for _, width in table})
        whole = len(table) == len(self.rows) * len(self.widths)
        if not table or not whole or self.widths[0] != 1 or not all(0 < s < math.inf for s in table.values()):
            raise ValueError("costs must be positive seconds over a full grid of rows and widths from 1 on")
        self._base = dict(table)
        self._level = 0.0
        self._own: dict[tuple[int, int], float] = {}
        self._known: dict[tuple[int, int], float] = {}

    def seconds(self, rows: int, width: int) -> float:
        """What a step of this shape is expected to take now."""
        if (found := self._known.get((rows, width))) is None:
            found = self._known[rows, width] = self._between(rows, width)
        return found * math.exp(self._level + self._own.get((rows, width), 0.0))

    def observe(self, rows: int, width: int, seconds: float) -> None:
        """Learn from a step. One odd step (a pause of the machine) moves little."""
        surprise = math.log(max(seconds, 1e-9) / self.seconds(rows, width))
        surprise = max(-LARGEST_SURPRISE, min(LARGEST_SURPRISE, surprise))
        self._level += FOLLOW * surprise
        self._own[rows, width] = self._own.get((rows, width), 0.0) + CORRECT * surprise

    def _between(self, rows: int, width: int) -> float:
        low, high, part = _place(self.rows, rows)
        at_low, at_high = self._at_width(low, width), self._at_width(high, width)
        return max(at_low + part * (at_high - at_low), 1e-9)

    def _at_width(self, rows: int, width: int) -> float:
        low, high, part = _place(self.widths, width)
        return self._base[rows, low] + part * (self._base[rows, high] - self._base[rows, low])


def _place(grid: list[int], x: int) -> tuple[int, int, float]:
    """Two neighbours on the grid and where x is between them; beyond the end, past the last two."""
    if len(grid) == 1:
        return grid[0], grid[0], 0.0
    at = min(max(bisect_left(grid, x), 1), len(grid) - 1)
    low, high = grid[at - 1], grid[at]
    return low, high, (x - low) / (high - low)


class StepClock:
    """Times decode steps from one reading to the next, and teaches the costs.

    batched: whether several rows share a forward; if not, only steps of one row teach anything.
    """

    def __init__(self, costs: StepCosts, batched: bool) -> None:
        self.costs = costs
        self.batched = batched
        self._read_at: float | None = None

    def reset(self) -> None:
        """Something else is done between two steps, so the time until the next reading says nothing."""
        self._read_at = None

    def lap(self, shape: tuple[int, int] | None, drafting_s: float = 0.0) -> float | None:
        """A step was read: seconds since the last one, or None after a reset.

        shape: its (rows, width), or None if it is to teach nothing. drafting_s: how many of the seconds were
        the draft model's.
        """
        now = time.perf_counter()
        taken_s = None if self._read_at is None else now - self._read_at
        self._read_at = now
        if taken_s is not None and shape and (self.batched or shape[0] == 1):
            self.costs.observe(*shape, taken_s - drafting_s)
        return taken_s
