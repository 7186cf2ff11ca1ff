"""What the planner chooses among: widths, the rows' inputs, and the model's part of drafts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from reprise.drafters.base import NO_DRAFT
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.kv_cache.exact_widths import SHORT_TOKENS, Exactness
from reprise.engine.speculative.costs.cost_table import USUAL
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_length import MIN_GAIN, DraftEstimate, choose_width
from reprise.engine.speculative.draft_model.forecast import (
    MODEL,
    MODELS,
    PROBE_RATE,
    PROBE_TOKENS,
    DraftForecast,
    DraftModelCosts,
    PlannedDraft,
)
from reprise.engine.speculative.sequence_drafts import SequenceDrafts
from reprise.engine.speculative.verify import RowInput
from reprise.engine.speculative.window import Window, WindowInput


class CandidateWidths:
    """Chooses the candidate widths of steps, and cuts drafts to exact ones.

    costs: the target's, whose table has the measured widths.
    exact: if not None, it has the only (rows, width) besides width 1 that a forward pass may have.
    """

    def __init__(self, costs: StepCosts, exact: Exactness | None) -> None:
        self._costs = costs
        # By whether contexts are long.
        self._exact_shapes = None if exact is None else [exact.shapes(is_long) for is_long in (False, True)]
        self._is_long = False
        # See measured().
        self._measured: dict[tuple[int, int, bool], list[int]] = {}

    def note_longest(self, num_tokens: int) -> None:
        """Set the length of the longest row, before a step is planned or its drafts are cut."""
        if self._exact_shapes is not None:
            self._is_long = num_tokens + self._costs.widths[-1] > SHORT_TOKENS

    def candidates(self, estimates: Sequence[DraftEstimate], num_rows: int) -> list[int]:
        """Return the candidate widths: those measured, and those where a draft becomes less certain."""
        widest = max([len(estimate.expected) for estimate in estimates])
        stops = {1 + stop for estimate in estimates for stop in estimate.stops}
        measured = self.measured(num_rows, widest)
        if not stops:
            return measured
        return sorted({*measured, *self._exact([w for w in stops if 1 < w < widest], num_rows)})

    def measured(self, num_rows: int, widest: int) -> list[int]:
        """Return the measured widths below `widest`, and `widest`, the width of the longest draft."""
        asked = num_rows, widest, self._is_long
        if (found := self._measured.get(asked)) is None:
            widths = [*(w for w in self._costs.widths if 1 < w < widest), *{widest} - {1}]
            found = self._measured[asked] = self._exact(widths, num_rows)
        return found

    def _exact(self, widths: list[int], num_rows: int) -> list[int]:
        """Return the widths that are allowed in exact mode."""
        if self._exact_shapes is None:
            return widths
        # Rows with a forward pass each are as exact as a single row.
        together = num_rows if self._costs.batched else 1
        return [width for width in widths if (together, width) in self._exact_shapes[self._is_long]]

    def without_inexact(self, inputs: Sequence[RowInput]) -> list[RowInput]:
        """In exact mode, cut drafts if a forward pass would have a width that is not known to be exact.

        Drafts have such widths when the draft model drafted less than planned.
        """
        if self._exact_shapes is None:
            return list(inputs)
        self.note_longest(max([row_input.position for row_input in inputs]))
        if self._costs.batched:
            return self._cut(inputs)
        return [self._cut([row_input])[0] for row_input in inputs]

    def _cut(self, inputs: Sequence[RowInput]) -> list[RowInput]:
        """Cut the drafts of one forward pass to its widest exact width; drop them if no width is exact."""
        widest = max(row_input.width for row_input in inputs)
        width = max(self._exact(list(range(2, widest + 1)), len(inputs)), default=1)
        if width == widest:
            return list(inputs)
        cut = []
        for row_input in inputs:
            draft = row_input.draft[: width - 1]
            source = row_input.source if draft else NO_DRAFT
            mask_tokens = row_input.mask_tokens[: width - 1 - len(draft)]
            cut.append(replace(row_input, draft=draft, source=source, mask_tokens=mask_tokens))
        return cut


if TYPE_CHECKING:
    from reprise.engine.sampling.grammar import Matcher


class Member(Protocol):
    """The part of Sequence that planning a step needs."""

    request: GenerationRequest
    tokens: list[int]
    drafts: SequenceDrafts | None
    matcher: "Matcher | None"
    window: Window | None
    sampling: int

    @property
    def num_answered(self) -> int:
        """Committed tokens of the answer."""

    def give_up_drafts(self, fault: Exception) -> None:
        """Draft nothing more for this row, because of a fault."""


def may_draft(s: Member) -> bool:
    """Whether a draft is possible for a row: drafting is on, and more than the last token is to come."""
    return s.drafts is not None and s.drafts.can_draft and max_draft_tokens(s) > 0


def max_draft_tokens(s: Member) -> int:
    """Return the maximum tokens of a draft: the answer's remaining tokens but the bonus token."""
    return s.request.max_tokens - s.num_answered - 1


def num_drafted_at(estimate: DraftEstimate, width: int) -> int:
    """Return how many drafted tokens and masks a row feeds in a step of a width, after its newest token."""
    return min(width - 1, estimate.num_tokens)


def num_text_at(estimate: DraftEstimate, width: int) -> int:
    """Return how many drafted tokens, masks not counted, a row feeds in a step of a width."""
    num_drafted = num_drafted_at(estimate, width)
    return estimate.splits[num_drafted] if estimate.splits else num_drafted


def fed_width(estimate: DraftEstimate, width: int) -> int:
    """Return how many tokens a row feeds in a step of a width: its newest, drafted ones and masks."""
    return 1 + num_drafted_at(estimate, width)


def without_drafts(members: Sequence[Member]) -> list[RowInput]:
    """Return the rows' inputs for a verification step without drafts."""
    return [RowInput(s.tokens[-1], len(s.tokens)) for s in members]


def window_input(s: Member, num_held: int) -> WindowInput:
    """Return the input of a row with a window. num_held: tokens in its cache, fewer than are committed."""
    assert s.window
    # Under a grammar a hole can only be filled once all tokens before it are known.
    size = 1 if s.matcher else s.window.settings.window_size
    window, pending = s.window.widen(size), s.tokens[num_held:]
    return WindowInput(s.tokens[-1], len(s.tokens), window=window, pending=pending)


def row_input(s: Member, estimate: DraftEstimate, width: int) -> RowInput:
    """Return the input of a row whose draft is cut to a step of a width."""
    newest, position, draft = s.tokens[-1], len(s.tokens), estimate.draft
    if estimate.splits and s.drafts and s.drafts.masks:
        num_fed = min(width - 1, estimate.num_tokens)
        tokens = draft.tokens[: estimate.splits[num_fed]]
        mask_tokens = [s.drafts.masks.mask_token_id] * (num_fed - len(tokens))
        return RowInput(newest, position, tokens, draft if tokens else NO_DRAFT, mask_tokens=mask_tokens)
    if tokens := draft.tokens[: width - 1]:
        return RowInput(newest, position, tokens, draft)
    # The draft model makes its tokens later.
    if s.drafts and draft.source in MODELS and (num_wanted := num_drafted_at(estimate, width)):
        num_to_draft = s.drafts.forecast.num_to_draft(num_wanted)
        return RowInput(newest, position, source=draft, num_wanted=num_wanted, num_to_draft=num_to_draft)
    return RowInput(newest, position)


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

    def token_steps(self, num_rows: int, source: str) -> float | None:
        """Return the believed cost of one token of the draft model, in plain steps; None for a head."""
        plain_s = self._target.least_plain_s(num_rows, self.under)
        if not plain_s or self.costs is None or source != MODEL:
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
