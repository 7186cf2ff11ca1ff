"""No answer takes longer than plain decoding by more than the stated bound, whatever the planner believes."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from reprise.engine.speculative.costs.cost_table import GREEDY, MASKED, UNSEEN_S, CostTable, grid_up_to
from reprise.engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.planner import without_drafts
from tests.engine.speculative.simulated_rows import UNSTEADY, Device, TrueCosts, token_at

ROWS, WIDTHS = (1, 2, 4, 8), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
PROBING = 0.01
"""The stated share of plain time that learning what plain steps cost may take."""

BAD, POOR, FAIR, GOOD, SURE, NONE = 0.0, 0.4, 0.7, 0.95, 1.0, -1.0


def costs_of(per_token: float, per_context: float) -> TrueCosts:
    """Costs of a device. per_token: of each further token fed. per_context: of each token in the caches."""

    def true_s(num_rows: int, width: int, longest: int) -> float:
        fed = 1 + per_token * (num_rows * width - 1)
        return 0.01 * (fed + per_context * num_rows * longest * (1 + 0.1 * (width - 1)))

    return true_s


def believed(true_s: TrueCosts, wrong: float | str, seed: int) -> StepCosts:
    """Costs measured with short rows, wrong by a factor: in all, of wide steps alone, or of each shape."""
    rng, table = random.Random(seed), {}
    for rows in ROWS:
        for width in WIDTHS:
            factor = wrong if isinstance(wrong, float) else 4.0 ** rng.uniform(-1, 1)
            if wrong in ("wide x 4", "wide / 4"):
                factor = 1.0 if width == 1 else 4.0 if wrong == "wide x 4" else 0.25
            table[rows, width] = factor * true_s(rows, width, 48)
    return StepCosts(table)


def check(device: Device) -> None:
    assert all(one.num_plain + one.num_wide > 0 for one in device.spent)
    for one in device.spent:
        assert one.worst_steps <= ALLOWANCE_STEPS


@pytest.mark.parametrize("wrong", [1.0, 0.25, 4.0, "wide x 4", "wide / 4", "each shape"])
@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize(
    "chances",
    [[BAD], [POOR], [FAIR], [GOOD], [BAD, GOOD], [NONE, GOOD, FAIR], [NONE, NONE, FAIR]],
    ids=str,
)
def test_costs_that_are_wrong_by_any_factor(
    chances: Sequence[float], num_rows: int, wrong: float | str
) -> None:
    for seed, per_token in enumerate((0.01, 0.04, 0.3)):
        true_s = costs_of(per_token, 0.0002)
        device = Device(true_s, believed(true_s, wrong, seed), chances, 48, 150, seed, 0.02 + PROBING)
        device.run(num_rows, 2 * num_rows)
        check(device)


class Misled(Device):
    """The first half of an answer is as it was predicted, and nothing after it."""

    def token(self, _row: Any, index: int) -> int:
        return token_at(index) if 2 * index < self.limit else 8


@pytest.mark.parametrize(
    "wrong", ["each shape", *(pytest.param(one, marks=pytest.mark.slow) for one in (1.0, 0.25, "wide / 4"))]
)
@pytest.mark.parametrize(
    ("make", "chances", "num_rows"),
    [
        (Device, [BAD], 1),
        (Device, [BAD], 8),
        (Device, [BAD] + [NONE] * 7, 8),
        (Device, [GOOD] + [NONE] * 7, 8),
        (Misled, [SURE], 1),
        (Misled, [SURE], 8),
        (Misled, [SURE] + [NONE] * 7, 8),
    ],
    ids=str,
)
def test_answers_of_forty_tokens(
    make: type[Device], chances: Sequence[float], num_rows: int, wrong: float | str
) -> None:
    for seed, per_token in enumerate((0.01, 0.04, 0.3)):
        true_s = costs_of(per_token, 0.0002)
        device = make(true_s, believed(true_s, wrong, seed), chances, 48, 40, seed, 0.02 + PROBING)
        device.run(num_rows, 3 * num_rows)
        check(device)
        assert num_rows > 1 or any(one.num_wide for one in device.spent)


class Changing(Device):
    """A machine that becomes three times faster or slower within an answer, once or in waves.

    period: the tokens of an answer after which it does.
    """

    how, period = "faster", 60

    def cost(self, rows: Sequence[Any], width: int) -> float:
        num_changes = max(row.num_answered for row in rows) // self.period
        is_slow = {"faster": num_changes == 0, "slower": num_changes > 0, "waves": num_changes % 2 == 1}
        return super().cost(rows, width) * (3.0 if is_slow[self.how] else 1.0)


@pytest.mark.parametrize("how", ["faster", "slower", "waves"])
@pytest.mark.parametrize("period", [20, 60, 100])
@pytest.mark.parametrize("chances", [[BAD, GOOD], [NONE, FAIR, FAIR, FAIR], [POOR], [GOOD]], ids=str)
def test_a_machine_that_changes_within_an_answer(chances: Sequence[float], period: int, how: str) -> None:
    for num_rows in (1, 4):
        for per_token in (0.01, 0.04, 0.1, 0.3):
            true_s = costs_of(per_token, 0.0002)
            device = Changing(true_s, believed(true_s, 1.0, 0), chances, 48, 150, 0, 0.02 + PROBING)
            device.how, device.period = how, period
            device.run(num_rows, 2 * num_rows)
            check(device)


@pytest.mark.parametrize("chances", [[BAD, GOOD], [NONE, FAIR], [GOOD]], ids=str)
@pytest.mark.parametrize("period", [20, 60])
def test_a_batch_that_changes_within_an_answer(chances: Sequence[float], period: int) -> None:
    for seed, per_token in enumerate((0.01, 0.04, 0.3)):
        true_s, sizes = costs_of(per_token, 0.0002), random.Random(seed)
        device = Device(true_s, believed(true_s, 1.0, 0), chances, 48, 150, 0, 0.02 + PROBING)
        while len(device.spent) < 12 or device.rows:
            most = sizes.choice([1, 2, 4, 8])
            for _ in range(period):
                while len(device.rows) < most and len(device.spent) < 12:
                    device.join()
                    device.is_steady = False
                if device.rows:
                    device.step_and_drop()
        check(device)


@pytest.mark.parametrize("chances", [[BAD, GOOD], [FAIR], [GOOD]], ids=str)
def test_a_context_that_multiplies_what_steps_take(chances: Sequence[float]) -> None:
    for num_rows in (1, 4):
        true_s = costs_of(0.04, 0.004)
        device = Device(true_s, believed(true_s, 1.0, 0), chances, 48, 600, 0, 0.02 + PROBING)
        device.run(num_rows, 2 * num_rows)
        check(device)


@pytest.mark.parametrize("wrong", [1.0, 0.25, 4.0, "wide x 4", "wide / 4", "each shape"])
@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize(
    "chances",
    [[BAD], [BAD, GOOD], *(pytest.param(one, marks=pytest.mark.slow) for one in ([POOR], [GOOD]))],
    ids=str,
)
def test_masks_whose_costs_are_wrong_by_any_factor(
    chances: Sequence[float], num_rows: int, wrong: float | str
) -> None:
    for seed, per_token in enumerate((0.01, 0.04, 0.3)):
        true_s = costs_of(per_token, 0.0002)
        costs, lookups = believed(true_s, wrong, seed), [NONE, NONE, FAIR]
        device = Device(true_s, costs, lookups, 48, 150, seed, 0.02 + PROBING, mask_chances=chances)
        device.run(num_rows, 2 * num_rows)
        check(device)


@pytest.mark.parametrize(
    ("head_share", "believed_share"), [(0.05, 0.05), (0.5, 0.05), (1.0, 0.5), (5.0, 0.05)]
)
@pytest.mark.parametrize("num_rows", [1, 4])
@pytest.mark.parametrize("chances", [[BAD], [POOR], [BAD, GOOD], [GOOD]], ids=str)
@pytest.mark.parametrize("context", [48, 20_000], ids=["short", "long"])
def test_heads_that_cost_more_than_believed(
    context: int, chances: Sequence[float], num_rows: int, head_share: float, believed_share: float
) -> None:
    """A head's cost is not measured before it drafts, but taken from its share of the weights."""
    for seed, per_token in enumerate((0.01, 0.3)):
        true_s = costs_of(per_token, 0.0002)
        device = Device(true_s, believed(true_s, 1.0, seed), [NONE], context, 150, seed, 0.02 + PROBING)
        device = replace(
            device,
            head_chances=chances,
            head_share=head_share,
            believed_head_share=believed_share,
            spent=[],
        )
        device.run(num_rows, 2 * num_rows)
        check(device)


class InCalls(Device):
    """Answers with calls, in which each token is fetched before the next step.

    calls: the tokens of an answer that are in calls.
    """

    calls = range(0)

    def step(self) -> None:
        for row in self.rows:
            row.sampling = MASKED if row.num_answered in self.calls else GREEDY
        if not any(row.sampling for row in self.rows):
            super().step()
        elif self.in_flight:
            self.read()
        else:
            self.verify(self.plan() or without_drafts(self.rows))

    def cost(self, rows: Sequence[Any], width: int) -> float:
        is_fetched = width == 1 and any(row.sampling for row in rows)
        return super().cost(rows, width) * (UNSTEADY if is_fetched else 1.0)


@pytest.mark.parametrize("calls", [range(1000), range(60, 140), range(3, 140)], ids=str)
@pytest.mark.parametrize("chances", [[BAD], [GOOD], [BAD, GOOD], [NONE, FAIR]], ids=str)
def test_calls(chances: Sequence[float], calls: range) -> None:
    for num_rows in (1, 4):
        for prompt_tokens in (48, 1000):
            true_s = costs_of(0.04, 0.0002)
            believed = StepCosts(CostTable({(1, 1): UNSEEN_S}, [1], grid_up_to(WIDTHS, 32)))
            device = InCalls(true_s, believed, chances, prompt_tokens, 150, 0, 0.02 + PROBING)
            device.calls = calls
            device.run(num_rows, 3 * num_rows)
            check(device)
            assert chances != [GOOD] or all(one.spent_s < 0.8 * one.plain_s for one in device.spent)


@pytest.mark.parametrize("num_rows", [1, 4])
def test_a_good_head_drafts_for_rows_that_are_all_new(num_rows: int) -> None:
    true_s = costs_of(0.01, 0.0002)
    device = Device(true_s, believed(true_s, 1.0, 0), [NONE], head_chances=[GOOD])
    device.run(num_rows, num_rows)
    assert all(one.spent_s < 0.5 * one.plain_s for one in device.spent)


def test_masks_pay_where_steps_hardly_cost_more_for_them() -> None:
    true_s = costs_of(0.01, 0.0002)
    device = Device(true_s, believed(true_s, 1.0, 0), [NONE], mask_chances=[GOOD])
    device.run(1, 2)
    assert all(one.spent_s < 0.4 * one.plain_s for one in device.spent)
