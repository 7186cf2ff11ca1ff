"""Prefill never takes more than its budget, and short prompts do not wait behind long ones."""

from hypothesis import given
from hypothesis import strategies as st

from engine.scheduler.prefill_budget import plan_prefill, prefill_budget


@given(st.lists(st.integers(0, 500), max_size=10), st.integers(1, 600))
def test_the_budget_is_kept_and_used(remaining: list[int], budget: int) -> None:
    chunks = plan_prefill(remaining, budget)
    assert sum(chunks) == min(budget, sum(remaining))
    assert all(0 <= chunk <= lack for chunk, lack in zip(chunks, remaining, strict=True))


def test_short_prompts_go_before_a_long_one() -> None:
    assert plan_prefill([9000, 30, 40], 100) == [30, 30, 40]
    assert plan_prefill([9000, 75], 100) == [25, 75]


@given(st.integers(1, 9000), st.lists(st.integers(1, 100), max_size=9), st.integers(1, 300))
def test_the_oldest_prompt_always_gets_on(oldest: int, others: list[int], budget: int) -> None:
    assert plan_prefill([oldest, *others], budget)[0] >= min(oldest, budget / 4)


def test_the_first_of_several_long_prompts_goes_first() -> None:
    assert plan_prefill([9000, 8000], 100) == [100, 0]


def test_decoding_rows_come_off_the_budget() -> None:
    assert prefill_budget(0, 256, 512) == 512
    assert prefill_budget(6, 256, 512) == 250
    assert prefill_budget(6, 8, 512) == 16
    assert prefill_budget(6, 2048, 512) == 512
