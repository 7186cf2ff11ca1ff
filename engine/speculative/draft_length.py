"""Choose how long drafts are: the step width that promises the most tokens per second."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reprise.drafters.base import NO_DRAFT, Draft

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
    """One row's best draft, and the tokens that it promises. A row without a draft has num_tokens 0.

    expected: (num_tokens + 1,) tokens that a step commits on average with the first 0, 1, 2, ... tokens.
    stops: lengths at which the draft becomes less certain, and so may be cut.
    draft: the drafted tokens and their source; the draft model makes its tokens once the width is known.
    splits: (num_tokens + 1,) how many of 0, 1, 2, ... tokens are the draft's, if the others are masks behind
        it; else empty. Then expected also counts what masks bring in the next step.
    is_worth: whether the draft pays in a step where all rows are like this one.
    """

    expected: Sequence[float] = (1.0,)
    stops: tuple[int, ...] = ()
    draft: Draft = NO_DRAFT
    is_worth: bool = False
    splits: Sequence[int] = ()

    @property
    def num_tokens(self) -> int:
        """The number of drafted tokens, and of masks behind them."""
        return len(self.expected) - 1


def steady(rate: float, num_tokens: int) -> tuple[float, ...]:
    """Return the tokens that a step commits on average with 0, 1, ... num_tokens drafted ones of one rate."""
    return tuple(expected_tokens(rate, num_drafted) for num_drafted in range(num_tokens + 1))


Demands = Sequence[tuple[int, float]]
"""Lengths of drafts, with the tokens that a step must bring on average with such a draft to pay."""


def find_demands(widths: Iterable[int], step_s: Callable[[int], float]) -> Demands:
    """Return the tokens that drafts must promise for choose_width() to choose these widths.

    widths, step_s: as for choose_width(), of rows that are all alike.
    """
    min_speed = MIN_GAIN / step_s(1)
    return [(width - 1, min_speed * step_s(width)) for width in widths]


def meets_any(estimate: DraftEstimate, demands: Demands) -> bool:
    """Return whether an estimate promises more tokens than one demand asks, of demands no longer than it."""
    expected = estimate.expected
    # any() takes twice as long, and this runs for every draft of every plan.
    for num_drafted, num_tokens in demands:  # noqa: SIM110
        if expected[num_drafted] > num_tokens:
            return True
    return False


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
    widest = max([len(e.expected) for e in estimates])
    rows = [e.expected if len(e.expected) == widest else _tokens_by_width(e, widest) for e in estimates]
    num_tokens = list(map(sum, zip(*rows, strict=True)))
    speeds = {width: num_tokens[min(width, widest) - 1] / step_s(width) for width in widths}
    min_speed = MIN_GAIN * len(rows) / step_s(1)
    worth = [width for width, speed in speeds.items() if speed > min_speed]
    # The best that is allowed: is_allowed() takes long, so few widths are checked.
    return next(filter(is_allowed, sorted(worth, key=speeds.__getitem__, reverse=True)), 1)


def _tokens_by_width(estimate: DraftEstimate, widest: int) -> Sequence[float]:
    """Return the tokens that a row commits on average in steps of width 1, 2, ... widest."""
    return [*estimate.expected, *[estimate.expected[-1]] * (widest - len(estimate.expected))]
