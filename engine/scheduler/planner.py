"""Decide whether the next step verifies drafts, and what every row feeds in it."""

import math
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from drafters.base import NO_DRAFT
from engine.scheduler.candidate_widths import CandidateWidths
from engine.sequence.sequence import Sequence
from engine.speculative.accounts import StepAccounts
from engine.speculative.costs.conditions import USUAL, Conditions, context_class
from engine.speculative.costs.exact_widths import Exactness
from engine.speculative.costs.slowdown_budget import LOW_STEPS
from engine.speculative.costs.step_costs import StepCosts
from engine.speculative.costs.step_price import StepPrice
from engine.speculative.draft_length import (
    MIN_GAIN,
    Demands,
    DraftEstimate,
    choose_width,
    expected_tokens,
    find_demands,
    meets_any,
)
from engine.speculative.draft_model.costs import DraftModelCosts, ShareOfTarget
from engine.speculative.draft_model.forecast import (
    MODELS,
    PROBE_RATE,
    PROBE_TOKENS,
    DraftForecast,
    PlannedDraft,
)
from engine.speculative.draft_stats import DEAR, INEXACT, SPENT, UNLIKELY, UNMATCHED, UNREAD
from engine.speculative.mask_drafts import add_masks
from engine.speculative.verify import RowInput
from engine.speculative.window import WindowInput
from engine.stations import spend

MODEL_DOUBT = 2.0
"""By which factor the draft model's cost may be wrong while it was hardly observed."""

HOPE = 1.1
"""By how much a width that is tried must be faster than the chosen one, if its cost is the least possible."""

STRONG = 0.5
"""Share of the tokens that a trial feeds, without masks, which must be expected to be committed."""

EXAMPLE_WIDTH = 8
"""Maximum width of the step whose cost is told to explain why nothing was drafted."""

STEADY_FED = 2
"""Maximum tokens fed before a draft while the draft model drafts at every step; more is catching up."""


class Planner:
    """Weighs the tokens that drafts promise against the time that steps take.

    costs: of the target's steps.
    exact: if not None, it has the only (rows, width) besides width 1 that a forward pass may have.
    model_costs: costs of the draft model's part of a step; None without a draft model.
    replays: whether accepted tokens are fed again after a rejection, because of recurrent state.

    widths: those that a step may have.
    accounts: learns what steps took, and charges them to the rows' slowdown budgets.
    num_plain_probes: plain steps taken only to learn what they cost.
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
        self.accounts = StepAccounts(costs, model_costs)
        self.num_plain_probes = 0
        # Of the step that is being planned: its conditions, and the maximum seconds that budgets allow it.
        self._under = USUAL
        self._left_s = math.inf

    def conditions(self, members: SequenceOf[Sequence]) -> Conditions:
        """Return the conditions of a step of these rows."""
        longest = max([len(s.tokens) for s in members])
        return Conditions(context_class(longest), max([s.sampling for s in members]))

    def model_s(self, num_rows: int, num_fed: int, num_drafted: int) -> float:
        """Return the expected seconds of the draft model's part of a step. See DraftModelCosts."""
        if self.model_costs is None or not num_fed:
            return 0.0
        return self.model_costs.seconds(num_rows, num_fed, num_drafted, self._under)

    def model_token_steps(self, num_rows: int) -> float | None:
        """Return the believed cost of a draft model's token, in plain steps; None of a head."""
        plain_s = self.costs.least_plain_s(num_rows, self._under)
        if not plain_s or self.model_costs is None or isinstance(self.model_costs.alone, ShareOfTarget):
            return None
        return (self.model_s(num_rows, 1, 2) - self.model_s(num_rows, 1, 1)) / plain_s

    def plan(self, members: SequenceOf[Sequence]) -> list[RowInput]:
        """Return the rows' inputs for a verification step; empty if a plain step is better.

        While a step is in flight the plan is a forecast, as that step's token is missing.
        """
        if not any(s.drafts and s.drafts.can_draft for s in members):
            return []
        self._under = self.conditions(members)
        self.widths.note_longest(max([len(s.tokens) for s in members]))
        plain_s = self.costs.least_plain_s(len(members), self._under) or math.inf
        budgets = [s.drafts.slowdown_budget for s in members if s.drafts]
        self._left_s = min([budget.left_s(plain_s) for budget in budgets], default=math.inf)
        if self.costs.is_plain_due(len(members), self._under) or (
            self._left_s < LOW_STEPS * plain_s and any(budget.wants_plain(plain_s) for budget in budgets)
        ):
            self.num_plain_probes += 1
            return []
        # Not even a step as short as a plain one is allowed, so no draft helps.
        if self._left_s < plain_s:
            _note_spent(members)
            return []
        estimates, min_tokens = [], MIN_GAIN * self._min_ratio(len(members))
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
            estimates, width = self._probe(members, estimates)
        if width == 1:
            self._note_undrafted(members, estimates)
            return []
        return [_row_input(s, estimate, width) for s, estimate in zip(members, estimates, strict=True)]

    def model_pays(self, forecast: DraftForecast, limit: int) -> bool:
        """Whether drafts of up to limit tokens by the draft model would pay for a single row."""
        return self._estimate_model_draft(forecast, 1, limit, forecast.rate).num_tokens > 0

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
        s: Sequence,
        num_rows: int,
        min_tokens: float,
        is_worth: Callable[[DraftEstimate], bool],
    ) -> DraftEstimate:
        """Return a row's best draft: a drafter's if one pays, else the draft model's if that pays.

        min_tokens, is_worth: see SequenceDrafts.propose(); the same for all rows.
        """
        max_tokens = _max_draft_tokens(s)
        if s.drafts is None or max_tokens < 1:
            return DraftEstimate()
        estimate = s.drafts.propose(max_tokens, min_tokens, is_worth)
        if not estimate.is_worth and s.drafts.can_ask_model and self.model_costs is not None:
            forecast = s.drafts.forecast
            by_model = self._estimate_model_draft(
                forecast, num_rows, min(max_tokens, s.drafts.limit), forecast.rate
            )
            estimate = by_model if by_model.num_tokens else estimate
        if s.drafts.masks and estimate.draft.source not in MODELS:
            masked = self._masked(s, estimate, self.costs.even_steps(num_rows, self._under))
            masked.is_worth = is_worth(masked)
            estimate = masked if masked.is_worth else estimate
        return estimate

    def _masked(self, s: Sequence, estimate: DraftEstimate, step_s: Callable[[int], float]) -> DraftEstimate:
        """Return a row's best draft with masks behind it: the given draft, or what the last masks predict."""
        assert s.drafts
        assert s.drafts.masks
        limit = min(_max_draft_tokens(s), s.drafts.limit)
        values = s.drafts.masks.values(step_s, limit)
        tried = [
            add_masks(each, values, limit)
            for each in (self._any_draft(s, estimate), s.drafts.estimate_predicted(limit))
        ]
        return max(tried, key=lambda e: max(value / step_s(1 + fed) for fed, value in enumerate(e.expected)))

    def _any_draft(self, s: Sequence, estimate: DraftEstimate) -> DraftEstimate:
        """Return a row's estimate; if it has no draft worth its cost, that of its best draft.

        It is verified only if other rows' drafts pay for the step.
        """
        if estimate.num_tokens or s.drafts is None or s.drafts.best is None:
            return estimate
        return s.drafts.estimate_best()

    def _estimate_model_draft(
        self, forecast: DraftForecast, num_rows: int, limit: int, rate: float
    ) -> DraftEstimate:
        """Estimate a draft by the draft model, of the length that pays best if all rows are like this one.

        Returns an estimate without tokens if no length pays.
        rate: the chance that one of its tokens is accepted. limit: maximum tokens.
        """
        if self.model_costs:
            limit = min(limit, self.model_costs.max_tokens(rate, self._under))
        estimate = forecast.estimate(limit, rate)
        # This cheap test rejects most drafts.
        if estimate.expected[-1] < MIN_GAIN * self._min_ratio(num_rows):
            return DraftEstimate()

        even_s = self.costs.even_steps(num_rows, self._under)

        def step_s(width: int) -> float:
            work = PlannedDraft.of_row(forecast, estimate, width - 1)
            return self._spread_s(num_rows, work) + even_s(width)

        width = choose_width([estimate], self.widths.candidates([estimate], num_rows), step_s, lambda _: True)
        return replace(estimate, expected=estimate.expected[:width])

    def _note_undrafted(self, members: SequenceOf[Sequence], estimates: SequenceOf[DraftEstimate]) -> None:
        """Count why the rows get no drafts, for people."""
        # The plan is made; would a width pay if the budgets allowed it?
        self._left_s = math.inf
        is_spent = any(estimate.is_worth for estimate in estimates) and self._choose(members, estimates) > 1
        for s, estimate in zip(members, estimates, strict=True):
            if not s.drafts or not _may_draft(s):
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
                s.drafts.counts.token_steps = self.model_token_steps(len(members))
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
        self, members: SequenceOf[Sequence], estimates: list[DraftEstimate], chosen: int
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
                if s.drafts and s.drafts.masks and _max_draft_tokens(s) > 0
                else self._any_draft(s, estimate)
                for s, estimate in zip(members, estimates, strict=True)
            ]
        widest = max([len(estimate.expected) for estimate in tried])
        if widest == 1 or self._is_model_asked(tried):
            return estimates, chosen
        is_allowed = self._make_check(members, tried)

        def promise(width: int) -> float:
            return sum([e.expected[min(width, len(e.expected)) - 1] for e in tried])

        step_s = self.costs.even_steps(num_rows, self._under)
        best = HOPE * promise(chosen) / step_s(chosen)
        hoped = {
            width: promise(width) / least_s(width)
            for width in self.widths.measured(num_rows, widest)
            if width != chosen and promise(width) >= STRONG * sum([1 + _num_text(e, width) for e in tried])
        }
        due = [w for w, speed in hoped.items() if speed > best and self.costs.is_trial_due(num_rows, w)]
        width = next(filter(is_allowed, sorted(due, key=hoped.__getitem__, reverse=True)), chosen)
        return (tried, width) if width != chosen else (estimates, chosen)

    def _probe(
        self, members: SequenceOf[Sequence], estimates: list[DraftEstimate]
    ) -> tuple[list[DraftEstimate], int]:
        """Try the draft model again for rows that have not used it for long: a short draft for every row.

        Returns the probes' estimates and the step's width; the given estimates and 1 if no probe is due or a
        slowdown budget does not allow it.
        """
        able = [s for s in members if s.drafts and s.drafts.can_ask_model and _max_draft_tokens(s) > 0]
        due = [s.drafts.forecast for s in able if s.drafts and s.drafts.forecast.is_probe_due]
        if self.model_costs is None or not due:
            return estimates, 1
        num_rows = len(members)
        limit = max(min(_max_draft_tokens(s), s.drafts.limit) for s in able if s.drafts)
        if self.model_costs.is_new(self._under) or any(
            self._estimate_model_draft(forecast, num_rows, limit, PROBE_RATE).num_tokens for forecast in due
        ):
            num_tokens = min(PROBE_TOKENS, self.model_costs.first_tokens(self._under))
            # All rows take part in the step, so all of them probe.
            tried = [
                _probe_of(s, num_tokens) if s in able else estimate
                for s, estimate in zip(members, estimates, strict=True)
            ]
            widths = self.widths.candidates(tried, num_rows)
            if widths and self._make_check(members, tried)(widths[-1]):
                return tried, widths[-1]
        else:
            self.model_costs.decay_to_prior()
        for forecast in due:
            forecast.postpone_probe()
        return estimates, 1

    def _min_ratio(self, num_rows: int) -> float:
        """Return the cost of the cheapest verification step, relative to a plain step."""
        return self.costs.min_ratio(num_rows, self._under)

    def _choose(self, members: SequenceOf[Sequence], estimates: SequenceOf[DraftEstimate]) -> int:
        num_rows, fed_widths = len(members), self._make_fed_widths(estimates)
        is_model_asked = self._is_model_asked(estimates)

        even_s = self.costs.even_steps(num_rows, self._under) if self.costs.batched else None

        def step_s(width: int) -> float:
            step_s = even_s(width) if even_s else self.costs.step_s(fed_widths(width), self._under)
            if is_model_asked:
                step_s += self._spread_s(num_rows, _planned(members, estimates, width))
            return step_s

        return choose_width(
            estimates,
            self.widths.candidates(estimates, num_rows),
            step_s,
            self._make_check(members, estimates),
        )

    def _is_model_asked(self, estimates: SequenceOf[DraftEstimate]) -> bool:
        return self.model_costs is not None and any(e.draft.source in MODELS for e in estimates)

    def _make_fed_widths(self, estimates: SequenceOf[DraftEstimate]) -> Callable[[int], SequenceOf[int]]:
        """Return a function: how many tokens the rows feed in a step of a width of _widths(), or 1.

        Of rows that share a forward pass only the widest counts, so all get its width.
        """
        if not self.costs.batched:
            return lambda width: [_fed_width(estimate, width) for estimate in estimates]
        return lambda width: [width] * len(estimates)

    def _make_check(
        self, members: SequenceOf[Sequence], estimates: SequenceOf[DraftEstimate]
    ) -> Callable[[int], bool]:
        """Return a function: whether every row's slowdown budget allows a step of a width, with all costs."""
        fed_widths = self._make_fed_widths(estimates)
        is_model_asked = self._is_model_asked(estimates)

        def is_allowed(width: int) -> bool:
            taken_s = self.costs.most_s(fed_widths(width), self._under)
            if is_model_asked and self.model_costs:
                work = _planned(members, estimates, width)
                doubt = MODEL_DOUBT if self.model_costs.is_new(self._under) else 1.0
                taken_s += doubt * self.model_s(len(members), work.num_fed, work.num_drafted)
            return taken_s <= self._left_s

        return is_allowed

    def _spread_s(self, num_rows: int, work: PlannedDraft) -> float:
        """Return the seconds of the draft model's part of a step, with this step's share of catching up."""
        steady_s = self.model_s(num_rows, min(work.num_fed, STEADY_FED), work.num_drafted)
        return steady_s + work.share * (self.model_s(num_rows, work.num_fed, work.num_drafted) - steady_s)


def _note_spent(members: SequenceOf[Sequence]) -> None:
    for s in members:
        if s.drafts and _may_draft(s):
            s.drafts.counts.add_undrafted(SPENT)


def _may_draft(s: Sequence) -> bool:
    """Whether anything might be drafted for a row: not with drafting off, nor for an answer's last token."""
    return s.drafts is not None and s.drafts.can_draft and _max_draft_tokens(s) > 0


def _is_likely(rate: float, num_tokens: int) -> bool:
    """Whether so much of a draft is expected to be accepted that only a step's cost can be against it."""
    num_judged = min(num_tokens, EXAMPLE_WIDTH - 1)
    return expected_tokens(rate, num_judged) - 1 >= STRONG * num_judged


def _max_draft_tokens(s: Sequence) -> int:
    """Return the maximum tokens of a draft: the answer's remaining tokens but the bonus token."""
    return s.request.max_tokens - s.num_answered - 1


def _probe_of(s: Sequence, num_tokens: int) -> DraftEstimate:
    assert s.drafts
    forecast, limit = s.drafts.forecast, min(_max_draft_tokens(s), s.drafts.limit, num_tokens)
    return forecast.estimate(limit, forecast.rate)


def _planned(members: SequenceOf[Sequence], estimates: SequenceOf[DraftEstimate], width: int) -> PlannedDraft:
    return PlannedDraft.combine(
        (s.drafts.forecast, estimate, _num_drafted(estimate, width))
        for s, estimate in zip(members, estimates, strict=True)
        if s.drafts and estimate.draft.source in MODELS
    )


def _num_drafted(estimate: DraftEstimate, width: int) -> int:
    """Return how many drafted tokens a row feeds in a step of that width, after its newest token."""
    return min(width - 1, estimate.num_tokens)


def _num_text(estimate: DraftEstimate, width: int) -> int:
    """Return how many drafted tokens a row feeds in a step of that width, without masks."""
    num_drafted = _num_drafted(estimate, width)
    return estimate.splits[num_drafted] if estimate.splits else num_drafted


def _fed_width(estimate: DraftEstimate, width: int) -> int:
    """Return how many tokens a row feeds in a step of that width."""
    return 1 + _num_drafted(estimate, width)


def without_drafts(members: SequenceOf[Sequence]) -> list[RowInput]:
    """Return the rows' inputs for a verification step that verifies nothing."""
    return [RowInput(s.tokens[-1], len(s.tokens)) for s in members]


def window_input(s: Sequence, num_held: int) -> WindowInput:
    """Return the input of a row with a window. num_held: tokens in its cache, fewer than it has."""
    assert s.window
    # Under a grammar a hole can only be filled once all tokens before it are known.
    size = 1 if s.matcher else s.window.settings.window_size
    window, pending = s.window.widen(size), s.tokens[num_held:]
    return WindowInput(s.tokens[-1], len(s.tokens), window=window, pending=pending)


def _row_input(s: Sequence, estimate: DraftEstimate, width: int) -> RowInput:
    newest, position, draft = s.tokens[-1], len(s.tokens), estimate.draft
    if estimate.splits and s.drafts and s.drafts.masks:
        num_fed = min(width - 1, estimate.num_tokens)
        tokens = draft.tokens[: estimate.splits[num_fed]]
        mask_tokens = [s.drafts.masks.mask_token_id] * (num_fed - len(tokens))
        return RowInput(newest, position, tokens, draft if tokens else NO_DRAFT, mask_tokens=mask_tokens)
    if tokens := draft.tokens[: width - 1]:
        return RowInput(newest, position, tokens, draft)
    # The draft model makes its tokens later.
    if s.drafts and draft.source in MODELS and (num_wanted := _num_drafted(estimate, width)):
        num_to_draft = s.drafts.forecast.num_to_draft(num_wanted)
        return RowInput(newest, position, source=draft, num_wanted=num_wanted, num_to_draft=num_to_draft)
    return RowInput(newest, position)
