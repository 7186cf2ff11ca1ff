"""The gate: how good drafts have been, and how wide a step they are worth."""

from collections.abc import Collection, Sequence

from drafters.base import Draft
from engine.speculative.draft_length import DraftEstimate

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

BucketKey = tuple[str, int]


class AcceptanceCounts:
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

    def __init__(
        self, everyone: AcceptanceCounts, doubt: float = 1.0, line_ends: Collection[int] = ()
    ) -> None:
        self.everyone = everyone
        self.doubt = doubt
        self.line_ends = line_ends
        self.own = AcceptanceCounts(DECAY)
        self._num_lines = 0

    def rate(self, draft: Draft) -> float:
        """The chance that the next token of such a draft is right, in (0, 1)."""
        key = draft.source, draft.bucket
        start = self.everyone.rate(key, draft.prior, GLOBAL_PRIOR_TOKENS)
        # What is no copy does not need the prompt to repeat itself.
        doubt = 1.0 if draft.source in FRESH_SOURCES else self.doubt
        return min(max(self.own.rate(key, start**doubt, PRIOR_TOKENS), 0.001), 0.998)

    def estimate(self, draft: Draft, rate: float) -> "DraftEstimate":
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
        return DraftEstimate(expected, tuple(stops), draft=draft)

    def learn(self, draft: Draft, num_verified: int, num_accepted: int) -> None:
        """num_offered tokens of a draft were compared with what the model said; so many came true."""
        num_wrong, lines, line_ends = (
            int(num_accepted < num_verified),
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


def count_accepted(draft: Sequence[int], sampled: Sequence[int]) -> int:
    """Count the leading draft tokens that the target chose too.

    draft: (k,) proposed ids. sampled: target ids, sampled[i] drawn after draft[:i]; may end early.

    Source: Leviathan et al. 2022, greedy and sampled cases alike (see engine/README.md).
    """
    num_accepted = 0
    for proposed, chosen in zip(draft, sampled, strict=False):
        if proposed != chosen:
            break
        num_accepted += 1
    return num_accepted
