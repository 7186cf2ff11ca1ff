"""Account for the time that steps take: teach the costs, and charge the slowdown budgets of all rows."""

from collections.abc import Sequence

from engine.speculative.costs.conditions import MASKED, Conditions
from engine.speculative.costs.slowdown_budget import SlowdownBudget
from engine.speculative.costs.step_costs import StepCosts
from engine.speculative.draft_model.costs import DraftModelCosts, DraftWork


class StepAccounts:
    """Charges every step's real time, and as plain time what plain steps really took.

    costs: of the target's steps. model_costs: of the draft model's part; None without one.
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

        budgets: of its rows. taken_s: its seconds; None if they are not known and cannot be charged.
        is_steady: whether it was dispatched while another plain step of the same rows was in flight, as all
            steps of plain decoding are. Such a step shows what plain steps cost.
        follows_drafts: whether it was not because verified drafts, or draft prefill, came before it.
        planning_s: how much of its seconds went into planning drafts.
        """
        costs, num_rows = self._costs, len(budgets)
        if taken_s is None or not costs.is_learned:
            taken_s = plain_s = costs.seconds(num_rows, 1, under)
        else:
            plain_s = max(taken_s - planning_s, 1e-9)
            if is_steady:
                costs.observe_plain(num_rows, plain_s, under)
            elif follows_drafts:
                plain_s = costs.least_plain_s(num_rows, under) or plain_s
        for budget in budgets:
            if budget:
                budget.charge(taken_s, plain_s, 1)
                if is_steady:
                    budget.num_unseen = 0

    def charge_verification(
        self,
        budgets: Sequence[SlowdownBudget | None],
        under: Conditions,
        widths: Sequence[int],
        num_committed: Sequence[int],
        taken_s: float,
        drafting_s: float = 0.0,
        work: DraftWork | None = None,
        least_widths: Sequence[int] = (),
    ) -> None:
        """Account for a verification step.

        budgets, widths, num_committed: of its rows. taken_s: its seconds, with drafting_s of them for the
        draft model's work, if it did any. least_widths: of its rows, had they no drafts, if any has a window.
        """
        costs, num_rows = self._costs, len(widths)
        plain_s = costs.least_plain_s(num_rows, under)
        if not costs.is_learned:
            taken_s = costs.step_s(widths, under)
            if work and self._model_costs:
                taken_s += self._model_costs.seconds(num_rows, work.num_fed, work.num_drafted, under)
        elif max(widths) > 1:
            costs.observe_wide(widths, taken_s - drafting_s, under)
        elif work is None and under.sampling == MASKED:
            # With a grammar every token is fetched before the next step, drafting or not.
            costs.observe_plain(num_rows, taken_s, under)
            plain_s = taken_s
        if work and self._model_costs:
            self._model_costs.observe(num_rows, work.num_fed, work.num_drafted, drafting_s, under)
        if least_widths:
            # The others are not charged for what the row with a window takes.
            share = costs.step_s(least_widths, under) / costs.step_s(widths, under)
            plain_s = min(1.0, share) * (taken_s - drafting_s)
        for budget, num_tokens in zip(budgets, num_committed, strict=True):
            if budget:
                budget.charge(taken_s, plain_s or taken_s, num_tokens)
