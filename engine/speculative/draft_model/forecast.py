"""Decide how many tokens the draft model drafts for a row, and when to probe it again if it does not pay."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from reprise.drafters.base import Draft
from reprise.engine.speculative.acceptance import Acceptance
from reprise.engine.speculative.draft_length import DraftEstimate, steady
from reprise.engine.speculative.draft_model.costs import DraftWork

MODEL = "draft-model"
MODELS = (MODEL, "mtp", "dflash")
"""The sources of drafts that a model makes: the draft model, or a head of the target. A server has one."""

MODEL_PRIOR = 0.7

YIELD_DECAY = 0.9
YIELD_PRIOR_TOKENS = 8.0
YIELD_PRIOR_DRAFTS = 4.0

EXTRA_FED_RATE = 0.1
"""How fast the estimate of tokens fed again follows each observation, as a share of the difference."""

PROBE_RATE = 0.9
"""Acceptance rate assumed for a probe. If drafts would not pay even at this rate, there is no probe."""

PROBE_TOKENS = 2
MIN_WAIT_TOKENS = 16
MAX_WAIT_TOKENS = 256
TRUSTED_STREAK = 4
"""After this many consecutive drafts with an accepted token, the waiting time is reset."""

PREFILL_ONE_PROMPT_IN = 8
"""While the draft model does not pay, it prefills the prompt of one request in this many."""


@dataclass
class TokenYield:
    """Learns how many target tokens a drafted token becomes: 1 if both models have the same vocabulary.

    prior: the yield over all rows, at which this one starts, and which learns all that this one learns; None
        if this is the yield over all rows.
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
        """Target tokens per drafted token, over the drafts that became at least one target token."""
        prior = self.prior.ratio if self.prior else 1.0
        return (self._target_tokens + prior * YIELD_PRIOR_TOKENS) / (
            self._drafted_tokens + YIELD_PRIOR_TOKENS
        )

    @property
    def nonempty_rate(self) -> float:
        """The share of drafts that become at least one target token."""
        prior = self.prior.nonempty_rate if self.prior else 1.0
        return (self._nonempty_drafts + prior * YIELD_PRIOR_DRAFTS) / (self._drafts + YIELD_PRIOR_DRAFTS)

    def add(self, num_drafted: int, num_translated: int) -> None:
        """Count a draft of num_drafted tokens that became num_translated target tokens."""
        if self.prior:
            self.prior.add(num_drafted, num_translated)
        self._drafts = YIELD_DECAY * self._drafts + 1.0
        self._nonempty_drafts = YIELD_DECAY * self._nonempty_drafts + (num_translated > 0)
        if num_translated:
            self._drafted_tokens = YIELD_DECAY * self._drafted_tokens + num_drafted
            self._target_tokens = YIELD_DECAY * self._target_tokens + num_translated


@dataclass
class DraftForecast:
    """One row's expectations of the draft model, from which the length of its drafts follows.

    source: which of MODELS drafts. max_drafted: the most tokens that it can draft at once; None for no limit.
    num_lacking: tokens of the draft model that the row must be fed before the first drafted one.
    is_ready: whether the draft prefill is complete, so that the draft model may draft.

    A row whose drafts do not pay stops drafting, and probes again after a while: it drafts two tokens, at the
    expense of its slowdown budget. If one is accepted, it probes again at once; if not, it waits twice as
    long as before.
    """

    acceptance: Acceptance
    token_yield: TokenYield = field(default_factory=TokenYield)
    source: str = MODEL
    max_drafted: int | None = None
    num_lacking: float = 1.0
    is_ready: bool = False
    _tokens_since_draft: int = 0
    # The first probe is due at once: after the draft prefill there is nothing to catch up with.
    _wait_tokens: int = 0
    _accepted_streak: int = 0
    _has_drafted: bool = False
    _extra_fed: float = 0.0

    def begin(self) -> None:
        """Set is_ready after the draft prefill, which computes all of the text but its last token."""
        self.num_lacking, self.is_ready, self._has_drafted = 1.0, True, False

    @property
    def keeps_drafted(self) -> bool:
        """Whether the draft model's caches keep drafted tokens that were accepted.

        A head's do not: it is fed accepted tokens again, with the target's own states.
        """
        return self.source == MODEL

    @property
    def rate(self) -> float:
        """The expected acceptance rate of the draft model's tokens, once translated."""
        return self.acceptance.rate(Draft((), self.source, 0, MODEL_PRIOR))

    @property
    def num_fed(self) -> int:
        """The expected tokens to feed before the first drafted one, as a whole number."""
        return max(1, math.ceil(self.num_lacking + self._extra_fed))

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
        """Return the share of the cost of catching up that is charged to a step with num_tokens new tokens.

        A row that did not draft for n tokens is expected to draft for the next n, so these share the cost.
        """
        return min(1.0, num_tokens / max(1.0, self.num_lacking * self.token_yield.ratio))

    def note_work(self, work: DraftWork, row: int) -> None:
        """Learn from the draft model's work on a step. row: this row's index in it."""
        translated = work.translated[row]
        if translated is not None:
            # If text is encoded again, more tokens are fed than were added.
            surplus = max(0.0, work.num_fed - self.num_lacking)
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
        if self.keeps_drafted:
            # The last drafted token was never fed, so an accepted one is still lacking.
            self.num_lacking += (num_tokens - num_accepted) / self.token_yield.ratio + is_all_accepted
        else:
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
    """Decides which prompts get draft prefill: all while drafts pay, else one in PREFILL_ONE_PROMPT_IN."""

    def __init__(self) -> None:
        # The very first prompt is prefilled.
        self._num_skipped = PREFILL_ONE_PROMPT_IN - 1

    def should_prefill(self, pays: bool) -> bool:
        """Return whether the draft model prefills the next prompt. pays: whether its drafts pay now."""
        self._num_skipped = 0 if pays else (self._num_skipped + 1) % PREFILL_ONE_PROMPT_IN
        return pays or self._num_skipped == 0
