"""Percentiles, rates and ratios. Pure functions over numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Three points of a distribution, in the unit of its values."""

    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Ratio:
    """How two series of rounds compare: the ratio of their medians, and the extremes round by round."""

    of_medians: float
    lowest: float
    highest: float


def percentile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """The smallest value that at least this share of all weight does not exceed.

    weighted: (value, weight) pairs, at least one, weights > 0. share: in (0, 1].
    This is the nearest rank where all weights are 1: always a value that occurred, never one between.
    """
    ordered = sorted(weighted)
    # A hair less, lest sums of fractions fall short of the rank that they mean.
    needed = share * sum(weight for _, weight in ordered) - 1e-9
    passed = 0.0
    for value, weight in ordered:
        passed += weight
        if passed >= needed:
            return value
    return ordered[-1][0]


def percentiles(weighted: Sequence[tuple[float, float]]) -> Percentiles | None:
    """p50, p95 and p99 of (value, weight) pairs; None without any."""
    if not weighted:
        return None
    return Percentiles(*(percentile(weighted, share) for share in (0.50, 0.95, 0.99)))


def compare(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Ratio | None:
    """Ratio of ours to theirs, round by round; None where no round has a value above 0 on both sides.

    A round that one side could not finish counts for neither.
    """
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a and b]
    if not pairs:
        return None
    each = [a / b for a, b in pairs]
    return Ratio(median(a for a, _ in pairs) / median(b for _, b in pairs), min(each), max(each))


def rate(amount: float, seconds: float) -> float | None:
    """Amount per second; None where there was no time or nothing came."""
    return amount / seconds if amount > 0 and seconds > 0 else None


def share_tokens(total: int, texts: Sequence[str], counted: Sequence[int]) -> list[float]:
    """Tokens of each chunk, adding up to total, where only the total is known.

    texts: what each chunk brought. counted: tokens in each text by itself, at least 1 each.
    As many chunks as tokens: one each, whatever a tokenizer makes of the pieces. Otherwise in
    proportion to counted, as a chunk of a drafting server may hold many tokens.
    """
    if len(texts) == total:
        return [1.0] * total
    scale = total / sum(counted) if counted else 0.0
    return [count * scale for count in counted]
