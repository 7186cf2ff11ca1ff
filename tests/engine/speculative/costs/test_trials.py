"""A width that is believed not to pay is tried: at once where nobody knows, and ever more seldom later."""

import math

import pytest

from reprise.engine.speculative.costs.cost_table import CONFIRMED, Effect, Noise
from reprise.engine.speculative.costs.step_costs import (
    DOUBTED_PATIENCE,
    MAX_PATIENCE,
    MEASURED_PATIENCE,
    StepCosts,
    Trials,
)

SHAPE = (1, 8)


def chances_until_due(trials: Trials, patience: int = MEASURED_PATIENCE) -> int:
    number = 1
    while not trials.is_due(SHAPE, patience):
        number += 1
    return number


def test_a_guess_is_tried_at_once_and_a_measurement_later() -> None:
    assert chances_until_due(Trials(), patience=0) == 1
    assert chances_until_due(Trials()) == MEASURED_PATIENCE + 1


def test_trials_that_show_what_was_believed_become_seldom_but_never_end() -> None:
    trials, waited = Trials(), []
    for _ in range(12):
        waited.append(chances_until_due(trials, patience=0))
        trials.note(SHAPE, is_news=False)
    assert waited[:4] == [1, DOUBTED_PATIENCE + 1, 2 * DOUBTED_PATIENCE + 1, 4 * DOUBTED_PATIENCE + 1]
    assert waited[-1] == MAX_PATIENCE + 1


def test_news_is_tried_again_at_once() -> None:
    trials = Trials()
    chances_until_due(trials)
    trials.note(SHAPE, is_news=True)
    assert chances_until_due(trials) == 1


def test_doubt_shortens_all_waiting() -> None:
    trials = Trials()
    trials.is_due(SHAPE, MEASURED_PATIENCE)
    trials.doubt()
    assert chances_until_due(trials) == DOUBTED_PATIENCE


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_a_wrong_measurement_is_believed_away_in_two_steps_and_the_others_stay(factor: float) -> None:
    costs = StepCosts({(1, 1): 1.0, (1, 4): 1.6, (1, 8): 2.5 * factor, (1, 16): 4.0})
    for _ in range(5):
        costs.observe_plain(1, 1.0)
        costs.observe_wide([4], 1.6)
        costs.observe_wide([16], 4.0)
    costs.observe_wide([8], 2.5)
    assert costs.seconds(1, 8) == pytest.approx(2.5 * factor, rel=0.05)
    costs.observe_wide([8], 2.5)
    assert costs.seconds(1, 8) == pytest.approx(2.5, rel=0.15)
    assert costs.seconds(1, 4) == pytest.approx(1.6, rel=0.05)
    assert costs.seconds(1, 16) == pytest.approx(4.0, rel=0.05)


def test_two_wrong_measurements_discredit_those_that_no_step_confirmed() -> None:
    costs = StepCosts({(1, 1): 1.0, (1, 2): 2.0, (1, 4): 4.0, (1, 8): 8.0, (1, 16): 16.0})
    for _ in range(3):
        costs.observe_plain(1, 1.0)
        costs.observe_wide([2], 1.1)
        costs.observe_wide([4], 1.4)
    assert (1, 8) not in costs.table.measured
    # They are guessed from what real steps showed.
    assert 1.4 < costs.seconds(1, 8) < 3.0


def test_the_first_step_of_a_shape_that_was_not_measured_is_its_measurement() -> None:
    costs = StepCosts({(1, 1): 1.0})
    costs.table.widths[:] = [1, 2, 4, 8]
    costs.observe_plain(1, 1.0)
    costs.observe_wide([8], 2.5)
    assert costs.seconds(1, 8) == pytest.approx(2.5)
    # What lies between is guessed from it.
    assert costs.seconds(1, 4) == pytest.approx(1 + 1.5 * 3 / 7)


def test_a_difference_is_shared_by_uncertainty() -> None:
    sure, unsure = Effect(0.0, 0.0, num_seen=CONFIRMED), Effect(1.0, 0.0, num_seen=CONFIRMED)
    assert not Noise().learn([sure, unsure], sure, 0.2)
    assert sure.mean == 0.0
    assert 0.15 < unsure.mean < 0.2
    assert unsure.variance < 0.1


def test_a_surprise_is_believed_when_it_repeats() -> None:
    effect, shared = Effect(0.01, 0.0), Effect(0.01, 0.0)
    noise, seen = Noise(), math.log(5)
    assert noise.learn([effect, shared], shared, seen)
    assert effect.mean == shared.mean == 0.0
    assert noise.learn([effect, shared], shared, seen)
    assert effect.mean == pytest.approx(seen, rel=0.1)
    assert abs(shared.mean) < 0.05
