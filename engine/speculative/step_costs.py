"""The cost of a step in seconds by rows and width: measured at load, adjusted while serving."""

import math
from bisect import bisect_left
from collections.abc import Mapping

LEVEL_RATE = 0.1
"""How fast all costs follow a step that differs from its expected cost (a longer context, a busy machine)."""

SHAPE_RATE = 0.03
"""How fast the cost of the step's own shape follows, in addition."""

MAX_SURPRISE = math.log(2.0)
"""Maximum difference that a step can teach, as the logarithm of observed over expected cost."""

Table = Mapping[tuple[int, int], float]
"""(rows, width) -> seconds. A full grid: every width is measured for every number of rows."""


class StepCosts:
    """The expected seconds of a step by its rows and width.

    They are interpolated linearly on the measured grid, and extrapolated beyond it by the last slope.

    table: the costs measured at load, including width 1.
    Raises ValueError if it is not a full grid of positive numbers.
    """

    def __init__(self, table: Table) -> None:
        self.rows = sorted({rows for rows, _ in table})
        self.widths = sorted({width for _, width in table})
        full = len(table) == len(self.rows) * len(self.widths)
        if not table or not full or self.widths[0] != 1 or not all(0 < s < math.inf for s in table.values()):
            raise ValueError(
                "costs must be positive seconds for a full grid of rows and widths, starting at width 1"
            )
        self._base = dict(table)
        self._level = 0.0
        self._by_shape: dict[tuple[int, int], float] = {}
        self._interpolated: dict[tuple[int, int], float] = {}
        # What seconds() returns, until the next step is observed.
        self._seconds: dict[tuple[int, int], float] = {}

    def seconds(self, rows: int, width: int) -> float:
        """Return the expected seconds of a step of this shape."""
        if (found := self._seconds.get((rows, width))) is None:
            found = self._seconds[rows, width] = self._adjusted(rows, width)
        return found

    def observe(self, rows: int, width: int, seconds: float) -> None:
        """Learn from a step. A single outlier (a pause of the machine) changes little."""
        surprise = math.log(max(seconds, 1e-9) / self.seconds(rows, width))
        surprise = max(-MAX_SURPRISE, min(MAX_SURPRISE, surprise))
        self._level += LEVEL_RATE * surprise
        self._by_shape[rows, width] = self._by_shape.get((rows, width), 0.0) + SHAPE_RATE * surprise
        self._seconds.clear()

    def _adjusted(self, rows: int, width: int) -> float:
        """Return the measured cost of a shape, adjusted by what was learned from steps."""
        if (found := self._interpolated.get((rows, width))) is None:
            found = self._interpolated[rows, width] = self._interpolate(rows, width)
        return found * math.exp(self._level + self._by_shape.get((rows, width), 0.0))

    def _interpolate(self, rows: int, width: int) -> float:
        low, high, part = _locate(self.rows, rows)
        at_low, at_high = self._at_width(low, width), self._at_width(high, width)
        return max(at_low + part * (at_high - at_low), 1e-9)

    def _at_width(self, rows: int, width: int) -> float:
        low, high, part = _locate(self.widths, width)
        return self._base[rows, low] + part * (self._base[rows, high] - self._base[rows, low])


def _locate(grid: list[int], x: int) -> tuple[int, int, float]:
    """Return two neighboring grid points and the position of x between them, in [0, 1] within the grid."""
    if len(grid) == 1:
        return grid[0], grid[0], 0.0
    at = min(max(bisect_left(grid, x), 1), len(grid) - 1)
    low, high = grid[at - 1], grid[at]
    return low, high, (x - low) / (high - low)
