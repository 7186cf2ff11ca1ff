"""Choose how long drafts are: the step width that promises the most tokens per second."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from drafters.base import NO_DRAFT, Draft

MIN_GAIN = 1.03
"""Speedup over plain decoding that a verification step must promise; below it, noise would decide."""


def expected_tokens(rate: float, num_drafted: int) -> float:
    """Return the tokens that one step commits on average: the accepted ones and the bonus token.

    rate: the chance that a drafted token is accepted if all before it were; below 1.
    Source: Leviathan et al. 2022, equation 1.
    """
    return (1.0 - rate ** (num_drafted + 1)) / (1.0 - rate)


@dataclass(slots=True)
class DraftEstimate:
    """One row's best draft, and what to expect of it. A row without a draft has num_tokens 0.

    expected: (num_tokens + 1,) tokens that a step commits on average with the first 0, 1, 2, ... tokens.
    stops: lengths at which the draft becomes much less certain.
    draft: the drafted tokens and their source; the draft model makes its tokens once the width is known.
    is_worth: whether the draft pays in a step where all rows are like this one.
    """

    expected: Sequence[float] = (1.0,)
    stops: tuple[int, ...] = ()
    draft: Draft = NO_DRAFT
    is_worth: bool = False

    @property
    def num_tokens(self) -> int:
        """Drafted tokens."""
        return len(self.expected) - 1


def steady(rate: float, num_tokens: int) -> tuple[float, ...]:
    """Return DraftEstimate.expected for tokens that are all accepted at the same rate."""
    return tuple(expected_tokens(rate, num_drafted) for num_drafted in range(num_tokens + 1))


def is_any_width_worth(
    estimate: DraftEstimate, widths: Iterable[int], step_s: Callable[[int], float]
) -> bool:
    """Return whether choose_width() would choose any width above 1 if all rows were like this one.

    widths, step_s: as for choose_width(), of all rows.
    """
    best_speed, expected = MIN_GAIN / step_s(1), estimate.expected
    return any(expected[min(width - 1, estimate.num_tokens)] / step_s(width) > best_speed for width in widths)


def choose_width(
    estimates: Sequence[DraftEstimate],
    widths: Iterable[int],
    step_s: Callable[[int], float],
    is_allowed: Callable[[int], bool],
) -> int:
    """Choose the width of the next step, the same for all rows; 1 means a plain step.

    The one that promises the most tokens per second is chosen, if it exceeds plain decoding by MIN_GAIN.
    widths: the candidates. step_s: expected seconds of a step of that width.
    is_allowed: whether every row's slowdown budget allows that width.
    """
    rows = [(e.num_tokens, e.expected) for e in estimates]
    best, best_speed = 1, MIN_GAIN * len(rows) / step_s(1)
    for width in widths:
        # Conditions instead of min() and max(): this runs for every row and width of every plan.
        num_tokens = sum([expected[width - 1 if width <= last else last] for last, expected in rows])
        speed = num_tokens / step_s(width)
        if speed > best_speed and is_allowed(width):
            best, best_speed = width, speed
    return best
