"""Cut a tower's work into slices: some rows of a stage at a time, as many as the caller allows.

A row is a patch, or a window of patches. Work is counted in units of WORK multiply-adds, so that what a slice
may take does not grow with the image: attention's grows with the square of its patches.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import mlx.core as mx

WORK = 2**20
"""Multiply-adds of a unit: some milliseconds where they are slowest."""

ROWS_ON_GPU = 32
"""A GPU takes about as long for one row, for which it may have another kernel, with other bits."""

SCORE_WORK = 64
"""Multiply-adds that take about as long as the rest of what is done with a score."""


@dataclass
class Portion:
    """The units of work that the next slice may do, and those that the last one did.

    most: None for all of a stage. A slice does at least one row, whatever that takes.
    """

    most: int | None = None
    done: int = 0


@dataclass(frozen=True)
class Stage:
    """A part of a tower's work that can be cut between rows.

    kind: stages of one kind take about as long for each unit. size: rows. work: multiply-adds of a row.
    together: rows that are not parted.
    """

    kind: str
    size: int
    work: int
    together: int = 1

    @property
    def num_units(self) -> int:
        """Units of all rows, at least 1."""
        return -(-self.size * self.work // WORK)

    def run(
        self, portion: Portion, compute: Callable[[int, int], Sequence[mx.array]], axis: int = 1
    ) -> Generator[Sequence[mx.array], None, list[mx.array]]:
        """Compute all rows, and yield what each slice adds; return the whole arrays.

        compute: returns the arrays of rows [start, end), lazy. axis: that of the rows in these.
        """
        made, start = [], 0
        while start < self.size:
            end = self._end(start, portion.most)
            portion.done = self._units_before(end) - self._units_before(start)
            made.append(compute(start, end))
            yield made[-1]
            start = end
        return [
            one[0] if len(one) == 1 else mx.concatenate(list(one), axis) for one in zip(*made, strict=True)
        ]

    def _end(self, start: int, most: int | None) -> int:
        if most is None:
            return self.size
        least = self.together
        if mx.default_device().type == mx.DeviceType.gpu:
            least *= -(-ROWS_ON_GPU // least)
        return min(self.size, start + least * max(1, most * WORK // (least * self.work)))

    def _units_before(self, row: int) -> int:
        """Units are left until the last row is computed."""
        return self.num_units if row == self.size else row * self.work // WORK
