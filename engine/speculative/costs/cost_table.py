"""Measured costs of steps, and guesses for the shapes that were not measured.

Between two measured widths a guess is linear. Beyond the widest it follows a curve that flattens, as real
costs do: a forward pass reads the weights once, however many tokens it computes.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Shape = tuple[int, int]
"""(rows, width) of a step."""

Table = Mapping[Shape, float]
"""(rows, width) -> seconds."""

MODEL_NAMES = "models"
"""Key in a file of costs: the names of models by the keys of their costs, for people."""

CAUTIOUS_TOKENS = 8
"""Until anything wider was measured, a step is believed to take a plain step's time for every so many
tokens."""

GROWTH = 0.9
"""Power of its tokens with which the cost of a step is guessed to grow beyond what was measured."""

MIN_CHUNK_TOKENS = 16
"""Chunks of prompts with fewer tokens say little about what each further token costs."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measured cost of steps of one shape.

    seconds: of the fastest step; other work on the machine only adds to it.
    spread: of the median step relative to the fastest, >= 1. It shows how busy the machine was.
    measured_at: seconds since the epoch; None if not known.
    """

    seconds: float
    spread: float = 1.0
    measured_at: float | None = None


class CostTable:
    """The seconds of steps by shape (rows, width): measured, and guessed where no measurement is.

    measured: the measurements by shape, at least that of (1, 1).
    rows, widths: the grid of shapes, measured or not; by default the measured ones. Costs are interpolated
    linearly between its points, and extrapolated beyond the last ones.

    Raises ValueError if a cost is not positive and finite, or (1, 1) is missing.
    """

    def __init__(
        self,
        measured: Mapping[Shape, Measurement],
        rows: Iterable[int] | None = None,
        widths: Iterable[int] | None = None,
    ) -> None:
        if (1, 1) not in measured or not all(0 < each.seconds < math.inf for each in measured.values()):
            raise ValueError("costs must be positive seconds by rows and width, among them those of (1, 1)")
        self.measured = dict(measured)
        self.rows = sorted(set(rows) if rows else {rows for rows, _ in measured})
        self.widths = sorted({1, *widths} if widths else {width for _, width in measured})
        self._chunk: tuple[int, float] | None = None
        self._forget_guesses()

    @classmethod
    def of(cls, seconds: Table) -> "CostTable":
        """Make a table from seconds by shape, which count as measured."""
        return cls({shape: Measurement(each) for shape, each in seconds.items()})

    def put(self, shape: Shape, measured: Measurement) -> None:
        """Replace or add a measurement."""
        self.measured[shape] = measured
        self._forget_guesses()

    def drop(self, shape: Shape) -> None:
        """Forget a measurement, so that its shape is guessed."""
        self.measured.pop(shape, None)
        self._forget_guesses()

    def put_chunk(self, num_tokens: int, seconds: float) -> None:
        """Take the time of a prompt's chunk as the guess for steps of one row that feed as many tokens.

        A chunk does not compute the output head, but a guess need not be exact. The chunk with the cheapest
        tokens counts.
        """
        if num_tokens < MIN_CHUNK_TOKENS:
            return
        if self._chunk is None or seconds / num_tokens < self._chunk[1] / self._chunk[0]:
            self._chunk = num_tokens, seconds
            self._forget_guesses()

    def seconds(self, num_rows: int, width: int) -> float:
        """Return the measured or guessed seconds of a step of num_rows rows, each fed width tokens."""
        if (found := self._found.get((num_rows, width))) is None:
            found = self._found[num_rows, width] = self._interpolate(num_rows, width)
        return found

    def _forget_guesses(self) -> None:
        self._found: dict[Shape, float] = {shape: each.seconds for shape, each in self.measured.items()}
        self._curves: dict[int, list[tuple[float, float]]] = {}

    def _interpolate(self, num_rows: int, width: int) -> float:
        low, high, part = _locate(self.rows, num_rows)
        at_low, at_high = self._at_rows(low, width), self._at_rows(high, width)
        return max(at_low + part * (at_high - at_low), 1e-9)

    def _at_rows(self, num_rows: int, width: int) -> float:
        low, high, part = _locate(self.widths, width)
        at_low, at_high = self._cell(num_rows, low), self._cell(num_rows, high)
        return at_low + part * (at_high - at_low)

    def _cell(self, num_rows: int, width: int) -> float:
        found = self.measured.get((num_rows, width))
        return found.seconds if found else self._guess_s(num_rows, width)

    def _guess_s(self, num_rows: int, width: float) -> float:
        """Guess the seconds of a step by the widths measured with as many rows, or else with fewer rows."""
        curve = self._curve(num_rows)
        at = bisect_left(curve, (width,))
        if at < len(curve):
            (low, low_s), (high, high_s) = curve[max(at - 1, 0)], curve[at]
            return high_s if at == 0 else low_s + (width - low) / (high - low) * (high_s - low_s)
        (_, plain_s), (widest, widest_s) = curve[0], curve[-1]
        if widest > 1:
            return plain_s + max(widest_s - plain_s, 0.0) * math.pow((width - 1) / (widest - 1), GROWTH)
        if num_rows == 1:
            return plain_s * (1 + (width - 1) / CAUTIOUS_TOKENS)
        # As many rows and tokens as fewer rows with more tokens each, which only differ in what they attend
        # to.
        fewer = self._fewer(num_rows)
        by_tokens = self._guess_s(fewer, width * num_rows / fewer) / self._guess_s(fewer, num_rows / fewer)
        return plain_s * by_tokens

    def _curve(self, num_rows: int) -> list[tuple[float, float]]:
        """Return (width, seconds) of what is known for a number of rows, by width, starting at width 1."""
        if (found := self._curves.get(num_rows)) is None:
            known = {float(w): each.seconds for (rows, w), each in self.measured.items() if rows == num_rows}
            if 1.0 not in known:
                fewer = self._fewer(num_rows)
                known[1.0] = self._guess_s(fewer, num_rows / fewer)
            widest = max(known)
            if num_rows == 1 and self._chunk and self._chunk[0] > widest:
                known[self._chunk[0]] = max(self._chunk[1], known[widest])
            found = self._curves[num_rows] = sorted(known.items())
        return found

    def _fewer(self, num_rows: int) -> int:
        """Return the largest smaller number of rows of which anything was measured."""
        return max((rows for rows, _ in self.measured if rows < num_rows), default=1)


def without_guesses(found: Mapping[Shape, float]) -> dict[Shape, float]:
    """Drop the costs that earlier versions filled in, in proportion to the tokens of a smaller shape.

    They are recognized by that: no real measurement is proportional to another one to six digits.
    """

    def is_guess(shape: Shape) -> bool:
        rows, width = shape
        return any(
            math.isclose(found[shape], seconds * rows * width / (r * w), rel_tol=1e-6)
            for (r, w), seconds in found.items()
            if r <= rows and w <= width and (r, w) != shape
        )

    return {shape: seconds for shape, seconds in found.items() if not is_guess(shape)}


def _locate(grid: list[int], x: int) -> tuple[int, int, float]:
    """Return two neighboring grid points and the position of x between them, in [0, 1] within the grid."""
    if len(grid) == 1:
        return grid[0], grid[0], 0.0
    at = min(max(bisect_left(grid, x), 1), len(grid) - 1)
    low, high = grid[at - 1], grid[at]
    return low, high, (x - low) / (high - low)
