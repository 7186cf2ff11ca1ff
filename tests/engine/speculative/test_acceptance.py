"""Acceptance rates are learned, the best width is chosen, and the slowdown budget bounds the loss."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import Draft
from reprise.engine.speculative.acceptance import GLOBAL_DECAY, MODELS, Acceptance, AcceptanceCounts
from reprise.engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS, SlowdownBudget
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_length import DraftEstimate, choose_width, expected_tokens, steady

STAIRCASE = {1: 1.0, 2: 0.99, 3: 1.13, 4: 1.43, 5: 1.75, 8: 2.84, 10: 4.5, 16: 4.5, 24: 4.5, 32: 4.5}
DRAFT = Draft((1, 2, 3), "suffix", 2, 0.7)


def stairs(width: int) -> float:
    return StepCosts({(1, w): s for w, s in STAIRCASE.items()}).seconds(1, width)


def always(_: int) -> bool:
    return True


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("num_drafted", [0, 1, 4, 31])
def test_expected_tokens_are_the_mean_of_a_simulation(rate: float, num_drafted: int) -> None:
    rng = random.Random(3)
    total = 0
    for _ in range(4000):
        accepted = next((i for i in range(num_drafted) if rng.random() >= rate), num_drafted)
        total += accepted + 1
    assert expected_tokens(rate, num_drafted) == pytest.approx(total / 4000, rel=0.06)


def test_a_hopeless_draft_is_not_worth_a_step() -> None:
    assert (
        choose_width([DraftEstimate(steady(0.01, 31))], [3, 5, 32], lambda w: 1.0 + 0.3 * (w - 1), always)
        == 1
    )


def test_a_sure_draft_takes_the_whole_tile_of_the_staircase() -> None:
    assert choose_width([DraftEstimate(steady(0.99, 31))], range(2, 33), stairs, always) == 32


def test_an_unsure_draft_takes_a_short_step_of_the_staircase() -> None:
    assert choose_width([DraftEstimate(steady(0.6, 31))], range(2, 33), stairs, always) in (3, 4)


def test_a_width_beyond_the_slowdown_budget_is_not_chosen() -> None:
    assert choose_width([DraftEstimate(steady(0.99, 31))], range(2, 33), stairs, lambda w: w <= 4) <= 4


def test_budgets_are_asked_from_the_best_width_on() -> None:
    asked: list[int] = []

    def is_allowed(width: int) -> bool:
        asked.append(width)
        return width <= 30

    assert choose_width([DraftEstimate(steady(0.99, 31))], range(2, 33), lambda _: 1.0, is_allowed) == 30
    assert asked == [32, 31, 30]


def test_the_rate_follows_what_is_accepted() -> None:
    acceptance = Acceptance(AcceptanceCounts(GLOBAL_DECAY))
    assert acceptance.rate(DRAFT) == pytest.approx(0.7)
    for _ in range(50):
        acceptance.learn(DRAFT, 3, 3)
    assert acceptance.rate(DRAFT) > 0.9
    for _ in range(100):
        acceptance.learn(DRAFT, 1, 0)
    assert acceptance.rate(DRAFT) < 0.2


def test_buckets_and_sources_are_learned_apart() -> None:
    acceptance = Acceptance(AcceptanceCounts(GLOBAL_DECAY))
    for _ in range(100):
        acceptance.learn(DRAFT, 1, 0)
    assert acceptance.rate(Draft((1,), "suffix", 3, 0.7)) == pytest.approx(0.7)
    assert acceptance.rate(Draft((1,), "ngram-mod", 2, 0.7)) == pytest.approx(0.7)


def test_a_request_starts_where_earlier_ones_ended() -> None:
    everyone = AcceptanceCounts(GLOBAL_DECAY)
    first = Acceptance(everyone)
    for _ in range(200):
        first.learn(DRAFT, 1, 0)
    assert Acceptance(everyone).rate(DRAFT) < 0.3


END = 9
LINES = Draft((1, 2, END, 3, END, 4), "suffix", 2, 0.95)


def test_a_copy_may_end_where_a_line_does() -> None:
    acceptance = Acceptance(AcceptanceCounts(GLOBAL_DECAY), line_ends={END})
    estimate = acceptance.estimate(LINES, 0.95)
    assert estimate.stops == (2, 4)
    gains = [after - before for before, after in pairwise(estimate.expected)]
    chances = [after / before for before, after in pairwise([1.0, *gains])]
    assert chances == pytest.approx([0.95, 0.95, 0.6, 0.95, 0.85, 0.95])
    assert choose_width([estimate], [3, 7], lambda w: 1 + 0.3 * (w - 1), always) == 3


def test_whether_copies_end_with_the_first_line_is_learned_from_all_requests() -> None:
    everyone = AcceptanceCounts(GLOBAL_DECAY)
    for _ in range(50):
        Acceptance(everyone, line_ends={END}).learn(LINES, 6, 2)
    acceptance = Acceptance(everyone, line_ends={END})
    first, second = (acceptance.estimate(LINES, 0.95).expected[at] for at in (2, 3))
    assert second - first < 0.2
    assert acceptance.rate(LINES) > 0.95
    # Answers of more than one line have their own rate.
    acceptance.count_lines([5, END])
    first, second = (acceptance.estimate(LINES, 0.95).expected[at] for at in (2, 3))
    assert second - first > 0.7


@pytest.mark.parametrize("source", ["prediction", *MODELS])
def test_a_line_s_end_is_nothing_special_in_what_is_no_copy(source: str) -> None:
    acceptance = Acceptance(AcceptanceCounts(GLOBAL_DECAY), doubt=2.0, line_ends={END})
    draft = Draft(LINES.tokens, source, 0, 0.95)
    # Nor does it matter how much the prompt repeats itself.
    assert acceptance.rate(draft) == pytest.approx(0.95)
    assert acceptance.estimate(draft, 0.95).expected == pytest.approx(steady(0.95, 6))
    acceptance.learn(draft, 6, 2)
    assert acceptance.estimate(LINES, 0.95).stops == (2, 4)
    assert acceptance.estimate(draft, 0.9).stops == ()


@given(
    st.lists(st.tuples(st.floats(0.5, 20.0), st.integers(1, 32)), min_size=1, max_size=200),
    st.floats(0.0, 0.1),
)
def test_the_ledger_keeps_the_bound_at_every_moment(steps: list[tuple[float, int]], overhead: float) -> None:
    slowdown_budget = SlowdownBudget(overhead)
    for step_s, num_tokens in steps:
        if step_s <= slowdown_budget.left_s(1.0):
            slowdown_budget.charge(step_s, 1.0, num_tokens)
        else:
            slowdown_budget.charge(1.0, 1.0, 1)
        assert slowdown_budget.spent_s <= (1 + overhead) * slowdown_budget.plain_s + ALLOWANCE_STEPS + 1e-6


def simulate(right: Callable[[int], bool], num_tokens: int = 600) -> float:
    """Return the speedup of one sequence on the staircase. right(i): whether token i is drafted right."""
    everyone, slowdown_budget = AcceptanceCounts(GLOBAL_DECAY), SlowdownBudget(0.02)
    acceptance = Acceptance(everyone)
    at, spent = 0, 0.0
    while at < num_tokens:
        rate = acceptance.rate(DRAFT)
        width = choose_width(
            [DraftEstimate(steady(rate, 31))],
            range(2, 33),
            stairs,
            lambda w: stairs(w) <= slowdown_budget.left_s(1.0),
        )
        accepted = next((i for i in range(width - 1) if not right(at + i)), width - 1)
        acceptance.learn(DRAFT, max(1, width - 1), accepted if width > 1 else int(right(at)))
        slowdown_budget.charge(stairs(width), 1.0, accepted + 1)
        spent += stairs(width)
        at += accepted + 1
    return at / spent


def test_a_copied_answer_is_several_times_as_fast_and_a_trap_within_the_bound() -> None:
    assert simulate(lambda at: at % 97 != 0) > 3.5
    assert simulate(lambda _: False) >= 1 / (1.02 + (ALLOWANCE_STEPS + 4.5) / 600)
    assert simulate(lambda at: at % 2 == 0) > 0.97


SUPPORTED = Draft((1, 2, 3, 4), "suffix", 2, 0.7, support=[24, 24, 23, 24])


def chances_of(acceptance: Acceptance, draft: Draft) -> list[float]:
    expected = acceptance.estimate(draft, acceptance.rate(draft)).expected
    gains = [after - before for before, after in pairwise(expected)]
    return [after / before for before, after in pairwise([1.0, *gains])]


def test_support_raises_and_lowers_chances_and_drafts_may_end_where_it_lacks() -> None:
    acceptance = Acceptance(AcceptanceCounts(GLOBAL_DECAY))
    first, second, third, last = chances_of(acceptance, SUPPORTED)
    assert (first, last) == pytest.approx((second, second))
    assert first > 0.9 > 0.5 > third
    assert acceptance.estimate(SUPPORTED, 0.7).stops == (2,)


def test_how_much_support_means_is_learned_from_all_requests() -> None:
    everyone = AcceptanceCounts(GLOBAL_DECAY)
    for _ in range(200):
        # Support that says nothing: as many are right with it as without.
        Acceptance(everyone).learn(replace(SUPPORTED, support=[23] * 4), 4, 4)
        Acceptance(everyone).learn(replace(SUPPORTED, support=[24] * 4), 4, 4)
    chances = chances_of(Acceptance(everyone), SUPPORTED)
    assert min(chances) > 0.97
    for _ in range(200):
        Acceptance(everyone).learn(SUPPORTED, 4, 2)
    first, _, third, _ = chances_of(Acceptance(everyone), SUPPORTED)
    assert third < 0.4 < 0.9 < first


def test_support_does_not_change_what_is_learned_of_the_draft_itself() -> None:
    with_support, without = (Acceptance(AcceptanceCounts(GLOBAL_DECAY)) for _ in range(2))
    for num_accepted in (4, 1, 3):
        with_support.learn(SUPPORTED, 4, num_accepted)
        without.learn(replace(SUPPORTED, support=()), 4, num_accepted)
    assert with_support.rate(SUPPORTED) == without.rate(SUPPORTED)


@pytest.mark.parametrize("expected", [0.0, 9.0])
@pytest.mark.parametrize("accepted", [0.0, 9.0])
def test_counts_at_their_limits_leave_chances_possible(expected: float, accepted: float) -> None:
    counts = AcceptanceCounts(GLOBAL_DECAY)
    counts.counts = {("support", 24): (accepted, 9.0), ("expected", 24): (expected, 9.0)}
    assert all(0 < chance < 1 for chance in chances_of(Acceptance(counts), SUPPORTED))
