"""The part of a draft model, or of a head of the target, in a step: what it costs, and whether it pays."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from reprise.engine.speculative.costs.conditions import USUAL
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_length import MIN_GAIN, DraftEstimate, choose_width
from reprise.engine.speculative.draft_model.costs import DraftModelCosts, ShareOfTarget
from reprise.engine.speculative.draft_model.forecast import (
    MODELS,
    PROBE_RATE,
    PROBE_TOKENS,
    DraftForecast,
    PlannedDraft,
)
from reprise.engine.speculative.planning.candidate_widths import CandidateWidths
from reprise.engine.speculative.planning.row_inputs import Member, max_draft_tokens, num_drafted_at

MODEL_DOUBT = 2.0
"""By which factor the draft model's cost may be wrong while it was hardly observed."""

STEADY_FED = 2
"""Maximum tokens fed before a draft while the draft model drafts at every step; more is catching up."""


class ModelPart:
    """Weighs the tokens that a draft model promises against the seconds that it adds to a step.

    target: costs of the target's steps. widths: those that a step may have.
    costs: of the draft model's part; None without a draft model.
    under: the conditions of the step that is being planned.
    """

    def __init__(self, target: StepCosts, widths: CandidateWidths, costs: DraftModelCosts | None) -> None:
        self.costs = costs
        self.under = USUAL
        self._target = target
        self._widths = widths

    def seconds(self, num_rows: int, num_fed: int, num_drafted: int) -> float:
        """Return the expected seconds of the draft model's part of a step; see DraftModelCosts.seconds()."""
        if self.costs is None or not num_fed:
            return 0.0
        return self.costs.seconds(num_rows, num_fed, num_drafted, self.under)

    def token_steps(self, num_rows: int) -> float | None:
        """Return the believed cost of one token of the draft model, in plain steps; None for a head."""
        plain_s = self._target.least_plain_s(num_rows, self.under)
        if not plain_s or self.costs is None or isinstance(self.costs.alone, ShareOfTarget):
            return None
        return (self.seconds(num_rows, 1, 2) - self.seconds(num_rows, 1, 1)) / plain_s

    def spread_s(self, num_rows: int, work: PlannedDraft) -> float:
        """Return the expected seconds of the draft model's part, with only a share of catching up charged."""
        steady_s = self.seconds(num_rows, min(work.num_fed, STEADY_FED), work.num_drafted)
        return steady_s + work.share * (self.seconds(num_rows, work.num_fed, work.num_drafted) - steady_s)

    def most_s(self, num_rows: int, work: PlannedDraft) -> float:
        """Return the most seconds that the draft model's part of a step may take."""
        if self.costs is None:
            return 0.0
        doubt = MODEL_DOUBT if self.costs.is_new(self.under) else 1.0
        return doubt * self.seconds(num_rows, work.num_fed, work.num_drafted)

    def is_asked(self, estimates: Sequence[DraftEstimate]) -> bool:
        """Whether the draft model is to make any of these rows' drafts."""
        return self.costs is not None and any(e.draft.source in MODELS for e in estimates)

    def pays(self, forecast: DraftForecast, limit: int) -> bool:
        """Whether drafts of up to limit tokens by the draft model would pay for a single row."""
        return self.estimate(forecast, 1, limit, forecast.rate).num_tokens > 0

    def estimate(self, forecast: DraftForecast, num_rows: int, limit: int, rate: float) -> DraftEstimate:
        """Estimate a draft by the draft model, of the length that pays best if all rows are like this one.

        Returns an estimate without tokens if no length pays.
        rate: the chance that one of its tokens is accepted. limit: maximum tokens.
        """
        if self.costs:
            limit = min(limit, self.costs.max_tokens(rate, self.under))
        estimate = forecast.estimate(limit, rate)
        # This cheap test rejects most drafts.
        if estimate.expected[-1] < MIN_GAIN * self._target.min_ratio(num_rows, self.under):
            return DraftEstimate()

        even_s = self._target.even_steps(num_rows, self.under)

        def step_s(width: int) -> float:
            work = PlannedDraft.of_row(forecast, estimate, width - 1)
            return self.spread_s(num_rows, work) + even_s(width)

        width = choose_width(
            [estimate], self._widths.candidates([estimate], num_rows), step_s, lambda _: True
        )
        return replace(estimate, expected=estimate.expected[:width])

    def probe(
        self,
        members: Sequence[Member],
        estimates: list[DraftEstimate],
        make_check: Callable[[Sequence[DraftEstimate]], Callable[[int], bool]],
    ) -> tuple[list[DraftEstimate], int]:
        """Plan a probe if one is due: short drafts of rows that have not used the draft model for long.

        Returns the probes' estimates and the step's width; the given estimates and 1 if no probe is due or a
        slowdown budget does not allow it.
        make_check: takes estimates; returns a function that tells whether the budgets allow a width.
        """
        able = [s for s in members if s.drafts and s.drafts.can_ask_model and max_draft_tokens(s) > 0]
        due = [s.drafts.forecast for s in able if s.drafts and s.drafts.forecast.is_probe_due]
        if self.costs is None or not due:
            return estimates, 1
        num_rows = len(members)
        limit = max(min(max_draft_tokens(s), s.drafts.limit) for s in able if s.drafts)
        if self.costs.is_new(self.under) or any(
            self.estimate(forecast, num_rows, limit, PROBE_RATE).num_tokens for forecast in due
        ):
            num_tokens = min(PROBE_TOKENS, self.costs.first_tokens(self.under))
            # All rows take part in the step, so all of them probe.
            tried = [
                _probe_of(s, num_tokens) if s in able else estimate
                for s, estimate in zip(members, estimates, strict=True)
            ]
            widths = self._widths.candidates(tried, num_rows)
            if widths and make_check(tried)(widths[-1]):
                return tried, widths[-1]
        else:
            self.costs.decay_to_prior()
        for forecast in due:
            forecast.postpone_probe()
        return estimates, 1


def _probe_of(s: Member, num_tokens: int) -> DraftEstimate:
    assert s.drafts
    forecast, limit = s.drafts.forecast, min(max_draft_tokens(s), s.drafts.limit, num_tokens)
    return forecast.estimate(limit, forecast.rate)


def planned_draft(members: Sequence[Member], estimates: Sequence[DraftEstimate], width: int) -> PlannedDraft:
    """Return the draft model's expected work for a step of a width."""
    return PlannedDraft.combine(
        (s.drafts.forecast, estimate, num_drafted_at(estimate, width))
        for s, estimate in zip(members, estimates, strict=True)
        if s.drafts and estimate.draft.source in MODELS
    )
