"""Plan the next step: whether it verifies drafts, and what every row feeds. Account for its time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from reprise.drafters.base import NO_DRAFT
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.interface.spans import spend
from reprise.engine.kv_cache.exact_widths import SHORT_TOKENS, Exactness
from reprise.engine.speculative.acceptance import MODEL, MODELS
from reprise.engine.speculative.costs.cost_table import MASKED, USUAL, Conditions, context_class
from reprise.engine.speculative.costs.slowdown_budget import LOW_STEPS, SlowdownBudget
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_length import (
    MIN_GAIN,
    DraftEstimate,
    choose_width,
    expected_tokens,
    pays,
    tokens_by_width,
)
from reprise.engine.speculative.draft_model.forecast import (
    PROBE_RATE,
    PROBE_SHARE,
    PROBE_TOKENS,
    DraftForecast,
    DraftModelCosts,
    DraftWork,
    PlannedDraft,
)
from reprise.engine.speculative.draft_stats import DEAR, INEXACT, SPENT, UNLIKELY, UNMATCHED, UNREAD
from reprise.engine.speculative.mask_drafts import add_masks
from reprise.engine.speculative.sequence_drafts import SequenceDrafts
from reprise.engine.speculative.verify import Outcome, RowInput
from reprise.engine.speculative.window import Window, WindowInput

if TYPE_CHECKING:
    from reprise.engine.sampling.grammar import Matcher

HOPE = 1.1
"""Required speedup of a trial's width over the chosen one, at the least possible cost."""

STRONG = 0.5
"""Share of the tokens that a trial feeds, without masks, which must be expected to be committed."""

EXAMPLE_WIDTH = 8
"""Maximum width of the example step that explains why nothing was drafted."""


class CandidateWidths:
    """Chooses candidate widths of steps, and cuts drafts to exact ones.

    costs: the target's, whose table has the measured widths.
    exact: if not None, the only (rows, width) shapes besides width 1 that are allowed.
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
        """In exact mode, cut drafts so that no forward pass has an inexact width.

        That can happen when the draft model drafted less than planned.
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


class Member(Protocol):
    """The part of Sequence that planning a step needs."""

    request: GenerationRequest
    tokens: list[int]
    drafts: SequenceDrafts | None
    matcher: "Matcher | None"
    window: Window | None

    @property
    def sampling(self) -> int:
        """The class of the next token's sampling work."""

    @property
    def num_answered(self) -> int:
        """Committed tokens of the answer."""

    def give_up_drafts(self, fault: Exception) -> None:
        """Draft nothing more for this row, because of a fault."""


def max_draft_tokens(s: Member) -> int:
    """Return the maximum tokens of a draft: the answer's remaining tokens but the bonus token."""
    return s.request.max_tokens - s.num_answered - 1


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
    num_fed = estimate.num_at(width)
    # The draft model makes its tokens later.
    if s.drafts and num_fed and draft.source in MODELS:
        num_to_draft = s.drafts.forecast.num_to_draft(num_fed)
        return RowInput(newest, position, source=draft, num_wanted=num_fed, num_to_draft=num_to_draft)
    tokens = draft.tokens[: estimate.num_text_at(width)]
    mask_tokens: Sequence[int] = ()
    if s.drafts and s.drafts.masks:
        mask_tokens = [s.drafts.masks.mask_token_id] * (num_fed - len(tokens))
    return RowInput(newest, position, tokens, draft if tokens else NO_DRAFT, mask_tokens=mask_tokens)


class Planner:
    """Weighs drafts' expected tokens against steps' time.

    costs: of the target's steps. widths: the allowed widths; exact: see CandidateWidths.
    model_costs: costs of the draft model's part of a step; None without a draft model.
    """

    def __init__(
        self,
        costs: StepCosts,
        exact: Exactness | None = None,
        model_costs: DraftModelCosts | None = None,
    ) -> None:
        self.costs = costs
        self.widths = CandidateWidths(costs, exact)
        self.model_costs = model_costs
        # Of the step that is being planned: its conditions, its seconds by width if all rows have the same,
        # and the maximum seconds that budgets allow.
        self._under = USUAL
        self._even_s: Callable[[int], float] = costs.even_steps(1)
        self._left_s = math.inf

    def conditions(self, members: Sequence[Member]) -> Conditions:
        """Return the conditions of a step of these rows."""
        longest = max([len(s.tokens) for s in members])
        return Conditions(context_class(longest), max([s.sampling for s in members]))

    def plan(self, members: Sequence[Member]) -> list[RowInput]:
        """Return the rows' inputs for a verification step; empty if a plain step is better.

        While a step is in flight its token is missing, so the plan is a forecast.
        """
        if not any(s.drafts and s.drafts.can_draft for s in members):
            return []
        num_rows, under = len(members), self.conditions(members)
        self._under = under
        self._even_s = self.costs.even_steps(num_rows, under)
        self.widths.note_longest(max([len(s.tokens) for s in members]))
        plain_s = self.costs.least_plain_s(num_rows, under) or math.inf
        budgets = [s.drafts.slowdown_budget for s in members if s.drafts]
        self._left_s = min([budget.left_s(plain_s) for budget in budgets])
        wants_plain = self._left_s < LOW_STEPS * plain_s and any(b.wants_plain(plain_s) for b in budgets)
        if wants_plain or self.costs.is_plain_due(num_rows, under):
            return []
        # Not even a step as short as a plain one is allowed, so no draft helps.
        if self._left_s < plain_s:
            for s in members:
                if s.drafts and s.drafts.can_draft and max_draft_tokens(s) > 0:
                    s.drafts.counts.add_undrafted(SPENT)
            return []
        estimates, min_tokens = [], MIN_GAIN * self.costs.min_ratio(num_rows, under)
        for s in members:
            try:
                estimates.append(self._best_draft(s, num_rows, min_tokens))
            # An answer needs no drafts.
            except Exception as fault:
                s.give_up_drafts(fault)
                estimates.append(DraftEstimate())
        spend("drafters", sum([s.drafts.asked_s for s in members if s.drafts]))
        # If no draft would pay with all rows like its own, no width pays for all rows together.
        width = 1
        if any(estimate.is_worth for estimate in estimates):
            estimates = [_any_draft(s, estimate) for s, estimate in zip(members, estimates, strict=True)]
            width = self._choose(members, estimates)
        if self.costs.is_learned:
            estimates, width = self._try(members, estimates, width)
        if width == 1:
            estimates, width = self._probe(members, estimates)
        if width == 1:
            self._note_undrafted(members, estimates)
            return []
        return [row_input(s, estimate, width) for s, estimate in zip(members, estimates, strict=True)]

    def _best_draft(self, s: Member, num_rows: int, min_tokens: float) -> DraftEstimate:
        """Return a row's best draft: a lookup drafter's or the draft model's, whichever promises more."""
        max_tokens = max_draft_tokens(s)
        if s.drafts is None or max_tokens < 1:
            return DraftEstimate()

        def is_worth(one: DraftEstimate) -> bool:
            # For most drafts, cutting where they become less certain decides nothing.
            if pays(one, self.widths.measured(num_rows, len(one.expected)), self._even_s):
                return True
            return bool(one.stops) and pays(one, self.widths.candidates([one], num_rows), self._even_s)

        estimate = s.drafts.propose(max_tokens, min_tokens, is_worth)
        if s.drafts.can_ask_model and self.model_costs:
            forecast, limit = s.drafts.forecast, min(max_tokens, s.drafts.limit)
            by_model, speed = self._estimate_by_model(forecast, num_rows, limit, forecast.rate)
            if by_model.num_tokens and not (estimate.is_worth and self._speed(estimate, num_rows) >= speed):
                estimate = by_model
        if s.drafts.masks and estimate.draft.source not in MODELS:
            masked = _masked(s, estimate, self._even_s)
            masked.is_worth = is_worth(masked)
            estimate = masked if masked.is_worth else estimate
        return estimate

    def _speed(self, estimate: DraftEstimate, num_rows: int) -> float:
        """Return the tokens per second that a lookup's draft promises if all rows are like this one."""
        widths = self.widths.candidates([estimate], num_rows)
        return max(estimate.expected[width - 1] / self._even_s(width) for width in widths)

    def _note_undrafted(self, members: Sequence[Member], estimates: Sequence[DraftEstimate]) -> None:
        """Count why the rows get no drafts, for people."""
        # The plan is made; would a width pay if the budgets allowed it?
        self._left_s, num_rows = math.inf, len(members)
        is_spent = any(estimate.is_worth for estimate in estimates) and self._choose(members, estimates) > 1
        for s, estimate in zip(members, estimates, strict=True):
            if not (s.drafts and s.drafts.can_draft and max_draft_tokens(s) > 0):
                continue
            num_tokens = len(estimate.draft.tokens)
            if estimate.is_worth:
                # Alone the draft would pay; other rows have too little to draft.
                reason = SPENT if is_spent else DEAR
            elif s.drafts.best.tokens:
                num_tokens = len(s.drafts.best.tokens)
                reason = DEAR if _is_likely(s.drafts.best_rate, num_tokens) else UNLIKELY
                if not self.widths.measured(num_rows, 1 + num_tokens):
                    reason = INEXACT
            elif s.drafts.can_ask_model:
                reason = DEAR if _is_likely(s.drafts.forecast.rate, 1) else UNLIKELY
                s.drafts.counts.token_steps = self.token_steps(num_rows, s.drafts.forecast.source)
            else:
                reason = UNREAD if s.drafts.uses_model else UNMATCHED
            price = None
            # The draft model makes its tokens later, and most of their cost is its own.
            if reason == DEAR and num_tokens:
                price = self.costs.price(num_rows, min(1 + num_tokens, EXAMPLE_WIDTH), self._under)
            s.drafts.counts.add_undrafted(reason, price)

    def _try(
        self, members: Sequence[Member], estimates: list[DraftEstimate], chosen: int
    ) -> tuple[list[DraftEstimate], int]:
        """Try a width whose estimated cost is too high, since the estimate may be wrong.

        Only likely drafts are tried, only now and then, and only if every slowdown budget allows it. Returns
        the estimates and the step's width; the given ones if no trial is due.
        """
        tried, num_rows = estimates, len(members)
        least_s = self.costs.least_steps(num_rows, self._under)
        if chosen == 1:
            tried = [
                _masked(s, estimate, least_s)
                if s.drafts and s.drafts.masks and max_draft_tokens(s) > 0
                else _any_draft(s, estimate)
                for s, estimate in zip(members, estimates, strict=True)
            ]
        widest = max([len(estimate.expected) for estimate in tried])
        if widest == 1 or self._asked(tried):
            return estimates, chosen
        promised = tokens_by_width(tried)
        best = HOPE * promised[chosen - 1] / self._even_s(chosen)
        hoped = {w: promised[w - 1] / least_s(w) for w in self.widths.measured(num_rows, widest)}
        due = [
            width
            for width, speed in hoped.items()
            if speed > best
            and width != chosen
            and promised[width - 1] >= STRONG * sum([1 + e.num_text_at(width) for e in tried])
            and self.costs.is_trial_due(num_rows, width)
        ]
        for width in sorted(due, key=hoped.__getitem__, reverse=True):
            if self._is_allowed(members, tried, width):
                return tried, width
        return estimates, chosen

    def _probe(
        self, members: Sequence[Member], estimates: list[DraftEstimate]
    ) -> tuple[list[DraftEstimate], int]:
        """Plan a probe if one is due: short drafts of rows that have not used the draft model for long.

        Returns the probes' estimates and the step's width; the given estimates and 1 if no probe is due or a
        slowdown budget does not allow it.
        """
        # By the row's number: the maximum tokens of its draft.
        able = {
            row: (s.drafts.forecast, min(max_draft_tokens(s), s.drafts.limit))
            for row, s in enumerate(members)
            if s.drafts and s.drafts.can_ask_model and max_draft_tokens(s) > 0
        }
        costs, num_rows = self.model_costs, len(members)
        if costs is None:
            return estimates, 1
        due = [
            forecast
            for row, (forecast, _) in able.items()
            if forecast.is_probe_due and self._may_catch_up(members[row], num_rows)
        ]
        if not due:
            return estimates, 1
        longest = max([limit for _, limit in able.values()])
        if costs.is_new(self._under) or any(
            self._estimate_by_model(forecast, num_rows, longest, PROBE_RATE)[0].num_tokens for forecast in due
        ):
            num_tokens = min(PROBE_TOKENS, costs.first_tokens(self._under))
            # All rows take part in the step, so all of them probe.
            tried = list(estimates)
            for row, (forecast, limit) in able.items():
                tried[row] = forecast.estimate(min(limit, num_tokens), forecast.rate)
            widths = self.widths.candidates(tried, num_rows)
            if widths and self._is_allowed(members, tried, widths[-1]):
                for forecast, _ in able.values():
                    forecast.probed_s += costs.seconds(num_rows, forecast.num_fed, 0, self._under)
                return tried, widths[-1]
        else:
            costs.decay_to_prior()
        for forecast in due:
            forecast.postpone_probe()
        return estimates, 1

    def _may_catch_up(self, s: Member, num_rows: int) -> bool:
        """Whether to catch up for a probe: after a copy that may take long, and shows little."""
        assert s.drafts
        assert self.model_costs
        forecast, spent_s = s.drafts.forecast, s.drafts.slowdown_budget.spent_s
        catch_up_s = self.model_costs.seconds(num_rows, forecast.num_fed, 0, self._under)
        allowed_s = self._even_s(1) + PROBE_SHARE * spent_s
        return catch_up_s <= self._even_s(1) or forecast.probed_s + catch_up_s <= allowed_s

    def token_steps(self, num_rows: int, source: str) -> float | None:
        """Return the estimated cost of a draft model's token, in plain steps; None for a head."""
        costs, plain_s = self.model_costs, self.costs.least_plain_s(num_rows, self._under)
        if not plain_s or costs is None or source != MODEL:
            return None
        one, two = (costs.seconds(num_rows, 1, num, self._under) for num in (1, 2))
        return (two - one) / plain_s

    def model_pays(self, forecast: DraftForecast, limit: int) -> bool:
        """Whether drafts of up to limit tokens by the draft model would pay for a single row."""
        return self._estimate_by_model(forecast, 1, limit, forecast.rate)[0].num_tokens > 0

    def _estimate_by_model(
        self, forecast: DraftForecast, num_rows: int, limit: int, rate: float
    ) -> tuple[DraftEstimate, float]:
        """Estimate a draft by the draft model, of the best length if all rows were like this one.

        Returns the estimate, without tokens if no length pays, and the tokens per second that it promises.
        rate: the chance that one of its tokens is accepted. limit: maximum tokens.
        """
        costs, under = self.model_costs, self._under
        assert costs
        estimate = forecast.estimate(min(limit, costs.max_tokens(rate, under)), rate)
        # This cheap test rejects most drafts.
        if estimate.expected[-1] < MIN_GAIN * self.costs.min_ratio(num_rows, under):
            return DraftEstimate(), 0.0
        even_s = self.costs.even_steps(num_rows, under)

        def step_s(width: int) -> float:
            work = PlannedDraft.of_row(forecast, estimate, width - 1)
            return costs.spread_s(num_rows, work, under) + even_s(width)

        widths = self.widths.candidates([estimate], num_rows)
        width = choose_width([estimate], widths, step_s, lambda _: True)
        estimate = replace(estimate, expected=estimate.expected[:width])
        return estimate, estimate.expected[-1] / step_s(width)

    def _choose(self, members: Sequence[Member], estimates: Sequence[DraftEstimate]) -> int:
        num_rows, model_costs = len(members), self._asked(estimates)

        def step_s(width: int) -> float:
            # The same, but quicker, if all rows share a forward pass.
            even_s = self._even_s(width) if self.costs.batched else None
            step_s = even_s or self.costs.step_s(self._fed(estimates, width), self._under)
            if model_costs:
                step_s += model_costs.spread_s(num_rows, _work(members, estimates, width), self._under)
            return step_s

        widths = self.widths.candidates(estimates, num_rows)
        return choose_width(estimates, widths, step_s, partial(self._is_allowed, members, estimates))

    def _is_allowed(self, members: Sequence[Member], estimates: Sequence[DraftEstimate], width: int) -> bool:
        """Whether every row's slowdown budget allows a step of a width, all costs included."""
        taken_s = self.costs.most_s(self._fed(estimates, width), self._under)
        if model_costs := self._asked(estimates):
            taken_s += model_costs.most_s(len(members), _work(members, estimates, width), self._under)
        return taken_s <= self._left_s

    def _asked(self, estimates: Sequence[DraftEstimate]) -> DraftModelCosts | None:
        """Return the draft model's costs if it drafts for any of these rows, else None."""
        return self.model_costs if any(e.draft.source in MODELS for e in estimates) else None

    def _fed(self, estimates: Sequence[DraftEstimate], width: int) -> list[int]:
        """Return the tokens that each row feeds in a step; rows that share a pass are padded to its width."""
        if self.costs.batched:
            return [width] * len(estimates)
        return [1 + estimate.num_at(width) for estimate in estimates]

    def charge_plain(
        self,
        budgets: Sequence[SlowdownBudget | None],
        under: Conditions,
        taken_s: float | None,
        is_steady: bool,
        follows_drafts: bool,
        planning_s: float = 0.0,
    ) -> None:
        """Account for a plain step: teach the costs, and charge the slowdown budgets of its rows.

        taken_s: its seconds; None if not known: then the expected seconds are charged.
        planning_s: the part of taken_s spent on planning drafts.
        is_steady: whether another plain step of the same rows was in flight at its dispatch. Only then does
            its time measure a plain step.
        follows_drafts: whether drafts are why there was none.
        """
        costs, num_rows = self.costs, len(budgets)
        if taken_s is None or not costs.is_learned:
            taken_s = plain_s = costs.seconds(num_rows, 1, under)
        else:
            plain_s = max(taken_s - planning_s, 1e-9)
            if is_steady:
                costs.observe_plain(num_rows, plain_s, under)
            elif follows_drafts:
                plain_s = min(plain_s, costs.least_plain_s(num_rows, under) or plain_s)
        for budget in filter(None, budgets):
            budget.charge(taken_s, plain_s, 1)
            if is_steady:
                budget.num_unseen = 0

    def charge_verification(
        self,
        budgets: Sequence[SlowdownBudget | None],
        under: Conditions,
        outcomes: Sequence[Outcome],
        taken_s: float,
        drafting_s: float = 0.0,
        work: DraftWork | None = None,
    ) -> None:
        """Account for a verification step: teach the costs, and charge the slowdown budgets of its rows.

        taken_s: the step's seconds, of which drafting_s were the draft model's work, if any.
        """
        costs, num_rows, is_plain = self.costs, len(outcomes), False
        widths = [outcome.verified.width for outcome in outcomes]
        least_widths = [outcome.verified.least_width for outcome in outcomes]
        plain_s = costs.least_plain_s(num_rows, under)
        if not costs.is_learned:
            taken_s = costs.step_s(widths, under)
            if work and self.model_costs:
                taken_s += self.model_costs.seconds(num_rows, work.num_fed, work.num_drafted, under)
        elif max(widths) > 1:
            if plain_s is not None:
                ratio = costs.step_s(widths, under) / costs.seconds(num_rows, 1, under)
                plain_s = min(plain_s, (taken_s - drafting_s) / max(1.0, ratio))
            costs.observe_wide(widths, taken_s - drafting_s, under)
        elif work is None and under.sampling == MASKED:
            # With a grammar every token is fetched before the next step, drafting or not.
            costs.observe_plain(num_rows, taken_s, under)
            plain_s, is_plain = taken_s, True
        if work and self.model_costs:
            self.model_costs.observe(num_rows, work.num_fed, work.num_drafted, drafting_s, under)
        if max(least_widths) > 1:
            # The others are not charged for what the row with a window takes.
            share = costs.step_s(least_widths, under) / costs.step_s(widths, under)
            plain_s = min(1.0, share) * (taken_s - drafting_s)
        for budget, outcome in zip(budgets, outcomes, strict=True):
            if budget:
                budget.charge(taken_s, plain_s or taken_s, len(outcome.tokens))
                if is_plain:
                    budget.num_unseen = 0


def _work(members: Sequence[Member], estimates: Sequence[DraftEstimate], width: int) -> PlannedDraft:
    """Return the draft model's expected work for a step of a width."""
    return PlannedDraft.combine(
        (s.drafts.forecast, estimate, estimate.num_at(width))
        for s, estimate in zip(members, estimates, strict=True)
        if s.drafts and estimate.draft.source in MODELS
    )


def _any_draft(s: Member, estimate: DraftEstimate) -> DraftEstimate:
    """Return a row's estimate, or that of its best unprofitable draft: other rows may pay for it."""
    if estimate.num_tokens or s.drafts is None or not s.drafts.best.tokens:
        return estimate
    return s.drafts.acceptance.estimate(s.drafts.best, s.drafts.best_rate)


def _masked(s: Member, estimate: DraftEstimate, step_s: Callable[[int], float]) -> DraftEstimate:
    """Return a row's best draft with masks after it: the given draft, or the last masks' predictions."""
    assert s.drafts
    assert s.drafts.masks
    limit = min(max_draft_tokens(s), s.drafts.limit)
    values = s.drafts.masks.values(step_s, limit)
    drafts = _any_draft(s, estimate), s.drafts.estimate_predicted(limit)
    tried = [add_masks(draft, values, limit) for draft in drafts]
    return max(tried, key=lambda e: max(value / step_s(1 + fed) for fed, value in enumerate(e.expected)))


def _is_likely(rate: float, num_tokens: int) -> bool:
    """Whether a draft is so likely to be accepted that only a step's cost can rule it out."""
    num_judged = min(num_tokens, EXAMPLE_WIDTH - 1)
    return expected_tokens(rate, num_judged) - 1 >= STRONG * num_judged
