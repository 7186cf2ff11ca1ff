"""Choose how many tokens the next step verifies: the width that promises most tokens per second."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from drafters.base import NO_DRAFT, Draft

MIN_GAIN = 1.03
"""Tokens per second over plain that a wide step must promise: below it noise would decide."""


def expected_tokens(rate: float, num_drafted: int) -> float:
    """Tokens that one step is expected to commit: the accepted ones and one more.

    rate: chance that a drafted token is right, if all before it were; below 1.
    Source: Leviathan et al. 2022, equation 1.
    """
    return (1.0 - rate ** (num_drafted + 1)) / (1.0 - rate)


@dataclass(frozen=True, slots=True)
class DraftEstimate:
    """One row's best draft and what to expect of it. Rows without a draft offer nothing: num_tokens is 0.

    expected: (num_tokens + 1,) tokens that a step commits on average with 0, 1, 2, ... of the draft's.
    stops: numbers of tokens after which the draft is much less sure than before.
    num_pending: tokens that must be fed before the draft, 1 but after a partial rollback.
    draft: where the tokens come from; the draft model's are made only once the width is known.
    is_worth: whether a step of its own would pay.
    """

    expected: Sequence[float] = (1.0,)
    stops: tuple[int, ...] = ()
    num_pending: int = 1
    draft: Draft = NO_DRAFT
    is_worth: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the draft."""
        return len(self.expected) - 1


def steady(rate: float, num_tokens: int) -> tuple[float, ...]:
    """What to expect, as an Offer takes it, of tokens that are all right at the same rate."""
    return tuple(expected_tokens(rate, num_drafted) for num_drafted in range(num_tokens + 1))


def choose_width(
    estimates: Sequence[DraftEstimate],
    widths: Iterable[int],
    step_s: Callable[[int], float],
    is_allowed: Callable[[int], bool],
) -> int:
    """The width in tokens of one step over all rows that promises most tokens per second; 1 for a plain one.

    widths: those in question; step_s: seconds of a step that wide; is_allowed: the ledgers' word on it.
    """
    best, best_speed = 1, MIN_GAIN * len(estimates) / step_s(1)
    for width in widths:
        num_tokens = sum(o.expected[max(0, min(width - o.num_pending, o.num_tokens))] for o in estimates)
        speed = num_tokens / step_s(width)
        if speed > best_speed and is_allowed(width):
            best, best_speed = width, speed
    return best
