"""Costs of steps by rows and width, and guesses for unmeasured shapes.

Between two known widths a guess is linear. Beyond the widest it follows a curve that flattens, as real costs
do: a forward pass reads the weights once, however many tokens it computes.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from reprise.engine.interface.request import GenerationRequest

Shape = tuple[int, int]
"""(rows, width) of a step."""

Table = Mapping[Shape, float]
"""(rows, width) -> seconds, or a ratio."""

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ROWS = (1, 2, 4, 8, 16, 32, 64)
"""The grid of shapes with separate costs."""

UNSEEN_S = 1e-6
"""Seconds of a plain step in a table that has only guesses: until a real step shows more, no belief may delay
anything."""

CAUTIOUS_TOKENS = 8
"""Until a wider step was measured, a step costs a plain step for every CAUTIOUS_TOKENS tokens."""

GROWTH = 0.9
"""Power of its tokens with which the cost of a step is guessed to grow beyond what is known."""


def grid_up_to(points: Iterable[int], last: int) -> list[int]:
    """Return the points of WIDTHS or ROWS below the last one, then the last one."""
    return sorted({point for point in points if point < last} | {last})


class CostTable:
    """The seconds of steps by shape (rows, width): measured, and guessed where no measurement is.

    measured: the seconds by shape, at least those of (1, 1).
    rows, widths: the grid of shapes; by default the measured ones. Costs are interpolated linearly between
        its points, and extrapolated beyond the last two.
    guesses: the estimated cost by shape, relative to a plain step of as many rows; measurements replace it.

    Raises ValueError if a cost is not positive and finite, or (1, 1) is missing.
    """

    def __init__(
        self,
        measured: Table,
        rows: Iterable[int] | None = None,
        widths: Iterable[int] | None = None,
        guesses: Table | None = None,
    ) -> None:
        if (1, 1) not in measured or not all(0 < seconds < math.inf for seconds in measured.values()):
            raise ValueError("costs must be positive seconds by rows and width, among them those of (1, 1)")
        self.measured = dict(measured)
        self.guesses = dict(guesses or {})
        self.rows = sorted(set(rows) if rows else {rows for rows, _ in measured})
        self.widths = sorted({1, *widths} if widths else {width for _, width in measured})
        self._forget_found()

    def put(self, shape: Shape, seconds: float) -> None:
        """Replace or add a measurement."""
        self.measured[shape] = seconds
        self.guesses.pop(shape, None)
        self._forget_found()

    def keep_only(self, shapes: Container[Shape]) -> None:
        """Drop all guesses, and the measurements of all shapes but these and plain steps."""
        self.measured = {s: each for s, each in self.measured.items() if s[1] == 1 or s in shapes}
        self.guesses = {}
        self._forget_found()

    def seconds(self, num_rows: int, width: int) -> float:
        """Return the measured or guessed seconds of a step of num_rows rows, each fed width tokens."""
        if (found := self._found.get((num_rows, width))) is None:

            def at_rows(rows: int) -> float:
                return _on_line(self.widths, width, partial(self._on_grid, rows))

            found = self._found[num_rows, width] = max(_on_line(self.rows, num_rows, at_rows), 1e-9)
        return found

    def _forget_found(self) -> None:
        self._found = dict(self.measured)
        self._curves: dict[int, list[tuple[float, float]]] = {}

    def _on_grid(self, num_rows: int, width: int) -> float:
        return self.measured.get((num_rows, width)) or self._guess_s(num_rows, width)

    def _guess_s(self, num_rows: int, width: float) -> float:
        """Guess the seconds of a step from the widths measured with as many rows, or else with fewer."""
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
        # As fewer rows with as many tokens together, which only differ in what they attend to.
        fewer = self._fewer(num_rows)
        by_tokens = self._guess_s(fewer, width * num_rows / fewer) / self._guess_s(fewer, num_rows / fewer)
        return plain_s * by_tokens

    def _curve(self, num_rows: int) -> list[tuple[float, float]]:
        """Return the known (width, seconds) for a number of rows, by width from 1 on."""
        if (found := self._curves.get(num_rows)) is None:
            known = {float(w): each for (rows, w), each in self.measured.items() if rows == num_rows}
            if 1.0 not in known:
                fewer = self._fewer(num_rows)
                known[1.0] = self._guess_s(fewer, num_rows / fewer)
            for (rows, width), ratio in self.guesses.items():
                if rows == num_rows:
                    known.setdefault(width, ratio * known[1.0])
            found = self._curves[num_rows] = sorted(known.items())
        return found

    def _fewer(self, num_rows: int) -> int:
        """Return the largest smaller number of rows with any measurement."""
        return max((rows for rows, _ in (*self.measured, *self.guesses) if rows < num_rows), default=1)


def _on_line(grid: list[int], x: int, value: Callable[[int], float]) -> float:
    """Return the value at x on the line through the values at the two grid points next to it."""
    if len(grid) == 1:
        return value(grid[0])
    at = min(max(bisect_left(grid, x), 1), len(grid) - 1)
    low, high = grid[at - 1 : at + 1]
    at_low = value(low)
    return at_low + (x - low) / (high - low) * (value(high) - at_low)


GREEDY, NOISY, ADJUSTED, MASKED = range(4)
"""Work of sampling a token: the highest logit; noise too; filters, penalties, bias or log probabilities
too; a grammar's mask too, for which every token is fetched before the next step."""


class Conditions(NamedTuple):
    """The conditions of a step. Every part only ever adds to the cost.

    context: class of the longest row's length; see context_class().
    sampling: the highest class of any row's sampling work.
    """

    context: int = 0
    sampling: int = GREEDY


USUAL = Conditions()
"""The conditions of tables and files of costs."""


def context_class(num_tokens: int) -> int:
    """Return the class of a context's length: 0 below 128 tokens, and one more for every doubling."""
    return (num_tokens // 128).bit_length()


def sampling_class(request: GenerationRequest) -> int:
    """Return the class of a request's sampling work without a grammar, from GREEDY up to ADJUSTED."""
    s = request.sampling
    is_filtered = s.temperature > 0 and (s.top_p < 1 or s.min_p > 0 or s.top_k > 0)
    if is_filtered or s.has_penalties or s.has_bias or request.top_logprobs is not None:
        return ADJUSTED
    return NOISY if s.temperature > 0 else GREEDY


MAX_DIFFERENCE = 0.4
"""Difference from which on it is a surprise if what it may be due to is not confirmed."""

MIN_NOISE = 0.3**2
"""Minimum variance of a step's seconds, on a log scale, when nothing changes."""

NOISE_RATE = 0.03
"""Share of the difference by which one step corrects that variance."""

SURPRISE = 3.0
"""Standard deviations from which on a difference counts as a surprise."""

CONFIRMED = 3
"""Steps after which an effect is no longer blamed for a surprise."""


@dataclass(slots=True)
class Effect:
    """One effect on the logarithm of a cost: its estimate, and how uncertain that is.

    variance: the estimate's variance, >= 0. drift: added to the variance at each step, as effects change.
    num_seen: steps from which the effect was learned.
    surprise: the last step's difference if this effect may have caused it as a surprise; else 0.
    """

    variance: float
    drift: float
    mean: float = 0.0
    num_seen: int = 0
    surprise: float = 0.0


@dataclass(slots=True)
class Noise:
    """How much steps vary under equal conditions: more on a busy machine.

    variance: of the logarithm of a step's seconds.
    """

    variance: float = MIN_NOISE

    def learn(self, effects: Sequence[Effect], shared: Effect, difference: float) -> bool:
        """Correct the effects and the noise by one step; return whether the step was a surprise.

        effects: those that apply to the step. A surprise is attributed to the first that few steps have
            confirmed.
        shared: the effect that applies to all steps, to which a surprise is attributed if all are confirmed.
        difference: the logarithm of the step's real seconds over the expected ones.
        """
        for each in effects:
            each.variance += each.drift
        known = sum([each.variance for each in effects])
        doubted = next((each for each in effects if each.num_seen < CONFIRMED), shared)
        limit = SURPRISE * math.sqrt(known + self.variance)
        if doubted.num_seen < CONFIRMED:
            limit = min(limit, MAX_DIFFERENCE)
        is_surprise = abs(difference) > limit
        # A surprise is believed when it repeats.
        is_believed = not is_surprise or doubted.surprise * difference > 0
        doubted.surprise = 0.0 if is_believed else difference
        if not is_surprise:
            # Short pauses are frequent, and say nothing about other steps.
            limit = math.sqrt(known + self.variance)
            difference = max(-limit, min(limit, difference))
        elif is_believed:
            known += difference**2 - doubted.variance
            doubted.variance = difference**2
        total = known + self.variance
        for each in effects:
            each.num_seen += 1
            if is_believed:
                share = each.variance / total
                each.mean += share * difference
                each.variance *= 1 - share
        if not is_surprise:
            self.variance = max(MIN_NOISE, self.variance + NOISE_RATE * (difference**2 - total))
        return is_surprise


@dataclass(frozen=True, slots=True)
class StepPrice:
    """The estimated cost of a verification step.

    num_rows, width: its shape. ratio: its seconds over those of a plain step of as many rows.
    is_seen: whether real steps had this shape.
    """

    num_rows: int
    width: int
    ratio: float
    is_seen: bool = False

    def describe(self) -> str:
        """Return the cost in words: "a step of 8 tokens costs 7.6 plain ones here (seen in real steps)"."""
        rows = f" for each of {self.num_rows} rows" if self.num_rows > 1 else ""
        source = "seen in real steps" if self.is_seen else "a guess"
        return f"a step of {self.width} tokens{rows} costs {self.ratio:.1f} plain ones here ({source})"
