"""Account for the time that steps take: teach the costs, and charge the slowdown budgets of all rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from reprise.engine.speculative.costs.cost_table import MASKED, Conditions
from reprise.engine.speculative.costs.slowdown_budget import SlowdownBudget
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_model.forecast import DraftModelCosts, DraftWork


@dataclass(slots=True)
class Verified:
    """How many tokens each row of a verification step fed, and how many it committed.

    least_widths: how many each would have fed without drafts; empty if no row has a window.
    """

    widths: Sequence[int]
    num_committed: Sequence[int]
    least_widths: Sequence[int] = ()


class StepAccounts:
    """Charges each step to the slowdown budgets: its real seconds, and the plain time of its tokens.

    costs: of the target's steps. model_costs: of the draft model's part; None without a draft model.
    """

    def __init__(self, costs: StepCosts, model_costs: DraftModelCosts | None = None) -> None:
        self._costs = costs
        self._model_costs = model_costs

    def charge_plain(
        self,
        budgets: Sequence[SlowdownBudget | None],
        under: Conditions,
        taken_s: float | None,
        is_steady: bool,
        follows_drafts: bool,
        planning_s: float = 0.0,
    ) -> None:
        """Account for a plain step.

        budgets: of its rows. taken_s: its seconds; None if not known: then the expected ones are charged.
        is_steady: whether the step was dispatched while another plain step of the same rows was in flight, as
            all steps of plain decoding are. Such a step shows what plain steps cost.
        follows_drafts: whether verified drafts, or draft prefill, before the step kept it from being steady.
        planning_s: how many of the step's seconds went into planning drafts.
        """
        costs, num_rows = self._costs, len(budgets)
        if taken_s is None or not costs.is_learned:
            taken_s = plain_s = costs.seconds(num_rows, 1, under)
        else:
            plain_s = max(taken_s - planning_s, 1e-9)
            if is_steady:
                costs.observe_plain(num_rows, plain_s, under)
            elif follows_drafts:
                plain_s = min(plain_s, costs.least_plain_s(num_rows, under) or plain_s)
        for budget in budgets:
            if budget:
                budget.charge(taken_s, plain_s, 1)
                if is_steady:
                    budget.num_unseen = 0

    def charge_verification(
        self,
        budgets: Sequence[SlowdownBudget | None],
        under: Conditions,
        verified: Verified,
        taken_s: float,
        drafting_s: float = 0.0,
        work: DraftWork | None = None,
    ) -> None:
        """Account for a verification step.

        budgets, verified: of the step's rows. taken_s: the step's seconds, of which drafting_s went into the
        draft model's work. work: that work, if there was any.
        """
        costs, widths, num_rows = self._costs, verified.widths, len(verified.widths)
        plain_s = costs.least_plain_s(num_rows, under)
        if not costs.is_learned:
            taken_s = costs.step_s(widths, under)
            if work and self._model_costs:
                taken_s += self._model_costs.seconds(num_rows, work.num_fed, work.num_drafted, under)
        elif max(widths) > 1:
            if plain_s is not None:
                ratio = costs.step_s(widths, under) / costs.seconds(num_rows, 1, under)
                plain_s = min(plain_s, (taken_s - drafting_s) / max(1.0, ratio))
            costs.observe_wide(widths, taken_s - drafting_s, under)
        elif work is None and under.sampling == MASKED:
            # With a grammar every token is fetched before the next step, drafting or not.
            costs.observe_plain(num_rows, taken_s, under)
            plain_s = taken_s
        if work and self._model_costs:
            self._model_costs.observe(num_rows, work.num_fed, work.num_drafted, drafting_s, under)
        if least_widths := verified.least_widths:
            # The others are not charged for what the row with a window takes.
            share = costs.step_s(least_widths, under) / costs.step_s(widths, under)
            plain_s = min(1.0, share) * (taken_s - drafting_s)
        for budget, num_tokens in zip(budgets, verified.num_committed, strict=True):
            if budget:
                budget.charge(taken_s, plain_s or taken_s, num_tokens)
