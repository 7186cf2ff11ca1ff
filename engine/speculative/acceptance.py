"""The gate: how good drafts have been, and how wide a step they are worth."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from drafters.base import NO_DRAFT, Draft

DECAY = 0.97
"""What an observed token's weight is multiplied by at each later one of its bucket."""

GLOBAL_DECAY = 0.999
PRIOR_TOKENS = 4.0
"""As many observed tokens as the prior of a request counts for."""

GLOBAL_PRIOR_TOKENS = 15.0
LINE_END = "line end"
"""Source of the buckets for copied line ends: 0, 1, 2, or 3 and more of them came before in this answer."""

FRESH_SOURCES = frozenset({"draft-model", "grammar", "prediction"})
"""Drafts that are no copies of other text: they know themselves where a line is the last."""

LINE_END_PRIORS = (0.6, 0.85, 0.93, 0.98)
LINE_END_PRIOR_TOKENS = 2.0
GLOBAL_LINE_END_PRIOR_TOKENS = 10.0
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

    A copy often ends where a line does: a quoted record is one line of many. So at line ends it is not the
    draft's own rate that counts, but how often copies went on there, after as many lines of the answer.

    everyone: the tally of all requests; it sets where a request starts.
    doubt: >= 1, the power to which the prior is taken where the prompt does not look repetitive: short
        matches lose much by it, long ones little.
    line_ends: tokens that end a line.
    """

    def __init__(self, everyone: Tally, doubt: float = 1.0, line_ends: Collection[int] = ()) -> None:
        self.everyone = everyone
        self.doubt = doubt
        self.line_ends = line_ends
        self.own = Tally(DECAY)
        self._num_lines = 0

    def rate(self, draft: Draft) -> float:
        """The chance that the next token of such a draft is right, in (0, 1)."""
        key = draft.source, draft.bucket
        start = self.everyone.rate(key, draft.prior, GLOBAL_PRIOR_TOKENS)
        # What is no copy does not need the prompt to repeat itself.
        doubt = 1.0 if draft.source in FRESH_SOURCES else self.doubt
        return min(max(self.own.rate(key, start**doubt, PRIOR_TOKENS), 0.001), 0.998)

    def offer(self, draft: Draft, rate: float) -> "Offer":
        """What to expect of a draft whose tokens are right at this rate, but for line ends."""
        survival, lines, total, line_ends = 1.0, self._num_lines, 1.0, self._line_ends_in(draft)
        expected, stops = [total], []
        for at, token in enumerate(draft.tokens):
            if token in line_ends:
                survival *= min(rate, self._line_end_rate(lines))
                lines += 1
                stops.append(at)
            else:
                survival *= rate
            total += survival
            expected.append(total)
        return Offer(expected, tuple(stops), draft=draft)

    def learn(self, draft: Draft, num_offered: int, num_accepted: int) -> None:
        """num_offered tokens of a draft were compared with what the model said; so many came true."""
        num_wrong, lines, line_ends = (
            int(num_accepted < num_offered),
            self._num_lines,
            self._line_ends_in(draft),
        )
        for at, token in enumerate(draft.tokens[: num_accepted + num_wrong]):
            if token in line_ends:
                is_right = at < num_accepted
                self._add((LINE_END, min(lines, 3)), int(is_right), int(not is_right))
                lines += 1
                # A line's end says nothing against the draft.
                num_wrong &= is_right
        self._add((draft.source, draft.bucket), num_accepted, num_wrong)

    def pass_over(self, tokens: Sequence[int]) -> None:
        """These tokens were committed."""
        if self.line_ends:
            self._num_lines += sum(token in self.line_ends for token in tokens)

    def _line_ends_in(self, draft: Draft) -> Collection[int]:
        return () if draft.source in FRESH_SOURCES else self.line_ends

    def _line_end_rate(self, lines: int) -> float:
        key, prior = (LINE_END, min(lines, 3)), LINE_END_PRIORS[min(lines, 3)]
        start = self.everyone.rate(key, prior, GLOBAL_LINE_END_PRIOR_TOKENS)
        return self.own.rate(key, start, LINE_END_PRIOR_TOKENS)

    def _add(self, key: BucketKey, num_right: int, num_wrong: int) -> None:
        self.own.add(key, num_right, num_wrong)
        self.everyone.add(key, num_right, num_wrong)


def expected_tokens(rate: float, num_drafted: int) -> float:
    """Tokens that one step is expected to commit: the accepted ones and one more.

    rate: chance that a drafted token is right, if all before it were; below 1.
    Source: Leviathan et al. 2022, equation 1.
    """
    return (1.0 - rate ** (num_drafted + 1)) / (1.0 - rate)


@dataclass(frozen=True, slots=True)
class Offer:
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
        num_tokens = sum(o.expected[max(0, min(width - o.num_pending, o.num_tokens))] for o in offers)
        speed = num_tokens / step_s(width)
        if speed > best_speed and is_allowed(width):
            best, best_speed = width, speed
    return best
