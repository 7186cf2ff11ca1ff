"""The gate: how good drafts have been, and how wide a step they are worth."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from drafters.base import NO_DRAFT, Draft

DECAY = 0.97
"""What an observed token's weight is multiplied by at each later one of its bucket."""

GLOBAL_DECAY = 0.999
PRIOR_TOKENS = 4.0
"""As many observed tokens as the prior of a request counts for."""

GLOBAL_PRIOR_TOKENS = 30.0
LEAST_GAIN = 1.03
"""Tokens per second over plain that a wide step must promise: below it noise would decide."""

BucketKey = tuple[str, int]


class Tally:
    """Decayed counts of right and of all observed tokens, by (source, bucket)."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.counts: dict[BucketKey, tuple[float, float]] = {}

    def add(self, key: BucketKey, num_right: int, num_wrong: int) -> None:
        """Count observed tokens, the right ones first."""
        right, total = self.counts.get(key, (0.0, 0.0))
        for is_right in (1.0,) * num_right + (0.0,) * num_wrong:
            right, total = right * self.decay + is_right, total * self.decay + 1.0
        self.counts[key] = right, total

    def rate(self, key: BucketKey, prior: float, prior_tokens: float) -> float:
        """The share that was right, drawn towards the prior while little was observed."""
        right, total = self.counts.get(key, (0.0, 0.0))
        return (right + prior * prior_tokens) / (total + prior_tokens)


class Acceptance:
    """How likely a drafted token is right, learned over one request and, slowly, over all.

    everyone: the tally of all requests; it sets where a request starts.
    doubt: >= 1, the power to which the prior is taken where the prompt does not look repetitive: short
        matches lose much by it, long ones little.
    """

    def __init__(self, everyone: Tally, doubt: float = 1.0) -> None:
        self.everyone = everyone
        self.doubt = doubt
        self.own = Tally(DECAY)

    def rate(self, draft: Draft) -> float:
        """The chance that the next token of such a draft is right, in (0, 1)."""
        key = draft.source, draft.bucket
        start = self.everyone.rate(key, draft.prior, GLOBAL_PRIOR_TOKENS)
        return min(max(self.own.rate(key, start**self.doubt, PRIOR_TOKENS), 0.001), 0.998)

    def learn(self, draft: Draft, num_offered: int, num_accepted: int) -> None:
        """num_offered tokens of a draft were compared with what the model said; so many came true."""
        key, num_wrong = (draft.source, draft.bucket), int(num_accepted < num_offered)
        self.own.add(key, num_accepted, num_wrong)
        self.everyone.add(key, num_accepted, num_wrong)


def expected_tokens(rate: float, num_drafted: int) -> float:
    """Tokens that one step is expected to commit: the accepted ones and one more.

    rate: chance that a drafted token is right, if all before it were; below 1.
    Source: Leviathan et al. 2022, equation 1.
    """
    return (1.0 - rate ** (num_drafted + 1)) / (1.0 - rate)


@dataclass(frozen=True, slots=True)
class Offer:
    """One row's best draft and its chance. Rows without a draft offer nothing: num_tokens is 0.

    num_pending: tokens that must be fed before the draft, 1 but after a partial rollback.
    draft: where the tokens come from; the draft model's are made only once the width is known.
    is_worth: whether a step of its own would pay.
    """

    num_tokens: int
    rate: float
    num_pending: int = 1
    draft: Draft = NO_DRAFT
    is_worth: bool = False


def choose_width(
    offers: Sequence[Offer],
    widths: Iterable[int],
    step_s: Callable[[int], float],
    is_allowed: Callable[[int], bool],
) -> int:
    """The width in tokens of one step over all rows that promises most tokens per second; 1 for a plain one.

    widths: those in question; step_s: seconds of a step that wide; is_allowed: the ledgers' word on it.
    """
    best, best_speed = 1, LEAST_GAIN * len(offers) / step_s(1)
    for width in widths:
        num_tokens = sum(
            expected_tokens(o.rate, max(0, min(width - o.num_pending, o.num_tokens))) for o in offers
        )
        speed = num_tokens / step_s(width)
        if speed > best_speed and is_allowed(width):
            best, best_speed = width, speed
    return best
