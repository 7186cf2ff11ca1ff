"""Measured costs of steps, and guesses for the shapes that were not measured.

Between two measured widths a guess is linear. Beyond the widest it follows a curve that flattens, as real
costs do: a forward pass reads the weights once, however many tokens it computes.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reprise.engine.interface.request import GenerationRequest

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


FIRST_CONTEXT_TOKENS = 128

GREEDY, NOISY, ADJUSTED, MASKED = range(4)
"""Work of sampling a token: the highest logit; noise too; filters, penalties, bias or log probabilities
too; a grammar's mask too, for which every token is fetched before the next step."""


class Conditions(NamedTuple):
    """The conditions of a step. Every part only ever adds to the cost.

    context: class of the longest row's length; see context_class().
    sampling: the highest sampling_class() of any row.
    """

    context: int = 0
    sampling: int = GREEDY


USUAL = Conditions()
"""The conditions under which costs are measured in advance."""


def context_class(num_tokens: int) -> int:
    """Return the class of a context's length: 0 below 128 tokens, and one more for every doubling."""
    return (num_tokens // FIRST_CONTEXT_TOKENS).bit_length()


def sampling_class(request: GenerationRequest) -> int:
    """Return the class of the work that sampling a request's tokens takes, from GREEDY up to MASKED."""
    s = request.sampling
    if request.grammar and request.grammar.trigger is None:
        return MASKED
    is_filtered = s.temperature > 0 and (s.top_p < 1 or s.min_p > 0 or s.top_k > 0)
    has_penalties = s.presence_penalty or s.frequency_penalty or s.repetition_penalty != 1
    if is_filtered or has_penalties or s.has_bias or request.top_logprobs is not None:
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
"""Steps after which an effect is no longer what a surprise is due to."""


@dataclass(slots=True)
class Effect:
    """One effect on the logarithm of a cost: its estimate, and how uncertain that is.

    variance: the estimate's variance, >= 0. drift: what each step adds to the variance, as effects change.
    num_seen: steps from which the effect was learned.
    surprise: the last step's difference if that was a surprise which this effect may have caused; else 0.
    """

    variance: float
    drift: float
    mean: float = 0.0
    num_seen: int = 0
    surprise: float = 0.0


class Noise:
    """How much steps vary when nothing changes: more on a busy machine.

    variance: of the logarithm of a step's seconds.
    """

    def __init__(self) -> None:
        self.variance = MIN_NOISE

    def learn(self, effects: Sequence[Effect], shared: Effect, difference: float) -> bool:
        """Correct the effects and the noise by one step; return whether the step was a surprise.

        effects: those that apply to the step. A surprise is due to the first that few steps have confirmed.
        shared: the effect that applies to all steps. If all are confirmed, a surprise is due to this one.
        difference: the logarithm of the step's real seconds over the expected ones.
        """
        for each in effects:
            each.variance += each.drift
        known = sum([each.variance for each in effects])
        square = difference * difference
        doubted = next((each for each in effects if each.num_seen < CONFIRMED), shared)
        limit = SURPRISE * math.sqrt(known + self.variance)
        if doubted.num_seen < CONFIRMED:
            limit = min(limit, MAX_DIFFERENCE)
        if is_surprise := abs(difference) > limit:
            if doubted.surprise * difference > 0:
                known += square - doubted.variance
                doubted.variance, doubted.surprise = square, 0.0
                self._correct(effects, difference, known + self.variance)
            else:
                doubted.surprise = difference
        else:
            doubted.surprise = 0.0
            # Short pauses are frequent, and say nothing about other steps.
            limit = math.sqrt(known + self.variance)
            difference = max(-limit, min(limit, difference))
            self._correct(effects, difference, known + self.variance)
            noise = self.variance + NOISE_RATE * (difference * difference - known - self.variance)
            self.variance = max(MIN_NOISE, noise)
        for each in effects:
            each.num_seen += 1
        return is_surprise

    def _correct(self, effects: Sequence[Effect], difference: float, total: float) -> None:
        for each in effects:
            share = each.variance / total
            each.mean += share * difference
            each.variance *= 1 - share


@dataclass(frozen=True, slots=True)
class StepPrice:
    """The believed cost of a verification step.

    num_rows, width: its shape. ratio: its seconds over those of a plain step of as many rows.
    is_seen: whether real steps had this shape. is_measured: whether its cost was measured while idle.
    measured_at: when it was measured, in seconds since the epoch; None if not known.
    """

    num_rows: int
    width: int
    ratio: float
    is_seen: bool = False
    is_measured: bool = False
    measured_at: float | None = None

    def describe(self, now: float | None = None) -> str:
        """Return the cost in words: "a step of 8 tokens costs 7.6 plain ones here (measured 3 minutes ago)".

        now: seconds since the epoch.
        """
        source = "a guess"
        if self.is_seen:
            source = "seen in real steps"
        elif self.is_measured:
            source = "measured" + (_ago(self.measured_at, now or time.time()) if self.measured_at else "")
        rows = f" for each of {self.num_rows} rows" if self.num_rows > 1 else ""
        return f"a step of {self.width} tokens{rows} costs {self.ratio:.1f} plain ones here ({source})"


def _ago(measured_at: float, now: float) -> str:
    passed_s = max(0.0, now - measured_at)
    for unit_s, name in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if passed_s >= unit_s:
            num = int(passed_s // unit_s)
            return f" {num} {name}{'s' if num > 1 else ''} ago"
    return " just now"
