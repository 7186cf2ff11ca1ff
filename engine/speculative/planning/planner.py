"""Decide whether the next step verifies drafts, and what every row feeds in it."""

import math
from collections.abc import Callable, Sequence
from functools import partial

from reprise.engine.interface.spans import spend
from reprise.engine.kv_cache.exact_widths import Exactness
from reprise.engine.speculative.costs.cost_table import USUAL, Conditions, StepPrice, context_class
from reprise.engine.speculative.costs.slowdown_budget import LOW_STEPS
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_length import (
    MIN_GAIN,
    Demands,
    DraftEstimate,
    choose_width,
    expected_tokens,
    find_demands,
    meets_any,
)
from reprise.engine.speculative.draft_model.forecast import MODELS, DraftModelCosts
from reprise.engine.speculative.draft_stats import DEAR, INEXACT, SPENT, UNLIKELY, UNMATCHED, UNREAD
from reprise.engine.speculative.mask_drafts import add_masks
from reprise.engine.speculative.planning.accounts import StepAccounts
from reprise.engine.speculative.planning.candidates import (
    CandidateWidths,
    Member,
    ModelPart,
    fed_width,
    max_draft_tokens,
    may_draft,
    num_text_at,
    planned_draft,
    row_input,
)
from reprise.engine.speculative.verify import RowInput

HOPE = 1.1
"""By how much a width that is tried must be faster than the chosen one, if its cost is the least possible."""

STRONG = 0.5
"""Share of the tokens that a trial feeds, without masks, which must be expected to be committed."""

EXAMPLE_WIDTH = 8
"""Maximum width of the step whose cost is told to explain why nothing was drafted."""


class Planner:
    """Weighs the tokens that drafts promise against the time that steps take.

    costs: of the target's steps.
    exact: if not None, it has the only (rows, width) besides width 1 that a forward pass may have.
    model_costs: costs of the draft model's part of a step; None without a draft model.

    widths: chooses the widths that a step may have. model: weighs the draft model's part of steps.
    accounts: learns what steps took, and charges them to the rows' slowdown budgets.
    """

    def __init__(
        self,
        costs: StepCosts,
        exact: Exactness | None = None,
        model_costs: DraftModelCosts | None = None,
    ) -> None:
        self.costs = costs
        self.widths = CandidateWidths(costs, exact)
        self.model = ModelPart(costs, self.widths, model_costs)
        self.accounts = StepAccounts(costs, model_costs)
        # Of the step that is being planned: its conditions, and the maximum seconds that budgets allow it.
        self._under = USUAL
        self._left_s = math.inf

    def conditions(self, members: Sequence[Member]) -> Conditions:
        """Return the conditions of a step of these rows."""
        longest = max([len(s.tokens) for s in members])
        return Conditions(context_class(longest), max([s.sampling for s in members]))

    def plan(self, members: Sequence[Member]) -> list[RowInput]:
        """Return the rows' inputs for a verification step; empty if a plain step is better.

        While a step is in flight the plan is a forecast, as that step's token is missing.
        """
        if not any(s.drafts and s.drafts.can_draft for s in members):
            return []
        self._under = self.model.under = self.conditions(members)
        self.widths.note_longest(max([len(s.tokens) for s in members]))
        plain_s = self.costs.least_plain_s(len(members), self._under) or math.inf
        budgets = [s.drafts.slowdown_budget for s in members if s.drafts]
        self._left_s = min([budget.left_s(plain_s) for budget in budgets], default=math.inf)
        if self.costs.is_plain_due(len(members), self._under) or (
            self._left_s < LOW_STEPS * plain_s and any(budget.wants_plain(plain_s) for budget in budgets)
        ):
            return []
        # Not even a step as short as a plain one is allowed, so no draft helps.
        if self._left_s < plain_s:
            _note_spent(members)
            return []
        estimates, min_tokens = [], MIN_GAIN * self.costs.min_ratio(len(members), self._under)
        is_worth = self._make_is_worth(len(members))
        for s in members:
            try:
                estimates.append(self._best_draft(s, len(members), min_tokens, is_worth))
            # An answer needs no drafts.
            except Exception as fault:
                s.give_up_drafts(fault)
                estimates.append(DraftEstimate())
        spend("drafters", sum([s.drafts.asked_s for s in members if s.drafts]))
        # If no draft would pay with all rows like its own, no width pays for all rows together.
        width = 1
        if any(estimate.is_worth for estimate in estimates):
            estimates = [
                estimate if estimate.is_worth else self._any_draft(s, estimate)
                for s, estimate in zip(members, estimates, strict=True)
            ]
            width = self._choose(members, estimates)
        estimates, width = self._try(members, estimates, width)
        if width == 1:
            estimates, width = self.model.probe(members, estimates, partial(self._make_check, members))
        if width == 1:
            self._note_undrafted(members, estimates)
            return []
        return [row_input(s, estimate, width) for s, estimate in zip(members, estimates, strict=True)]

    def _make_is_worth(self, num_rows: int) -> Callable[[DraftEstimate], bool]:
        """Return a function: whether a draft pays in a step of rows that are all like its own."""
        step_s = self.costs.even_steps(num_rows, self._under)
        demands: dict[int, Demands] = {}

        def is_worth(estimate: DraftEstimate) -> bool:
            # Most drafts pay, or do not, whatever is done where they become less certain.
            widest = len(estimate.expected)
            if (measured := demands.get(widest)) is None:
                measured = demands[widest] = find_demands(self.widths.measured(num_rows, widest), step_s)
            if meets_any(estimate, measured):
                return True
            return bool(estimate.stops) and meets_any(
                estimate, find_demands(self.widths.candidates([estimate], num_rows), step_s)
            )

        return is_worth

    def _best_draft(
        self,
        s: Member,
        num_rows: int,
        min_tokens: float,
        is_worth: Callable[[DraftEstimate], bool],
    ) -> DraftEstimate:
        """Return a row's best draft: a drafter's if one pays, else the draft model's if that pays.

        min_tokens, is_worth: see SequenceDrafts.propose(); the same for all rows.
        """
        max_tokens = max_draft_tokens(s)
        if s.drafts is None or max_tokens < 1:
            return DraftEstimate()
        estimate = s.drafts.propose(max_tokens, min_tokens, is_worth)
        if not estimate.is_worth and s.drafts.can_ask_model and self.model.costs is not None:
            forecast = s.drafts.forecast
            by_model = self.model.estimate(forecast, num_rows, min(max_tokens, s.drafts.limit), forecast.rate)
            estimate = by_model if by_model.num_tokens else estimate
        if s.drafts.masks and estimate.draft.source not in MODELS:
            masked = self._masked(s, estimate, self.costs.even_steps(num_rows, self._under))
            masked.is_worth = is_worth(masked)
            estimate = masked if masked.is_worth else estimate
        return estimate

    def _masked(self, s: Member, estimate: DraftEstimate, step_s: Callable[[int], float]) -> DraftEstimate:
        """Return a row's best draft with masks behind it: the given draft, or what the last masks predict."""
        assert s.drafts
        assert s.drafts.masks
        limit = min(max_draft_tokens(s), s.drafts.limit)
        values = s.drafts.masks.values(step_s, limit)
        tried = [
            add_masks(each, values, limit)
            for each in (self._any_draft(s, estimate), s.drafts.estimate_predicted(limit))
        ]
        return max(tried, key=lambda e: max(value / step_s(1 + fed) for fed, value in enumerate(e.expected)))

    def _any_draft(self, s: Member, estimate: DraftEstimate) -> DraftEstimate:
        """Return a row's estimate; if it has no draft worth its cost, that of its best draft.

        It is verified only if other rows' drafts pay for the step.
        """
        if estimate.num_tokens or s.drafts is None or s.drafts.best is None:
            return estimate
        return s.drafts.estimate_best()

    def _note_undrafted(self, members: Sequence[Member], estimates: Sequence[DraftEstimate]) -> None:
        """Count why the rows get no drafts, for people."""
        # The plan is made; would a width pay if the budgets allowed it?
        self._left_s = math.inf
        is_spent = any(estimate.is_worth for estimate in estimates) and self._choose(members, estimates) > 1
        for s, estimate in zip(members, estimates, strict=True):
            if not s.drafts or not may_draft(s):
                continue
            num_tokens = len(estimate.draft.tokens)
            if estimate.is_worth:
                # Alone the draft would pay; other rows have too little to draft.
                reason = SPENT if is_spent else DEAR
            elif s.drafts.best:
                draft, rate = s.drafts.best
                num_tokens = len(draft.tokens)
                reason = DEAR if _is_likely(rate, num_tokens) else UNLIKELY
                if not self.widths.measured(len(members), 1 + num_tokens):
                    reason = INEXACT
            elif s.drafts.can_ask_model:
                reason = DEAR if _is_likely(s.drafts.forecast.rate, 1) else UNLIKELY
                s.drafts.counts.token_steps = self.model.token_steps(len(members), s.drafts.forecast.source)
            else:
                reason = UNREAD if s.drafts.uses_model else UNMATCHED
            price = self._price(len(members), num_tokens) if reason == DEAR else None
            s.drafts.counts.add_undrafted(reason, price)

    def _price(self, num_rows: int, num_tokens: int) -> StepPrice | None:
        """Return the cost of a step that verifies a draft of so many tokens.

        None without any: the draft model makes its tokens later, and most of their cost is its own.
        """
        width = min(1 + num_tokens, EXAMPLE_WIDTH)
        return self.costs.price(num_rows, width, self._under) if num_tokens else None

    def _try(
        self, members: Sequence[Member], estimates: list[DraftEstimate], chosen: int
    ) -> tuple[list[DraftEstimate], int]:
        """Try a width whose cost is believed to be too high for what it promises: the belief may be wrong.

        Only drafts that are likely to be accepted are tried, only now and then, and only if every slowdown
        budget allows it. Returns the estimates and the step's width; the given ones if no trial is due.
        """
        if not self.costs.is_learned:
            return estimates, chosen
        tried, num_rows = estimates, len(members)
        least_s = self.costs.least_steps(num_rows, self._under)
        if chosen == 1:
            tried = [
                self._masked(s, estimate, least_s)
                if s.drafts and s.drafts.masks and max_draft_tokens(s) > 0
                else self._any_draft(s, estimate)
                for s, estimate in zip(members, estimates, strict=True)
            ]
        widest = max([len(estimate.expected) for estimate in tried])
        if widest == 1 or self.model.is_asked(tried):
            return estimates, chosen
        is_allowed = self._make_check(members, tried)

        def promise(width: int) -> float:
            return sum([e.expected[min(width, len(e.expected)) - 1] for e in tried])

        step_s = self.costs.even_steps(num_rows, self._under)
        best = HOPE * promise(chosen) / step_s(chosen)
        hoped = {
            width: promise(width) / least_s(width)
            for width in self.widths.measured(num_rows, widest)
            if width != chosen and promise(width) >= STRONG * sum([1 + num_text_at(e, width) for e in tried])
        }
        due = [w for w, speed in hoped.items() if speed > best and self.costs.is_trial_due(num_rows, w)]
        width = next(filter(is_allowed, sorted(due, key=hoped.__getitem__, reverse=True)), chosen)
        return (tried, width) if width != chosen else (estimates, chosen)

    def _choose(self, members: Sequence[Member], estimates: Sequence[DraftEstimate]) -> int:
        num_rows, fed_widths = len(members), self._make_fed_widths(estimates)
        is_model_asked = self.model.is_asked(estimates)

        even_s = self.costs.even_steps(num_rows, self._under) if self.costs.batched else None

        def step_s(width: int) -> float:
            step_s = even_s(width) if even_s else self.costs.step_s(fed_widths(width), self._under)
            if is_model_asked:
                step_s += self.model.spread_s(num_rows, planned_draft(members, estimates, width))
            return step_s

        return choose_width(
            estimates,
            self.widths.candidates(estimates, num_rows),
            step_s,
            self._make_check(members, estimates),
        )

    def _make_fed_widths(self, estimates: Sequence[DraftEstimate]) -> Callable[[int], Sequence[int]]:
        """Return a function: how many tokens the rows feed in a step of a width of _widths(), or 1.

        Of rows that share a forward pass only the widest counts, so all get its width.
        """
        if not self.costs.batched:
            return lambda width: [fed_width(estimate, width) for estimate in estimates]
        return lambda width: [width] * len(estimates)

    def _make_check(
        self, members: Sequence[Member], estimates: Sequence[DraftEstimate]
    ) -> Callable[[int], bool]:
        """Return a function: whether every row's slowdown budget allows a step of a width, with all costs."""
        fed_widths = self._make_fed_widths(estimates)
        is_model_asked = self.model.is_asked(estimates)

        def is_allowed(width: int) -> bool:
            taken_s = self.costs.most_s(fed_widths(width), self._under)
            if is_model_asked:
                taken_s += self.model.most_s(len(members), planned_draft(members, estimates, width))
            return taken_s <= self._left_s

        return is_allowed


def _note_spent(members: Sequence[Member]) -> None:
    for s in members:
        if s.drafts and may_draft(s):
            s.drafts.counts.add_undrafted(SPENT)


def _is_likely(rate: float, num_tokens: int) -> bool:
    """Whether so much of a draft is expected to be accepted that only a step's cost can be against it."""
    num_judged = min(num_tokens, EXAMPLE_WIDTH - 1)
    return expected_tokens(rate, num_judged) - 1 >= STRONG * num_judged
