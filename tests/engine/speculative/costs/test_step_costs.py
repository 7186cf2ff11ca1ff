"""Costs are interpolated, learned from the steps that were taken, and bounded by what is certain."""

import math

import pytest

from reprise.engine.interface.request import GenerationRequest, Sampling
from reprise.engine.speculative.costs.cost_table import (
    ADJUSTED,
    GREEDY,
    NOISY,
    USUAL,
    Conditions,
    context_class,
    sampling_class,
)
from reprise.engine.speculative.costs.step_costs import PLAIN_AFTER_STEPS, StepCosts

TABLE = {(1, 1): 1.0, (1, 8): 2.0, (4, 1): 2.0, (4, 8): 5.5}
LONG = Conditions(context=3)
STEADY = 30


def observe(costs: StepCosts, plain_s: float, wide_s: float, under: Conditions = USUAL) -> None:
    for _ in range(STEADY):
        costs.observe_plain(1, plain_s, under)
        costs.observe_wide([8], wide_s, under)


def test_costs_lie_on_lines_between_what_was_measured() -> None:
    costs = StepCosts({(1, 1): 1.0, (1, 4): 2.5, (4, 1): 2.0, (4, 4): 5.5})
    assert costs.seconds(1, 1) == pytest.approx(1.0)
    assert costs.seconds(1, 3) == pytest.approx(2.0)
    assert costs.seconds(4, 4) == pytest.approx(5.5)
    assert costs.seconds(2, 1) == pytest.approx(4 / 3)
    assert costs.seconds(1, 7) == pytest.approx(4.0)


def test_rows_with_a_forward_pass_each_add_up() -> None:
    costs = StepCosts({(1, 1): 1.0, (1, 8): 2.0}, batched=False)
    assert costs.seconds(3, 1) == pytest.approx(3.0)
    assert costs.step_s([8, 1, 1]) == pytest.approx(4.0)
    for _ in range(STEADY):
        costs.observe_wide([8, 1, 1], 8.0)
    assert costs.step_s([8, 1, 1]) == pytest.approx(8.0, rel=0.05)
    assert costs.step_s([8, 8, 8]) == pytest.approx(12.0, rel=0.05)


def test_a_pause_teaches_little() -> None:
    costs = StepCosts(TABLE)
    observe(costs, 1.0, 2.0)
    costs.observe_plain(1, 1000.0)
    costs.observe_wide([8], 1000.0)
    assert costs.seconds(1, 1) < 1.1
    assert costs.seconds(1, 8) < 2.2
    assert costs.least_plain_s(1) == 1.0
    assert costs.most_s([8]) < 2.2


def test_verification_steps_teach_nothing_about_plain_steps() -> None:
    costs = StepCosts(TABLE)
    costs.observe_plain(1, 1.0)
    for _ in range(100):
        costs.observe_wide([8], 8.0)
    assert costs.seconds(1, 1) == pytest.approx(1.0)
    assert costs.seconds(1, 8) == pytest.approx(8.0, rel=0.05)
    assert costs.least_plain_s(1) == 1.0


def test_conditions_are_learned_apart_and_begin_with_what_is_known() -> None:
    costs = StepCosts(TABLE)
    observe(costs, 3.0, 12.0)
    assert costs.seconds(1, 8, LONG) == pytest.approx(12.0, rel=0.1)
    for _ in range(STEADY):
        costs.observe_plain(1, 6.0, LONG)
    # Not observed there yet: verification steps follow the plain ones.
    assert costs.seconds(1, 8, LONG) == pytest.approx(24.0, rel=0.1)
    observe(costs, 6.0, 60.0, LONG)
    assert costs.seconds(1, 8, LONG) == pytest.approx(60.0, rel=0.1)
    assert costs.seconds(1, 8) == pytest.approx(12.0, rel=0.15)


def test_what_was_never_observed_is_bounded_by_real_steps() -> None:
    costs = StepCosts(TABLE)
    assert costs.least_plain_s(1) is None
    # A plain step for each token and one besides, whatever the table says.
    assert costs.most_s([8]) == 9.0
    assert costs.most_s([2]) == 3.0
    costs.observe_wide([4], 1.6)
    assert costs.most_s([4]) == pytest.approx(1.6)
    # A narrower step takes no longer; in a wider one no token is dearer, with a plain step besides.
    assert costs.most_s([3]) == pytest.approx(1.6)
    assert costs.most_s([8]) == pytest.approx(2 * 1.6 + 1.0)
    costs.observe_wide([16], 3.0)
    assert costs.most_s([8]) == pytest.approx(3.0)
    # More rows and other conditions are not bounded by these.
    assert costs.most_s([8, 8, 8, 8]) == pytest.approx(9 * costs.seconds(4, 1))
    assert costs.most_s([8], LONG) == pytest.approx(9.0)


def test_rows_with_a_forward_pass_each_are_bounded_by_what_they_feed() -> None:
    costs = StepCosts({(1, 1): 1.0, (1, 8): 2.0}, batched=False)
    costs.observe_wide([8, 1, 1], 4.0)
    assert costs.most_s([8, 1, 1]) == pytest.approx(4.0)
    assert costs.most_s([8, 8, 4]) == pytest.approx(2 * 4.0 + 3.0)


def test_a_machine_that_recovers_does_so_for_all_widths() -> None:
    costs = StepCosts({(1, 1): 1.0, (1, 2): 1.2, (1, 4): 1.5, (1, 8): 2.0})
    for slowness in (1, 1, 1, 3, 3, 3, 3):
        for width, seconds in ((2, 1.2), (4, 1.5), (8, 2.0)):
            costs.observe_wide([width], slowness * seconds)
    for _ in range(STEADY):
        costs.observe_wide([4], 1.5)
    assert costs.seconds(1, 8) < 2.6
    assert costs.most_s([8]) < 5.0
    assert costs.most_s([2]) == pytest.approx(1.5, rel=0.05)


def test_widths_are_compared_as_measured_until_steps_show_otherwise() -> None:
    costs = StepCosts({(1, 1): 1.0, (1, 4): 1.5, (1, 8): 2.0})
    for _ in range(3):
        costs.observe_wide([4], 1.5)
    costs.observe_wide([8], 6.0)
    # One step that took long is hardly believed; many are.
    assert costs.seconds(1, 8) / costs.seconds(1, 4) == pytest.approx(2.0 / 1.5, rel=0.1)
    for _ in range(2 * STEADY):
        costs.observe_wide([4], 1.5)
        costs.observe_wide([8], 6.0)
    assert costs.seconds(1, 8) / costs.seconds(1, 4) == pytest.approx(4.0, rel=0.4)


def test_the_dearest_of_the_latest_steps_is_expected_at_worst() -> None:
    costs = StepCosts(TABLE)
    for taken_s in (2.0, 2.0, 3.0, 3.5):
        costs.observe_wide([8], taken_s)
    assert costs.most_s([8]) == pytest.approx(3.0)


def test_plain_steps_of_less_bound_those_of_more() -> None:
    costs = StepCosts(TABLE)
    costs.observe_plain(2, 1.5, Conditions(context=1))
    assert costs.least_plain_s(1, Conditions(context=1)) is None
    assert costs.least_plain_s(2) is None
    assert costs.least_plain_s(4, Conditions(3, NOISY)) == 1.5
    costs.observe_plain(4, 2.5, Conditions(2, GREEDY))
    assert costs.least_plain_s(4, Conditions(3, NOISY)) == 2.5


def test_a_plain_step_takes_no_longer_than_a_verification_step() -> None:
    costs = StepCosts(TABLE)
    costs.observe_plain(1, 9.0)
    assert costs.least_plain_s(1) == 9.0
    costs.observe_wide([8], 2.0)
    assert costs.least_plain_s(1) == 2.0
    costs.observe_plain(1, 1.0)
    assert costs.least_plain_s(1) == 1.0


def test_plain_steps_are_due_at_first_and_then_seldom() -> None:
    costs, (first, later) = StepCosts(TABLE), PLAIN_AFTER_STEPS
    assert costs.is_plain_due(1, USUAL)
    costs.observe_plain(1, 1.0)

    def num_until_due(under: Conditions) -> int:
        count = 0
        while not costs.is_plain_due(1, under):
            costs.observe_wide([8], 2.0, under)
            count += 1
        return count

    assert num_until_due(USUAL) == later
    # Short rows bound what longer ones take; the real cost there is still wanted, and soon.
    assert num_until_due(LONG) == first
    costs.observe_plain(1, 2.0, LONG)
    assert num_until_due(LONG) == later


def test_costs_that_are_not_learned_stay() -> None:
    costs = StepCosts(TABLE, is_learned=False)
    observe(costs, 5.0, 50.0)
    assert costs.seconds(1, 8) == costs.most_s([8]) == 2.0
    assert costs.least_plain_s(1) == 1.0
    assert not costs.is_plain_due(1, USUAL)


@pytest.mark.parametrize(
    "table",
    [{}, {(1, 2): 1.0}, {(1, 1): 0.0}, {(1, 1): 1.0, (1, 2): -1.0}, {(1, 1): float("nan")}],
)
def test_a_table_without_positive_seconds_is_refused(table: dict[tuple[int, int], float]) -> None:
    with pytest.raises(ValueError, match="positive seconds"):
        StepCosts(table)


def test_context_classes_double() -> None:
    assert [context_class(n) for n in (0, 127, 128, 255, 256, 512, 100_000)] == [0, 0, 1, 1, 2, 3, 10]
    assert math.log2(100_000 / 512) < 8


@pytest.mark.parametrize(
    ("sampling", "others", "expected"),
    [
        (Sampling(0, 0.0), {}, GREEDY),
        (Sampling(0, 0.0, top_p=0.5), {}, GREEDY),
        (Sampling(0, 0.7), {}, NOISY),
        (Sampling(0, 0.7, top_p=0.9), {}, ADJUSTED),
        (Sampling(0, 0.0, presence_penalty=1.0), {}, ADJUSTED),
        (Sampling(0, 0.0, logit_bias=((3, 1.0),)), {}, ADJUSTED),
        (Sampling(0, 0.0), {"top_logprobs": 0}, ADJUSTED),
    ],
)
def test_requests_are_classed_by_what_sampling_takes(sampling: Sampling, others: dict, expected: int) -> None:
    assert sampling_class(GenerationRequest("r", (1,), 9, sampling, **others)) == expected
