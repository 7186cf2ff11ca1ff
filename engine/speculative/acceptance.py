"""Learn acceptance rates: how likely a drafted token is accepted, by kind of draft."""

import hashlib
import json
import logging
from collections.abc import Sequence
from itertools import compress, count
from math import inf
from pathlib import Path
from typing import get_args

from reprise.config.atomic_files import read_object, write_in_folder
from reprise.config.settings import Settings
from reprise.drafters.base import Draft
from reprise.engine.interface.models import HeadKind
from reprise.engine.speculative.draft_length import DraftEstimate, steady, sum_up

DECAY = 0.97
"""Factor on the weight of an observed token for each later one of the same bucket."""

GLOBAL_DECAY = 0.999
"""The same for the counts over all requests."""

PRIOR_TOKENS = 4.0
"""A request's prior, the rate over all requests, counts as much as this many observed tokens."""

GLOBAL_PRIOR_TOKENS = 15.0
"""The prior over all requests, Draft.prior, counts as much as this many."""

LINE_END = "line end"
"""Source of the buckets for copied line ends, by how many lines the answer has: 0, 1, 2, or 3 and more."""

MODEL = "draft-model"
MODELS = (MODEL, *get_args(HeadKind))
"""The sources of drafts that a model makes: the draft model, or a head of the target. A server has one."""

FRESH_SOURCES = frozenset({*MODELS, "grammar", "prediction", "wedlm", "wedlm place"})
"""Sources of drafts that copy no earlier text, so that their line ends are like any other token."""

LINE_END_PRIORS = (0.6, 0.85, 0.93, 0.98)
LINE_END_PRIOR_TOKENS = 2.0
GLOBAL_LINE_END_PRIOR_TOKENS = 10.0

SUPPORT, EXPECTED = "support", "expected"
"""Sources of the buckets for tokens by their support, see Draft: those accepted, and the sum of their rates
without it."""

SUPPORT_ODDS = (
    1.3,
    0.85, 1.8, 0.9, 3.0, 0.95, 8.0,
    0.6, 0.8, 0.6, 1.8, 0.5, 7.0,
    0.4, 0.75, 0.4, 1.5, 0.3, 6.5,
    0.3, 0.65, 0.2, 1.4, 0.15, 9.0,
)  # fmt: skip
"""AcceptanceCounts.odds() before any token was observed: for the supports of drafters/copies/answers.py, as
measured in agents' sessions."""

SUPPORT_PRIOR_TOKENS = 20.0
"""SUPPORT_ODDS count as much as this many observed tokens."""

MAX_ODDS = 20.0

MAX_RATE = 0.998
"""No token is surer than this."""

BucketKey = tuple[str, int]


class AcceptanceCounts:
    """Decayed counts of accepted and of all observed tokens, by (source, bucket)."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.counts: dict[BucketKey, tuple[float, float]] = {}

    def add(self, key: BucketKey, num_accepted: int, num_rejected: int) -> None:
        """Count observed tokens, the accepted ones first."""
        self._count(key, (1.0,) * num_accepted + (0.0,) * num_rejected)

    def _count(self, key: BucketKey, shares: Sequence[float]) -> None:
        accepted, total = self.counts.get(key, (0.0, 0.0))
        for share in shares:
            accepted, total = accepted * self.decay + share, total * self.decay + 1.0
        self.counts[key] = accepted, total

    def fade(self, source: str, factor: float) -> None:
        """Multiply all counts of a source's drafts by a factor, so that new observations weigh more."""
        for key, (accepted, total) in self.counts.items():
            if key[0] == source:
                self.counts[key] = accepted * factor, total * factor

    def rate(self, key: BucketKey, prior: float, prior_tokens: float) -> float:
        """Return the accepted share of the observed tokens, drawn toward the prior while those are few."""
        accepted, total = self.counts.get(key, (0.0, 0.0))
        return (accepted + prior * prior_tokens) / (total + prior_tokens)

    def add_support(self, support: int, expected_rate: float, is_accepted: bool) -> None:
        """Count a token with this support. expected_rate: its chance of acceptance without it."""
        self._count((SUPPORT, support), (float(is_accepted),))
        self._count((EXPECTED, support), (expected_rate,))

    def odds(self, support: int) -> float:
        """Return by how much a support multiplies the odds that a token is accepted."""
        accepted, total = self.counts.get((SUPPORT, support), (0.0, 0.0))
        expected, num_expected = self.counts.get((EXPECTED, support), (0.0, 0.0))
        if not num_expected:
            accepted = total = 0.0
        rate = min(max(expected / num_expected, 0.001), MAX_RATE) if num_expected else 0.8
        prior = _with_odds(rate, SUPPORT_ODDS[support] if support < len(SUPPORT_ODDS) else 1.0)
        now = (accepted + prior * SUPPORT_PRIOR_TOKENS) / (total + SUPPORT_PRIOR_TOKENS)
        return min(max(now / (1.0 - now) / rate * (1.0 - rate), 1.0 / MAX_ODDS), MAX_ODDS)


def _with_odds(rate: float, odds: float) -> float:
    """Return a rate whose odds are multiplied."""
    return rate * odds / (1.0 - rate + rate * odds)


class Acceptance:
    """How likely a drafted token is accepted, learned over one request and, slowly, over all requests.

    Copies often end at a line end, as when one record out of many is quoted. So line ends have their own
    acceptance rates, by the number of lines that the answer already has, instead of their draft's.

    global_counts: the counts over all requests, from which a request starts.
    doubt: >= 1, the power to which the prior is raised if the prompt does not look repetitive. It lowers the
        priors of short matches most.
    line_ends: tokens that end a line.
    """

    def __init__(
        self, global_counts: AcceptanceCounts, doubt: float = 1.0, line_ends: frozenset[int] = frozenset()
    ) -> None:
        self.global_counts = global_counts
        self.doubt = doubt
        self.line_ends = line_ends
        self.own = AcceptanceCounts(DECAY)
        self._num_lines = 0
        # By the answer's number of lines. Used several times for every draft, so they are computed when this
        # request learns more; other requests' learning can wait.
        self._line_end_rates: list[float] = []

    def rate(self, draft: Draft) -> float:
        """Return a draft token's chance of acceptance if all before it were accepted, in (0, 1).

        If the evidence differs by token, the highest chance is returned. Support does not count.
        """
        if draft.by_token:
            return max(self.rates(draft), default=0.001)
        return self._rate(draft.source, draft.bucket, draft.prior)

    def rates(self, draft: Draft) -> list[float]:
        """Return each token's chance of being accepted, for a draft with evidence by token."""
        return [self._rate(draft.source, *evidence) for evidence in draft.by_token[: len(draft.tokens)]]

    def _rate(self, source: str, bucket: int, prior: float) -> float:
        key = source, bucket
        start = self.global_counts.rate(key, prior, GLOBAL_PRIOR_TOKENS)
        # A draft that is not a copy does not depend on how much the prompt repeats itself.
        doubt = 1.0 if source in FRESH_SOURCES else self.doubt
        return min(max(self.own.rate(key, start**doubt, PRIOR_TOKENS), 0.001), MAX_RATE)

    def estimate(self, draft: Draft, rate: float) -> DraftEstimate:
        """Estimate a draft whose tokens have this acceptance rate, except line ends, which have their own.

        A token's support then raises or lowers its rate.
        """
        if draft.by_token:
            rates = self.rates(draft)
        elif draft.support:
            odds = {support: self.global_counts.odds(support) for support in set(draft.support)}
            pairs = zip(self._without_support(draft, rate), draft.support, strict=False)
            rates = [min(_with_odds(one, odds[support]), MAX_RATE) for one, support in pairs]
        elif self._line_ends_in(draft).isdisjoint(draft.tokens):
            return DraftEstimate(steady(rate, len(draft.tokens)), draft=draft)
        else:
            rates = self._without_support(draft, rate)
        less = (at for at in range(1, len(rates)) if rates[at] < rates[at - 1])
        return DraftEstimate(sum_up(rates), tuple(less), draft=draft)

    def _without_support(self, draft: Draft, rate: float) -> list[float]:
        """Return each token's chance by its draft's rate and that of line ends."""
        line_ends, rates = self._line_ends_in(draft), [rate] * len(draft.tokens)
        if line_ends.isdisjoint(draft.tokens):
            return rates
        by_lines = self._line_end_rates or self._find_line_end_rates()
        lines, most = self._num_lines, len(by_lines) - 1
        for at in compress(count(), map(line_ends.__contains__, draft.tokens)):
            rates[at] = min(rate, by_lines[lines if lines < most else most])
            lines += 1
        return rates

    def learn(self, draft: Draft, num_verified: int, num_accepted: int) -> None:
        """Learn from num_verified tokens of a draft, of which the first num_accepted were accepted."""
        num_rejected = int(num_accepted < num_verified)
        if draft.by_token:
            for at, (bucket, _) in enumerate(draft.by_token[: num_accepted + num_rejected]):
                self._add((draft.source, bucket), int(at < num_accepted), int(at >= num_accepted))
            return
        if draft.support:
            expected = self._without_support(draft, self.rate(draft))
            judged = zip(draft.support, expected[: num_accepted + num_rejected], strict=False)
            for at, (support, rate) in enumerate(judged):
                self.global_counts.add_support(support, rate, at < num_accepted)
        lines, line_ends = self._num_lines, self._line_ends_in(draft)
        for at, token in enumerate(draft.tokens[: num_accepted + num_rejected]):
            if token in line_ends:
                is_accepted = at < num_accepted
                self._add((LINE_END, min(lines, 3)), int(is_accepted), int(not is_accepted))
                lines += 1
                # A rejected line end does not count against the draft itself.
                num_rejected &= is_accepted
        self._add((draft.source, draft.bucket), num_accepted, num_rejected)

    def count_lines(self, tokens: Sequence[int]) -> None:
        """Count the line ends among tokens that were committed."""
        if self.line_ends:
            self._num_lines += sum(token in self.line_ends for token in tokens)

    def _line_ends_in(self, draft: Draft) -> frozenset[int]:
        return frozenset() if draft.is_guess or draft.source in FRESH_SOURCES else self.line_ends

    def _find_line_end_rates(self) -> list[float]:
        self._line_end_rates = []
        for lines, prior in enumerate(LINE_END_PRIORS):
            key = LINE_END, lines
            start = self.global_counts.rate(key, prior, GLOBAL_LINE_END_PRIOR_TOKENS)
            self._line_end_rates.append(self.own.rate(key, start, LINE_END_PRIOR_TOKENS))
        return self._line_end_rates

    def _add(self, key: BucketKey, num_accepted: int, num_rejected: int) -> None:
        self.own.add(key, num_accepted, num_rejected)
        self.global_counts.add(key, num_accepted, num_rejected)
        if key[0] == LINE_END:
            self._line_end_rates = []


def count_accepted(draft: Sequence[int], sampled: Sequence[int]) -> int:
    """Count the leading draft tokens that the target model chose too.

    draft: (k,) drafted ids.
    sampled: the target model's ids, sampled[i] drawn after draft[:i]; may be shorter.

    Source: Leviathan et al. 2022, greedy and sampled cases alike (see engine/speculative/README.md).
    """
    num_accepted = 0
    for proposed, chosen in zip(draft, sampled, strict=False):
        if proposed != chosen:
            break
        num_accepted += 1
    return num_accepted


log = logging.getLogger("reprise.engine")

_BUCKETS_VERSION = 3  # changes with what a drafter's bucket stands for; older files are not read
KEPT_TOKENS = 30.0
"""Observed tokens of earlier runs count as at most this many, so that new ones soon outweigh them."""


def find_file(settings: Settings, model_name: str, vocabulary: str) -> Path | None:
    """Return the file of a model's rates, in the folder of prefix files; None without such a folder.

    vocabulary: fingerprint of the model's vocabulary.
    """
    if settings.prefix_folder is None:
        return None
    key = hashlib.sha256(f"{_BUCKETS_VERSION} {model_name} {vocabulary}".encode()).hexdigest()[:16]
    return settings.prefix_folder / f"acceptance-{key}.json"


def restore(counts: AcceptanceCounts, file: Path | None) -> None:
    """Add the rates in the file to the counts. A file that is missing or cannot be read is ignored."""
    found = {} if file is None else read_object(file, log, "acceptance rates are learned anew")
    for source, buckets in found.items():
        try:
            rows = [(int(bucket), float(accepted), float(total)) for bucket, accepted, total in buckets]
        except (TypeError, ValueError, OverflowError):
            log.warning("%s is not a file of acceptance rates; they are learned anew", file)
            return
        for bucket, accepted, total in rows:
            if 0 <= accepted <= total and 0 < total < inf:
                weight = min(total, KEPT_TOKENS) / total
                counts.counts[source, bucket] = accepted * weight, total * weight


def save(counts: AcceptanceCounts, file: Path | None) -> None:
    """Write the learned acceptance rates to the file, if there is one. Logs a failure."""
    if file is None:
        return
    by_source: dict[str, list[tuple[int, float, float]]] = {}
    for (source, bucket), (accepted, total) in counts.counts.items():
        by_source.setdefault(source, []).append((bucket, accepted, total))
    try:
        write_in_folder(file, json.dumps(by_source).encode())
    except OSError as fault:
        log.error("acceptance rates could not be saved to %s: %s", file, fault.strerror or fault)
