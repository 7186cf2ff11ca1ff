"""Judge repeated times of one request by the bound on how much drafting may slow it down. Pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt
from statistics import mean, median, quantiles
from typing import Literal

from engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS, PROBING_SHARE

Verdict = Literal["within", "unclear", "over"]

NOISE_ERRORS = 3.0
"""Standard errors by which two medians may differ by chance."""

MAX_CHANCE = 0.001
"""Probability below which an excess of slow drafted runs is not taken for chance."""

_STANDARD_ERROR = 1.31
"""Standard error of the difference of two medians of n values each, in interquartile ranges over sqrt(n).

For normal noise: sqrt(pi / 2) * sqrt(2) standard deviations over sqrt(n); one is 0.741 interquartile ranges.
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """The time of one request up to some point, in seconds, with drafting and without.

    plain_s, drafted_s: medians. bound_s: the most that drafted_s may be. noise_s: how much the medians may
    differ by chance. num_slow_plain, num_slow_drafted: runs above bound_s by more than noise_s.
    verdict: "over" for what is above the bound beyond the noise, and in each round; neither is chance.
    "unclear" is above the bound otherwise.
    """

    plain_s: float
    drafted_s: float
    bound_s: float
    noise_s: float
    num_slow_plain: int
    num_slow_drafted: int
    verdict: Verdict


def judge(
    plain_s: Sequence[tuple[float, float]],
    drafted_s: Sequence[tuple[float, float]],
    step_s: float,
    overhead: float,
) -> Judged:
    """Judge repeated times of one request.

    plain_s, drafted_s: (rounds, 2) seconds of the runs of each round, at least one round.
    step_s: seconds of a plain step. overhead: the setting draft_overhead.
    """

    def bound_s(seconds: float) -> float:
        return (1 + overhead + PROBING_SHARE) * seconds + ALLOWANCE_STEPS * step_s

    plain = [seconds for pair in plain_s for seconds in pair]
    drafted = [seconds for pair in drafted_s for seconds in pair]
    # Only the plain times: what drafting does may itself vary, and that must not hide it.
    lower, _, upper = quantiles(plain, n=4, method="inclusive")
    noise_s = NOISE_ERRORS * _STANDARD_ERROR * (upper - lower) / sqrt(len(plain))
    limit_s, slow_s = bound_s(median(plain)), bound_s(median(plain)) + noise_s
    verdict: Verdict = "within"
    if median(drafted) > limit_s:
        rounds = zip(plain_s, drafted_s, strict=True)
        is_over = median(drafted) > slow_s and all(mean(d) > bound_s(mean(p)) for p, d in rounds)
        verdict = "over" if is_over else "unclear"
    return Judged(
        median(plain), median(drafted), limit_s, noise_s, sum(one > slow_s for one in plain),
        sum(one > slow_s for one in drafted), verdict,
    )  # fmt: skip


def is_chance(num_slow_plain: int, num_slow_drafted: int) -> bool:
    """Whether so many more of the drafted runs than of the plain ones may be slow by chance (sign test).

    A disturbance of the machine hits either with the same probability, because they alternate.
    """
    num = num_slow_plain + num_slow_drafted
    num_as_bad = sum(comb(num, k) for k in range(num_slow_drafted, num + 1))
    return bool(num_as_bad / 2**num > MAX_CHANCE)
