"""Speeds and times of answers, by round and over all rounds. Rows are as in bench/serving/traffic.py."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from bench.experiment import Row
from bench.statistics import percentile, rate

Take = Callable[[Sequence[Row]], float | None]
"""Returns one figure of the answers of a round."""


def good(rows: Sequence[Row]) -> list[Row]:
    """Return the answers that did not fail."""
    return [row for row in rows if row["error"] is None]


def throughput(rows: Sequence[Row]) -> float | None:
    """Return all tokens divided by the time from the first request to the last answer."""
    wall_s = max((row["started_s"] + row["duration_s"] for row in rows), default=0.0)
    return rate(sum(row["tokens"] for row in good(rows)), wall_s)


def request_speed(rows: Sequence[Row]) -> float | None:
    """Return the speed per stream, prefill included: all tokens divided by the duration of their requests."""
    return rate(sum(row["tokens"] for row in good(rows)), sum(row["duration_s"] for row in good(rows)))


def decode_speed(rows: Sequence[Row]) -> float | None:
    """Return the speed per stream after the first text."""
    arrivals = [row["arrivals"] for row in good(rows) if row["arrivals"]]
    tokens = sum(tokens for one in arrivals for _, tokens in one[1:])
    return rate(tokens, sum(one[-1][0] - one[0][0] for one in arrivals))


def if_none_failed(take: Take) -> Take:
    """Return the same figure, None for a round in which a request failed."""
    return lambda rows: None if any(row["error"] for row in rows) else take(rows)


def first_tokens_s(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return (time to first text, 1) for every answer with text."""
    return [(row["arrivals"][0][0], 1.0) for row in good(rows) if row["arrivals"]]


def inter_tokens_s(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return (seconds per token, tokens) for every arrival but the first of every answer.

    The gap before an arrival is divided equally among its tokens, and each of them counts once.
    """
    return [
        ((at - before) / tokens, tokens)
        for row in good(rows)
        for (before, _), (at, tokens) in pairwise(row["arrivals"])
        if tokens > 0
    ]


def milliseconds(weighted: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return a percentile in milliseconds; None without values."""
    return 1000 * percentile(weighted, share) if weighted else None


def by_round(rows: Sequence[Row], arm: str, take: Take) -> list[float | None]:
    """Return a figure for each measured round."""
    numbers = sorted({row["round"] for row in rows if row["round"]})
    return [
        take([row for row in rows if (row["arm"], row["round"]) == (arm, number) and row["is_measured"]])
        for number in numbers
    ]


def middle(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are known; None if none is."""
    known = [value for value in values if value is not None]
    return median(known) if known else None
