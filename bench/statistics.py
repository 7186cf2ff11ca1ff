"""Percentiles, rates and ratios. Pure functions over numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The 50th, 95th and 99th percentile of a distribution, in the unit of its values."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """Two series of rounds compared: the ratio of their medians, and the extreme ratios of single rounds."""

    of_medians: float
    lowest: float
    highest: float


def percentile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """Return the smallest value such that at least this share of the weight lies at or below it.

    weighted: (value, weight) pairs, at least one, weights > 0. share: in (0, 1].
    With equal weights this is the nearest-rank percentile: always a value that occurs, never an
    interpolation.
    """
    ordered = sorted(weighted)
    # The tolerance makes up for rounding errors in sums of fractional weights.
    needed = share * sum(weight for _, weight in ordered) - 1e-9
    passed = 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= needed:
            return value
    return ordered[-1][0]


def percentiles(weighted: Sequence[tuple[float, float]]) -> Percentiles | None:
    """Return p50, p95 and p99 of (value, weight) pairs; None if there are none."""
    if not weighted:
        return None
    return Percentiles(*(percentile(weighted, share) for share in (0.50, 0.95, 0.99)))


def compare(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Ratio | None:
    """Return the ratio of ours to theirs; None if no round has a value above 0 on both sides.

    A round that only one side finished is left out on both.
    """
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a and b]
    if not pairs:
        return None
    each = [a / b for a, b in pairs]
    return Ratio(median(a for a, _ in pairs) / median(b for _, b in pairs), min(each), max(each))


def rate(amount: float, seconds: float) -> float | None:
    """Return the amount per second; None if either is 0."""
    return amount / seconds if amount > 0 and seconds > 0 else None


def share_tokens(total: int, texts: Sequence[str], counted: Sequence[int]) -> list[float]:
    """Estimate the tokens of each chunk, adding up to total, where only the total is known.

    texts: the text of each chunk. counted: tokens of each text tokenized by itself, at least 1 each.
    If there are as many chunks as tokens, each has one. Otherwise the total is divided in proportion to
    counted, because a chunk of a drafting server may hold several tokens.
    """
    if len(texts) == total:
        return [1.0] * total
    scale = total / sum(counted) if counted else 0.0
    return [count * scale for count in counted]
