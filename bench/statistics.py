"""All statistics of the benchmarks: percentiles, ratios, lines, and intervals.

Intervals: runs of one chat share its length, its text and the state of the machine, so the chat is the unit
of sampling. Everything is recomputed without each chat in turn, and the spread of the results gives the
interval (delete-one jackknife, Student's t with the number of chats minus one as degrees of freedom).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


def percentile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """Return the smallest value such that at least this share of the weight lies at or below it.

    weighted: (value, weight) pairs, at least one, weights > 0. share: in (0, 1].
    """
    values, weights = zip(*weighted, strict=True)
    return float(np.quantile(values, share, weights=weights, method="inverted_cdf"))


def compare(ours: Sequence[float | None], theirs: Sequence[float | None]) -> dict[str, float] | None:
    """Return the ratio of the medians of ours and theirs, and the extreme ratios of single rounds.

    A round that only one side finished is left out; None if none is left.
    """
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a and b]
    if not pairs:
        return None
    each = [a / b for a, b in pairs]
    of_medians = median(a for a, _ in pairs) / median(b for _, b in pairs)
    return {"of_medians": of_medians, "lowest": min(each), "highest": max(each)}


def ratio(value: float | None, of: float | None) -> float | None:
    """Return value / of; None if either is missing or of is 0."""
    return value / of if value is not None and of else None


def fit_line(x: Floats, y: Floats) -> tuple[float, float]:
    """Return (a, b) of the least-squares line y = a + b x; a horizontal line if x does not vary."""
    b = float(np.cov(x, y, bias=True)[0, 1] / x.var()) if x.var() > 1e-12 else 0.0
    return float(y.mean() - b * x.mean()), b


def break_even(a: float, b: float) -> float:
    """Return the x at which a + b x is 1; nan if the line does not rise."""
    return (1.0 - a) / b if b > 1e-9 else np.nan


class Estimate(NamedTuple):
    """A value and its interval; low and high are None with fewer than three chats, or if it is unbounded."""

    value: float
    low: float | None = None
    high: float | None = None

    def fields(self, name: str) -> dict[str, float | None]:
        """Return the value, None if it is not finite, and the ends of the interval as fields of a row."""
        return {name: self.value if np.isfinite(self.value) else None, "low": self.low, "high": self.high}


def jackknife(groups: Iterable[object], estimate: Callable[[Mask], Sequence[float]]) -> list[Estimate]:
    """Estimate values and their intervals by leaving out one group at a time.

    groups: (n,) the chat of each run. estimate: computes the values from the runs where its mask is true.
    """
    of = np.array([*groups])
    names, whole = np.unique(of), [float(value) for value in estimate(np.full(len(of), True))]
    if (freedom := len(names) - 1) < 2:
        return [Estimate(value) for value in whole]
    without = np.array([estimate(of != name) for name in names], dtype=float)
    reach = student(freedom) * np.sqrt(freedom) * without.std(axis=0)
    ends = zip(whole, reach.tolist(), strict=True)
    return [Estimate(at, at - far, at + far) if np.isfinite(far) else Estimate(at) for at, far in ends]


def mean_of(values: Iterable[float]) -> Estimate:
    """Return the mean of one value per chat, with Student's interval, as the jackknife gives for a mean."""
    found = np.array([*values], dtype=float)
    return jackknife(range(len(found)), lambda mask: [float(found[mask].mean())])[0]


def geometric_mean_of(values: Iterable[float]) -> Estimate:
    """Return the geometric mean and its interval, from the mean of logarithms; for ratios like speedups."""
    value, *ends = mean_of(np.log(list(values)))
    return Estimate(float(np.exp(value)), *(None if end is None else float(np.exp(end)) for end in ends))


@cache
def student(freedom: int) -> float:
    """Return Student's t for the two-sided 95 % interval, in standard errors. freedom: degrees of freedom.

    With t = sqrt(freedom) tan(angle) the density becomes a power of a cosine, which is integrated
    numerically.
    """
    angles = np.linspace(0.0, np.pi / 2, 200_001)
    inside = np.cumsum(np.cos(angles) ** (freedom - 1))
    return float(np.sqrt(freedom) * np.tan(np.interp(0.95, inside / inside[-1], angles)))


def loops(tokens: Sequence[int]) -> bool:
    """Return whether an answer loops: more than a quarter of its 4-grams have occurred in it before."""
    runs = list(zip(*(tokens[at:] for at in range(4)), strict=False))
    return 4 * len(set(runs)) < 3 * len(runs)
