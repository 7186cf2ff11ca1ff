"""No belief about costs forbids its own test: from any table drafts soon gain what the true costs give."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest

from reprise.engine.speculative.costs.cost_table import Conditions, context_class
from reprise.engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS
from reprise.engine.speculative.costs.step_costs import StepCosts
from tests.engine.speculative.simulated_rows import Device, TrueCosts

ROWS, WIDTHS = (1, 2, 4, 8), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

COPY, NONE = 0.97, -1.0
"""Every other answer is a copy."""

NUM_ANSWERS, ANSWER_TOKENS = 20, 150

CURVES = {
    "staircase": ((1, 1.0), (2, 1.0), (3, 1.13), (4, 1.43), (5, 1.75), (8, 2.84), (10, 4.5), (32, 4.5)),
    "half precision": ((1, 1.0), (2, 1.3), (4, 1.75), (8, 2.8), (32, 8.9)),
    "single precision": ((1, 1.0), (2, 1.7), (4, 3.0), (8, 5.6), (32, 21.0)),
    "flat": ((1, 1.0), (32, 1.3)),
}
"""What steps cost by their tokens: Apple's M4 Pro at 4 bits (published), a CPU in bfloat16 and in float32,
and a device where reading the weights is all."""


def true_costs(curve: str, plain_s: float) -> TrueCosts:
    points = CURVES[curve]

    @cache
    def relative(num_tokens: float) -> float:
        ends = pairwise(points)
        (low, low_s), (high, high_s) = next(
            ((a, b) for a, b in ends if num_tokens <= b[0]), (points[-2], points[-1])
        )
        return max(low_s + (num_tokens - low) * (high_s - low_s) / (high - low), num_tokens / 8)

    def true_s(num_rows: int, width: int, longest: int) -> float:
        # Tokens could also be fed one after another.
        rows = (1 + num_rows) / 2
        seconds = plain_s * min(relative(width * rows), width * relative(rows))
        return seconds * (1 + longest / 20_000)

    return true_s


def table(true_s: TrueCosts, wrong: str, seed: int) -> dict[tuple[int, int], float]:
    rng, found = random.Random(seed), {}
    one_width = rng.choice([4, 8, 16, 32])
    for rows in ROWS:
        for width in WIDTHS:
            seconds = true_s(rows, width, 48)
            if wrong == "a straight line":
                seconds = rows * width * true_s(1, 1, 48)
            elif width > 1 and (wrong.startswith("all") or ("one" in wrong and width == one_width)):
                seconds *= 10 if "dear" in wrong else 0.1
            elif width > 1 and wrong == "random":
                seconds *= 10 ** rng.uniform(-1, 1)
            found[rows, width] = seconds
    return found


def run(costs: StepCosts, true_s: TrueCosts, num_rows: int, seed: int, noise: float) -> tuple[Device, float]:
    """Return the device after all answers, and by how much the second half of them was faster than plain."""
    chances: Sequence[float] = [COPY] * num_rows + [NONE] * num_rows
    device = Device(true_s, costs, chances, 48, ANSWER_TOKENS, seed, 0.03, noise)
    device.run(num_rows, NUM_ANSWERS * num_rows)
    late = device.spent[len(device.spent) // 2 :]
    return device, sum(one.plain_s for one in late) / sum(one.spent_s for one in late)


@cache
def gain_of_true_costs(curve: str, num_rows: int, noise: float) -> float:
    true_s = true_costs(curve, 1.0)
    known = {(rows, width): true_s(rows, width, 48) for rows in ROWS for width in WIDTHS}
    return sum(run(StepCosts(known), true_s, num_rows, seed, noise)[1] for seed in range(4)) / 4


def error_that_matters(device: Device, true_s: TrueCosts, num_rows: int) -> float:
    """Return by how much the costs beside plain steps are wrong, on average over the last answers' steps."""
    half, longest = len(device.spent) // 2, 48 + ANSWER_TOKENS // 2
    used = Counter(width for begun, width in device.widths_used if begun > half and width in WIDTHS)
    under = Conditions(context_class(longest))

    def ratio(width: int) -> float:
        return true_s(num_rows, width, longest) / true_s(num_rows, 1, longest)

    wrong = {w: abs(device.believed.price(num_rows, w, under).ratio / ratio(w) - 1) for w in used}
    return sum(number * wrong[width] for width, number in used.items()) / used.total()


WRONG = ["a straight line", "all dear", "all cheap", "one dear", "one cheap", "random"]
SPEEDS_S = (0.002, 0.005, 0.05, 0.2, 1.0)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("num_rows", [1, *(pytest.param(rows, marks=pytest.mark.slow) for rows in (2, 4, 8))])
@pytest.mark.parametrize("noise", [0.0, pytest.param(0.05, marks=pytest.mark.slow)])
@pytest.mark.parametrize("curve", CURVES)
def test_within_20_answers_drafts_gain_what_the_true_costs_give(
    curve: str, noise: float, num_rows: int, wrong: str
) -> None:
    gains, errors = [], []
    for seed, plain_s in enumerate(SPEEDS_S):
        true_s = true_costs(curve, plain_s)
        device, gain = run(StepCosts(table(true_s, wrong, seed)), true_s, num_rows, seed, noise)
        gains.append(gain)
        errors.append(error_that_matters(device, true_s, num_rows))
        # With noise a plain step is not known so well.
        if not noise:
            assert max(one.worst_steps for one in device.spent) <= ALLOWANCE_STEPS
    # With noise, which of the rows draft at once decides nearly as much as the costs do.
    least = 0.8 if noise else 0.9
    assert sum(gains) / len(gains) > least * gain_of_true_costs(curve, num_rows, noise)
    assert sum(errors) < 0.15 * len(errors)


@pytest.mark.parametrize("wrong", ["a straight line", "all dear"])
@pytest.mark.parametrize("source", ["head_chances", "mask_chances"])
def test_heads_and_masks_are_tried_though_steps_are_believed_to_cost_too_much(
    source: str, wrong: str
) -> None:
    """Where no text can be looked up, only their drafts can show what verifying them costs."""
    true_s = true_costs("flat", 0.2)
    costs = StepCosts(table(true_s, wrong, 0))
    device = Device(true_s, costs, [NONE], 48, 400, overhead=0.03, **{source: [0.95]})  # type: ignore[arg-type]
    device.run(1, NUM_ANSWERS)
    assert max(one.worst_steps for one in device.spent) <= ALLOWANCE_STEPS
    late = device.spent[-4:]
    assert sum(one.plain_s for one in late) > 1.5 * sum(one.spent_s for one in late)
