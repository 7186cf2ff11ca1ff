"""Choose the length of drafts: the step width with the most expected tokens per second."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul

from reprise.drafters.base import NO_DRAFT, Draft, Slices
from reprise.engine.interface.spans import span

STEP_SLICES = 4
"""Slices of a step. Half take at most .06 ms, the longest .11: less than half a millisecond in all."""

STEP_SHARE, SLICE_S = 0.1, 0.0001
"""Beside a long step as many slices as this share of a plain step holds, if each takes so many seconds, as
few do. The device is busy meanwhile. In a second a step drafts nothing from what is not
indexed, so a slow model must not index as slowly."""

MAX_CLOSING = 64
"""Maximum number of finished texts that wait to be learned; the oldest is dropped first."""


class DrafterWork:
    """The pending slices of drafters' work for all sequences.

    Prompts are indexed in rotation, a slice of each, so that a short one never waits for a long one. Finished
    texts are learned one after the other, as drafters require, in as many slices as prompts get. A step does
    a bounded number of slices, and a slice has a bounded number of tokens, so no clock is read.

    step_slices, step_share: see STEP_SLICES and STEP_SHARE.
    """

    def __init__(self, step_slices: int = STEP_SLICES, step_share: float = STEP_SHARE) -> None:
        self.step_slices, self.step_share = step_slices, step_share
        self._indexing: dict[int, Slices] = {}
        self._closing: deque[Slices] = deque(maxlen=MAX_CLOSING)
        self._has_indexed = False

    @property
    def is_left(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._indexing or self._closing)

    def is_indexing(self, seq: int) -> bool:
        """Whether anything is left to index for a sequence."""
        return seq in self._indexing

    def index(self, seq: int, slices: Slices) -> None:
        """Queue the slices that index a sequence's prompt; closing the sequence drops them."""
        self._indexing[seq] = slices

    def close(self, seq: int, slices: Slices) -> None:
        """Drop the slices that index a sequence's prompt, and queue those that learn its finished text."""
        self._indexing.pop(seq, None)
        self._closing.append(slices)

    def advance(self, plain_s: float = 0.0) -> None:
        """Do one step's share of the work. plain_s: seconds of a plain step; 0 if not known."""
        if self.is_left:
            self._advance(max(self.step_slices, int(self.step_share * plain_s / SLICE_S)))

    @span("drafters")
    def _advance(self, num_slices: int) -> None:
        for _ in range(num_slices):
            self._do_slice()

    def finish(self) -> None:
        """Do all of the work at once."""
        while self.is_left:
            self._do_slice()

    def _do_slice(self) -> None:
        """Do the next slice, of prompts and finished texts alternately."""
        self._has_indexed = bool(self._indexing) and not (self._has_indexed and self._closing)
        if self._has_indexed:
            seq = next(iter(self._indexing))
            slices = self._indexing.pop(seq)
            if next(slices, None) is not None:
                self._indexing[seq] = slices
        elif self._closing and next(self._closing[0], None) is None:
            self._closing.popleft()


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
    """One row's best draft and its expected tokens. Without a draft num_tokens is 0.

    expected: (num_tokens + 1,) mean tokens that a step commits with the first 0, 1, 2, ... tokens.
    stops: lengths at which the draft becomes less certain, so it may be cut there.
    draft: the drafted tokens and their source. The draft model makes its tokens once the width is known.
    splits: (num_tokens + 1,) how many of 0, 1, 2, ... tokens are the draft's if masks follow it; else empty.
        With masks, expected includes their gain in the next step.
    is_worth: whether the draft would pay if all rows were like this one.
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

    def num_at(self, width: int) -> int:
        """Return how many drafted tokens and masks a row feeds in a step of this width."""
        return min(width, len(self.expected)) - 1

    def num_text_at(self, width: int) -> int:
        """Return how many drafted tokens, without masks, a row feeds in a step of this width."""
        return self.splits[self.num_at(width)] if self.splits else self.num_at(width)


def sum_up(rates: Sequence[float]) -> tuple[float, ...]:
    """Return DraftEstimate.expected for tokens with these acceptance rates."""
    return tuple(accumulate(accumulate(rates, mul), initial=1.0))


@lru_cache(maxsize=64)
def steady(rate: float, num_tokens: int) -> tuple[float, ...]:
    """Return sum_up() for equal rates. Cached, as rows that copy well share the highest rate."""
    return sum_up([rate] * num_tokens)


def pays(estimate: DraftEstimate, widths: Iterable[int], step_s: Callable[[int], float]) -> bool:
    """Return whether choose_width() would choose one of these widths if all rows were like this one."""
    expected, min_speed = estimate.expected, MIN_GAIN / step_s(1)
    # any() takes twice as long, and this runs for every draft of every plan.
    for width in widths:  # noqa: SIM110
        if expected[width - 1] > min_speed * step_s(width):
            return True
    return False


def tokens_by_width(estimates: Sequence[DraftEstimate]) -> list[float]:
    """Return the tokens that all rows commit on average in steps of width 1, 2, ... up to the widest."""
    widest, rows = max([len(e.expected) for e in estimates]), []
    for expected in [e.expected for e in estimates]:
        # A row that drafts less brings no more tokens in wider steps.
        lacking = [expected[-1]] * (widest - len(expected))
        rows.append([*expected, *lacking] if lacking else expected)
    return list(map(sum, zip(*rows, strict=True)))


def choose_width(
    estimates: Sequence[DraftEstimate],
    widths: Iterable[int],
    step_s: Callable[[int], float],
    is_allowed: Callable[[int], bool],
) -> int:
    """Choose the width of the next step, the same for all rows; 1 means a plain step.

    The choice has the most expected tokens per second, if that exceeds plain decoding by MIN_GAIN.
    widths: the candidates. step_s: expected seconds of a step of that width.
    is_allowed: whether every row's slowdown budget allows that width.
    """
    num_tokens = tokens_by_width(estimates)
    widest = len(num_tokens)
    speeds = {width: num_tokens[min(width, widest) - 1] / step_s(width) for width in widths}
    min_speed = MIN_GAIN * len(estimates) / step_s(1)
    worth = [width for width, speed in speeds.items() if speed > min_speed]
    # The best that is allowed: is_allowed() takes long, so few widths are checked.
    return next(filter(is_allowed, sorted(worth, key=speeds.__getitem__, reverse=True)), 1)
