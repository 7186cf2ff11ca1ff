"""All statistics of the benchmarks: percentiles, ratios, lines, and answers that loop."""

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


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


def ratio_interval(pairs: Sequence[tuple[float, float]]) -> tuple[float | None, float | None]:
    """Return the 90 % interval of a ratio of sums, by drawing the (part, whole) pairs anew a thousand times.

    (None, None) for fewer than five pairs.
    """
    if len(pairs) < 5:
        return None, None
    drawn = np.random.default_rng(1).integers(len(pairs), size=(1000, len(pairs)))
    parts, wholes = np.array(pairs, float)[drawn].sum(axis=1).T
    low, high = np.quantile(parts / wholes, (0.05, 0.95))
    return float(low), float(high)


def fit_line(x: Floats, y: Floats) -> tuple[float, float]:
    """Return (a, b) of the least-squares line y = a + b x; a horizontal line if x does not vary."""
    b = float(np.cov(x, y, bias=True)[0, 1] / x.var()) if x.var() > 1e-12 else 0.0
    return float(y.mean() - b * x.mean()), b


def break_even(a: float, b: float) -> float:
    """Return the x at which a + b x is 1; nan if the line does not rise."""
    return (1.0 - a) / b if b > 1e-9 else np.nan


def loops(tokens: Sequence[int]) -> bool:
    """Return whether an answer loops: more than a quarter of its 4-grams have occurred in it before."""
    runs = list(zip(*(tokens[at:] for at in range(4)), strict=False))
    return 4 * len(set(runs)) < 3 * len(runs)
