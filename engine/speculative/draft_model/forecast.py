"""Decide how many tokens the draft model drafts for a row, and when to probe it again if it has not paid."""

import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from reprise.drafters.base import Draft
from reprise.engine.speculative.acceptance import MODEL, Acceptance
from reprise.engine.speculative.costs.cost_table import USUAL, Conditions
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_length import DraftEstimate, steady

DECAY = 0.95
"""Factor on the weight of an observed step at each later step."""

PRIOR_WEIGHT = 0.2
"""Weight of the prior costs. One observed step has a weight of about 0.5."""

LEVEL_RATE = 0.3
"""How fast the overall cost level follows an observed step, as a share of the difference."""

MAX_SURPRISE = 2.0
"""A step that took more than this many times its expected cost may be a pause of the machine."""

OUTLIER_STEPS = 8
"""Two such steps within this many steps are not a pause: the costs have changed."""

MIN_SHARE = 0.02
"""Minimum learned cost of each part, as a share of the formula's."""

MIN_REACHED = 0.02
"""Drafted tokens that verification reaches less often than this are not considered."""

FIRST_TOKENS = (1, 2, 2)
"""Maximum tokens that the first steps draft, in case the formula is far too low. A single token that costs
four plain steps is still within the slowdown budget of a new sequence."""

MODEL_DOUBT = 2.0
"""By which factor the cost may be wrong while it was hardly observed."""

STEADY_FED = 2
"""Maximum tokens fed before a draft while the draft model drafts at every step; more is catching up."""

SIMILAR_CLASSES = 2
"""Steps tell what others cost whose contexts are up to this many times twice as long."""


@dataclass(frozen=True, slots=True)
class DraftWork:
    """The draft model's work for one verification step, counted in its own tokens unless stated otherwise.

    num_fed: tokens fed before the first drafted one, the maximum over the rows in each forward pass.
    num_drafted: tokens drafted for every row, one forward each; 0 if no row was ready.
    num_lacking: (rows,) committed tokens that each row still lacks.
    translated: (rows,) for ready rows that wanted a draft: the number of tokens drafted, and of the target
        tokens that they became, before any surplus is cut off. None for other rows.
    fed: (rows,) tokens fed to each row until it was ready, whatever others lacked; empty for heads, to which
        no text is fed again.
    """

    num_fed: int
    num_drafted: int
    num_lacking: Sequence[int]
    translated: Sequence[tuple[int, int] | None]
    fed: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ShareOfTarget:
    """The prior cost of a draft model or a head: a share of a target's step, in proportion to weights read.

    It grows with the context as the target's does, so learned costs are relative to it.
    """

    target: StepCosts
    share: float

    def seconds(self, num_rows: int, width: int, under: Conditions) -> float:
        """Return the seconds of a step of that many rows, each fed width tokens, under these conditions."""
        return self.share * self.target.seconds(num_rows, width, under)


class DraftModelCosts:
    """The draft model's seconds per verification step: to catch up, draft and translate.

    Three parts are learned: per step, per drafted token, and for tokens fed beyond the first. Each number of
    rows has its own estimate, which starts from an estimate common to all.

    alone: costs of the draft model's plain steps, or of a token that a head drafts.
    target: costs of the target's steps, which show how the cost of a forward grows with its width.
    batched: whether the draft model's rows share a forward.
    is_learned: whether observed steps change the costs.
    """

    def __init__(
        self,
        alone: StepCosts | ShareOfTarget,
        target: StepCosts,
        batched: bool = True,
        is_learned: bool = True,
    ) -> None:
        self.alone = alone
        self.target = target
        self.batched = batched
        self.is_learned = is_learned
        self._all = _Fit()
        self._by_rows: dict[int, _Fit] = {}
        self._cached: dict[tuple[int, int, int], float] = {}
        self._outliers: dict[int, tuple[int, _Seen]] = {}
        # By the class of the longest context.
        self._num_observed: Counter[int] = Counter()
        self._level = 1.0

    def is_new(self, under: Conditions) -> bool:
        """Whether the prior formula still dominates, as few steps were observed under these conditions."""
        return self.is_learned and self._num_similar(under) < len(FIRST_TOKENS)

    def first_tokens(self, under: Conditions) -> int:
        """Return a draft's maximum tokens, which grow with the steps observed under these conditions."""
        return FIRST_TOKENS[self._num_similar(under)] if self.is_new(under) else sys.maxsize

    def max_tokens(self, rate: float, under: Conditions) -> int:
        """Return the maximum tokens of a draft to consider at this rate; no limit if not learning."""
        if not self.is_learned:
            return sys.maxsize
        reached = max(1, int(math.log(MIN_REACHED) / math.log(rate)))
        return min(reached, self.first_tokens(under))

    def seconds(self, num_rows: int, num_fed: int, num_drafted: int, under: Conditions = USUAL) -> float:
        """Return the expected seconds to feed each row up to num_fed tokens and draft num_drafted."""
        shape = num_rows, num_fed, num_drafted
        if (found := self._cached.get(shape)) is None:
            fit = self._by_rows.get(num_rows, self._all)
            found = self._cached[shape] = fit.value(self._parts(*shape))
        return found * self._unit_s(num_rows, under)

    def spread_s(self, num_rows: int, work: "PlannedDraft", under: Conditions) -> float:
        """Return the expected seconds of a step's work, with only a share of catching up charged."""
        if not work.num_fed:
            return 0.0
        steady_s = self.seconds(num_rows, min(work.num_fed, STEADY_FED), work.num_drafted, under)
        whole_s = self.seconds(num_rows, work.num_fed, work.num_drafted, under)
        return steady_s + work.share * (whole_s - steady_s)

    def most_s(self, num_rows: int, work: "PlannedDraft", under: Conditions) -> float:
        """Return the maximum seconds of a step's work."""
        if not work.num_fed:
            return 0.0
        doubt = MODEL_DOUBT if self.is_new(under) else 1.0
        return doubt * self.seconds(num_rows, work.num_fed, work.num_drafted, under)

    def observe(
        self, num_rows: int, num_fed: int, num_drafted: int, seconds: float, under: Conditions = USUAL
    ) -> None:
        """Learn from a step: rows were fed up to num_fed tokens, and num_drafted were drafted for each.

        A single outlier is ignored, unless the costs are new; a second one soon after replaces the estimates.
        """
        if not self.is_learned:
            return
        shape = num_rows, num_fed, num_drafted
        # In plain steps of the draft model.
        seen = *shape, max(seconds, 1e-9) / self._unit_s(num_rows, under)
        is_outlier = seconds > MAX_SURPRISE * self.seconds(*shape, under)
        if is_outlier and self.is_new(under):
            self._restart(seen)
        elif is_outlier:
            total = self._num_observed.total()
            at, before = self._outliers.pop(num_rows, (0, None))
            if before and total - at < OUTLIER_STEPS:
                self._restart(before, seen)
            else:
                self._outliers[num_rows] = total, seen
        else:
            self._learn(*seen)
        self._num_observed[under.context] += 1
        self._cached.clear()

    def _num_similar(self, under: Conditions) -> int:
        return sum(n for c, n in self._num_observed.items() if c >= under.context - SIMILAR_CLASSES)

    def _restart(self, *seen: "_Seen") -> None:
        """Forget the common estimate and that of this number of rows, then learn from these steps."""
        self._all = _Fit()
        self._by_rows.pop(seen[0][0], None)
        self._level = max(cost / sum(self._parts(*shape)) for *shape, cost in seen)
        for one in seen:
            self._learn(*one)

    def _learn(self, num_rows: int, num_fed: int, num_drafted: int, cost: float) -> None:
        # Relative errors: otherwise long drafts would outweigh short ones.
        parts = self._parts(num_rows, num_fed, num_drafted)
        weighted = [part / cost for part in parts]
        # Parts that were not observed separately are assumed to scale with the total.
        self._level += LEVEL_RATE * (cost / sum(parts) - self._level)
        self._all.learn(weighted, [self._level] * 3)
        self._by_rows.setdefault(num_rows, _Fit()).learn(weighted, self._all.parts)

    def decay_to_prior(self) -> None:
        """Move the costs a little toward the prior formula.

        Called when the costs rule out a probe: they may have been learned while the machine was busy.
        """
        self._level += (1 - DECAY) * (1.0 - self._level)
        for fit in (self._all, *self._by_rows.values()):
            fit.fade(self._level)
        self._cached.clear()

    def _parts(self, num_rows: int, num_fed: int, num_drafted: int) -> tuple[float, float, float]:
        """Return the parts of a step's cost by the prior formula, in plain steps of the draft model."""
        grown = self.target.seconds(num_rows, max(1, num_fed)) / self.target.seconds(num_rows, 1)
        return 1.0, float(num_drafted), max(0.0, grown - 1.0)

    def _unit_s(self, num_rows: int, under: Conditions) -> float:
        if self.batched:
            return self.alone.seconds(num_rows, 1, under)
        return num_rows * self.alone.seconds(1, 1, under)


_Seen = tuple[int, int, int, float]
"""(rows, tokens fed, tokens drafted) of a step, and what it took, in plain steps of the draft model."""


class _Fit:
    """Least squares with forgetting: each part's cost, as a multiple of the formula's."""

    def __init__(self) -> None:
        self.parts: tuple[float, ...] = (1.0, 1.0, 1.0)
        self._squares: NDArray[np.float64] = np.zeros((3, 3))
        self._products: NDArray[np.float64] = np.zeros(3)

    def value(self, x: Sequence[float]) -> float:
        """Return the cost of a step with these amounts of each part."""
        return sum(part * amount for part, amount in zip(self.parts, x, strict=True))

    def learn(self, x: Sequence[float], start: Sequence[float]) -> None:
        """Learn from a step of cost 1 with these amounts of each part. start: costs of unobserved parts."""
        row = np.array(x)
        self._squares = DECAY * self._squares + np.outer(row, row)
        self._products = DECAY * self._products + row
        self._solve(start)

    def fade(self, level: float) -> None:
        """Reduce the weight of observed steps, which moves all parts toward `level`."""
        self._squares, self._products = DECAY * self._squares, DECAY * self._products
        self._solve([level] * 3)

    def _solve(self, start: Sequence[float]) -> None:
        # Weighted relative to start: otherwise a start of many times the formula's would weigh more.
        weight = PRIOR_WEIGHT / np.square(np.array(start))
        found = np.linalg.solve(self._squares + np.diag(weight), self._products + weight * np.array(start))
        self.parts = tuple(max(MIN_SHARE, float(part)) for part in found)


MODEL_PRIOR = 0.7

YIELD_DECAY = 0.9
YIELD_PRIOR_TOKENS = 8.0
YIELD_PRIOR_DRAFTS = 4.0

EXTRA_FED_RATE = 0.1
"""How fast the estimate of tokens fed again follows each observation, as a share of the difference."""

PROBE_RATE = 0.9
"""Acceptance rate assumed for a probe. If drafts would not pay even at this rate, there is no probe."""

PROBE_SHARE = 0.01
"""Share of a row's time that catching up for probes may take, beside that of a plain step."""

PROBE_TOKENS = 2
MIN_WAIT_TOKENS = 16
MAX_WAIT_TOKENS = 256
TRUSTED_STREAK = 4
"""After this many consecutive drafts with an accepted token, the waiting time is reset."""

PREFILL_ONE_PROMPT_IN = 8
"""While the draft model does not pay, it prefills the prompt of one request in this many."""


@dataclass
class TokenYield:
    """Learns how many target tokens a translated draft has per drafted token: 1 with equal vocabularies.

    prior: the yield over all rows. This one starts from it and passes all observations on to it. None if this
        is the yield over all rows.
    """

    prior: "TokenYield | None" = None
    # Decayed sums. Tokens are those of drafts that became any target tokens: as drafted, and as translated.
    _drafted_tokens: float = 0.0
    _target_tokens: float = 0.0
    # All drafts, and those that became any target tokens.
    _drafts: float = 0.0
    _nonempty_drafts: float = 0.0

    @property
    def ratio(self) -> float:
        """Target tokens per drafted token, over the drafts of which translation left any."""
        prior = self.prior.ratio if self.prior else 1.0
        return (self._target_tokens + prior * YIELD_PRIOR_TOKENS) / (
            self._drafted_tokens + YIELD_PRIOR_TOKENS
        )

    @property
    def nonempty_rate(self) -> float:
        """The share of drafts of which translation leaves at least one target token."""
        prior = self.prior.nonempty_rate if self.prior else 1.0
        return (self._nonempty_drafts + prior * YIELD_PRIOR_DRAFTS) / (self._drafts + YIELD_PRIOR_DRAFTS)

    def add(self, num_drafted: int, num_translated: int) -> None:
        """Count a draft of num_drafted tokens that was translated to num_translated target tokens."""
        if self.prior:
            self.prior.add(num_drafted, num_translated)
        self._drafts = YIELD_DECAY * self._drafts + 1.0
        self._nonempty_drafts = YIELD_DECAY * self._nonempty_drafts + (num_translated > 0)
        if num_translated:
            self._drafted_tokens = YIELD_DECAY * self._drafted_tokens + num_drafted
            self._target_tokens = YIELD_DECAY * self._target_tokens + num_translated


@dataclass
class DraftForecast:
    """One row's forecast of the draft model, which determines the length of its drafts.

    source: which of MODELS drafts. max_drafted: the most tokens that it can draft at once; None for no limit.
    is_fed: whether it must be fed committed tokens before it drafts; not if it reads the target's caches.
    num_lacking: tokens of the draft model that the row must be fed before the first drafted one.
    is_ready: whether the draft prefill is complete, so that the draft model may draft.
    probed_s: seconds of catching up for probes.

    A row whose drafts do not pay stops drafting, and later probes: it drafts two tokens, charged to its
    slowdown budget. If one is accepted, it probes again at once; otherwise it waits twice as long as before.
    """

    acceptance: Acceptance
    token_yield: TokenYield = field(default_factory=TokenYield)
    source: str = MODEL
    max_drafted: int | None = None
    is_fed: bool = True
    num_lacking: float = 1.0
    is_ready: bool = False
    probed_s: float = 0.0
    _tokens_since_draft: int = 0
    # The first probe is due at once: after the draft prefill there is nothing to catch up with.
    _wait_tokens: int = 0
    _accepted_streak: int = 0
    _has_drafted: bool = False
    _extra_fed: float = 0.0

    def begin(self) -> None:
        """Set is_ready after the draft prefill, which computes all but the text's last token."""
        self.num_lacking, self.is_ready, self._has_drafted = 1.0, True, False

    @property
    def rate(self) -> float:
        """The expected acceptance rate of the draft model's translated tokens."""
        return self.acceptance.rate(Draft((), self.source, 0, MODEL_PRIOR))

    @property
    def num_fed(self) -> int:
        """The expected tokens to feed before the first drafted one, as a whole number."""
        return max(1, math.ceil(self.num_lacking + self._extra_fed)) if self.is_fed else 1

    @property
    def is_probe_due(self) -> bool:
        """Whether the row has waited long enough without drafts to probe."""
        return self._tokens_since_draft >= self._wait_tokens or self._accepted_streak > 0

    def postpone_probe(self) -> None:
        """Wait again, because no probe could be made."""
        self._tokens_since_draft, self._accepted_streak = 0, 0
        self._wait_tokens = max(self._wait_tokens, MIN_WAIT_TOKENS)

    def estimate(self, limit: int, rate: float) -> DraftEstimate:
        """Estimate drafts of up to limit target tokens, if they are accepted at this rate."""
        limit = limit if self.max_drafted is None else min(limit, self.max_drafted)
        nonempty_rate = self.token_yield.nonempty_rate
        expected = [1.0 + nonempty_rate * (tokens - 1.0) for tokens in steady(rate, limit)]
        return DraftEstimate(expected, draft=Draft((), self.source, 0, MODEL_PRIOR), is_worth=True)

    def num_to_draft(self, num_wanted: int) -> int:
        """Return how many of its own tokens the draft model drafts for num_wanted target tokens."""
        return math.ceil(num_wanted / self.token_yield.ratio) if num_wanted else 0

    def catch_up_share(self, num_tokens: float) -> float:
        """Return the share of the catch-up cost that is charged to a step with num_tokens new tokens.

        A row that did not draft for n tokens is expected to draft for the next n, which share the cost.
        """
        return min(1.0, num_tokens / max(1.0, self.num_lacking * self.token_yield.ratio))

    def note_work(self, work: DraftWork, row: int) -> None:
        """Learn from the draft model's work on a step. row: this row's index in it."""
        translated = work.translated[row]
        if translated is not None:
            # If text is encoded again, more tokens are fed than were added.
            surplus = max(0.0, work.fed[row] - self.num_lacking) if work.fed else 0.0
            self._extra_fed += EXTRA_FED_RATE * (surplus - self._extra_fed)
            self.token_yield.add(*translated)
        self.num_lacking, self._has_drafted = float(work.num_lacking[row]), translated is not None

    def observe(self, num_tokens: int, num_judged: int, num_accepted: int) -> None:
        """Count num_tokens committed tokens, num_accepted of them accepted out of num_judged drafted ones."""
        if not self._has_drafted:
            self.num_lacking += num_tokens / self.token_yield.ratio
            self._tokens_since_draft += num_tokens
            return
        self._has_drafted = False
        is_all_accepted = 0 < num_judged == num_accepted
        if self.source == MODEL:
            # The last drafted token was never fed, so an accepted one is still lacking.
            self.num_lacking += (num_tokens - num_accepted) / self.token_yield.ratio + is_all_accepted
        else:
            # A head is fed accepted tokens again, with the target's own states.
            self.num_lacking += num_tokens
        was_probe = self._tokens_since_draft > 0
        self._tokens_since_draft = 0
        self._accepted_streak = self._accepted_streak + 1 if num_accepted else 0
        if self._accepted_streak >= TRUSTED_STREAK:
            self._wait_tokens = 0
        elif not num_accepted:
            longer = 2 * self._wait_tokens if was_probe else self._wait_tokens
            self._wait_tokens = min(max(longer, MIN_WAIT_TOKENS), MAX_WAIT_TOKENS)


@dataclass(frozen=True, slots=True)
class PlannedDraft:
    """The draft model's expected work for a step. See DraftWork and, for share, catch_up_share()."""

    num_fed: int = 0
    num_drafted: int = 0
    share: float = 0.0

    @classmethod
    def of_row(cls, forecast: DraftForecast, estimate: DraftEstimate, num_wanted: int) -> "PlannedDraft":
        """Return the expected work for one row. num_wanted: target tokens to be drafted for it."""
        if not num_wanted:
            return cls()
        share = forecast.catch_up_share(estimate.expected[num_wanted])
        return cls(forecast.num_fed, forecast.num_to_draft(num_wanted), share)

    @classmethod
    def combine(cls, wanted: Iterable[tuple[DraftForecast, DraftEstimate, int]]) -> "PlannedDraft":
        """Combine the rows of a step.

        wanted: for each row its forecast, its estimate, and the target tokens it wants to be drafted.
        """
        works = [cls.of_row(*one) for one in wanted]
        return cls(
            max((work.num_fed for work in works), default=0),
            max((work.num_drafted for work in works), default=0),
            max((work.share for work in works), default=0.0),
        )


class PromptGate:
    """Decides which prompts get draft prefill: all while drafts pay, else one of PREFILL_ONE_PROMPT_IN."""

    def __init__(self) -> None:
        # The very first prompt is prefilled.
        self._num_skipped = PREFILL_ONE_PROMPT_IN - 1

    def should_prefill(self, pays: bool) -> bool:
        """Return whether the draft model prefills the next prompt. pays: whether its drafts pay now."""
        self._num_skipped = 0 if pays else (self._num_skipped + 1) % PREFILL_ONE_PROMPT_IN
        return pays or self._num_skipped == 0
