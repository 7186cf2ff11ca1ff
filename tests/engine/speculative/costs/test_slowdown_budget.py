"""A budget bounds what drafting may cost, and what the draft model may read."""

import pytest

from reprise.engine.speculative.costs.slowdown_budget import (
    ALLOWANCE_STEPS,
    DRAFT_PREFILL_SHARE,
    RESERVE_STEPS,
    UNSEEN_TOKENS,
    SlowdownBudget,
)


def test_every_token_earns_the_overhead_and_some_time_is_kept_in_reserve() -> None:
    budget = SlowdownBudget(0.02)
    assert budget.left_s(1.0) == pytest.approx(1.02 + ALLOWANCE_STEPS - RESERVE_STEPS)
    budget.charge(100.0, 1.0, 100)
    assert budget.left_s(1.0) == pytest.approx(1.02 + 2.0 + ALLOWANCE_STEPS - RESERVE_STEPS)
    budget.charge(7.0, 1.0, 1)
    assert budget.left_s(1.0) == pytest.approx(2.04 + 1.0 - RESERVE_STEPS)


def test_who_loses_time_wants_to_see_a_plain_step() -> None:
    budget = SlowdownBudget(0.02)
    budget.charge(4.0, 1.0, 1)
    assert not budget.wants_plain(1.0)
    budget.charge(float(UNSEEN_TOKENS), 1.0, UNSEEN_TOKENS)
    assert budget.wants_plain(1.0)
    # Who gains does not, however long none was seen.
    budget.charge(50.0, 1.0, 100)
    assert not budget.wants_plain(1.0)


def test_the_draft_model_reads_a_share_of_prefill_time_for_nothing() -> None:
    budget = SlowdownBudget(0.02)
    before = budget.left_s(1.0)
    budget.prefill_s = 40.0
    assert budget.share_to_prefill_s == DRAFT_PREFILL_SHARE * 40.0 == 10.0
    assert budget.left_to_prefill_s(1.0) == before + 10.0
    budget.charge_draft_prefill(8.0)
    # Drafts may use none of the share.
    assert budget.left_s(1.0) == before
    budget.charge_draft_prefill(3.0)
    assert budget.share_to_prefill_s == 0.0
    assert budget.left_s(1.0) == budget.left_to_prefill_s(1.0) == pytest.approx(before - 1.0)
    budget.charge_draft_prefill(1.0)
    assert budget.left_s(1.0) == pytest.approx(before - 2.0)
