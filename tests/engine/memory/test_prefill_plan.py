"""Prefill never takes more than its budget, and short prompts do not wait behind long ones."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.engine.memory.prefill_plan import (
    ALONE_S,
    MIN_CHUNK_TOKENS,
    PrefillLimits,
    Seconds,
    plan_prefill,
)

TOKEN_S = 0.001
MANY = 10**9


def plan(remaining: Sequence[int], num_tokens: int, forward_s: float = 0.0) -> list[int]:
    """Plan with the seconds of num_tokens. Each token takes TOKEN_S, and each prompt forward_s besides."""
    limits = PrefillLimits(num_tokens * TOKEN_S * 1.0001, 0, MANY)
    return plan_prefill(remaining, [cost(forward_s)] * len(remaining), limits)


def cost(forward_s: float) -> Seconds:
    return lambda num_tokens: forward_s * (num_tokens > 0) + num_tokens * TOKEN_S


@given(st.lists(st.integers(0, 500), max_size=10), st.integers(16, 600))
def test_the_seconds_are_kept_and_used(remaining: list[int], budget: int) -> None:
    chunks = plan(remaining, budget)
    assert sum(chunks) == min(budget, sum(remaining))
    assert all(0 <= chunk <= lack for chunk, lack in zip(chunks, remaining, strict=True))


@given(st.lists(st.integers(0, 500), max_size=10), st.integers(1, 600), st.integers(0, 900))
def test_at_least_the_minimum_is_fed_and_at_most_the_maximum(
    remaining: list[int], min_tokens: int, more: int
) -> None:
    for seconds in (0.0, 1e-5, 1e9):
        limits = PrefillLimits(seconds, min_tokens, min_tokens + more)
        chunks = plan_prefill(remaining, [cost(0.01)] * len(remaining), limits)
        assert min(min_tokens, sum(remaining)) <= sum(chunks) <= min_tokens + more
        assert all(0 <= chunk <= lack for chunk, lack in zip(chunks, remaining, strict=True))


def test_short_prompts_go_before_a_long_one() -> None:
    assert plan([9000, 30, 40], 100) == [30, 30, 40]
    assert plan([9000, 75], 100) == [25, 75]


def test_each_prompt_pays_for_its_own_forward_pass() -> None:
    assert plan([9000], 100, forward_s=0.010) == [90]
    assert plan([9000, 50], 100, forward_s=0.010) == [30, 50]


@given(st.integers(1, 9000), st.lists(st.integers(1, 100), max_size=9), st.integers(16, 300))
def test_the_oldest_prompt_always_gets_on(oldest: int, others: list[int], budget: int) -> None:
    assert plan([oldest, *others], budget)[0] >= min(oldest, budget // 4)


def test_the_first_of_several_long_prompts_goes_first() -> None:
    assert plan([9000, 8000], 100) == [100, 0]


def test_a_much_shorter_prompt_goes_first_even_if_it_takes_several_steps() -> None:
    assert plan([40_000, 30_000, 700], 100) == [25, 0, 75]


@pytest.mark.parametrize("plain_s", [0.0, 0.001, 0.005, 0.016])
def test_rows_of_short_steps_wait_for_max_stall_only(plain_s: float) -> None:
    limits = PrefillLimits.of_step(1, 50.0, 2048, plain_s)
    assert (limits.seconds, limits.max_tokens) == (0.05, 2048)
    assert limits.min_tokens == (1 if plain_s else MIN_CHUNK_TOKENS)
    assert PrefillLimits.of_step(0, 50.0, 2048, plain_s) == replace(limits, seconds=ALONE_S)
    assert PrefillLimits.of_step(1, 50.0, 3).min_tokens == 3


def test_where_a_step_takes_long_so_may_chunks() -> None:
    assert PrefillLimits.of_step(1, 50.0, 2048, plain_s=1.0) == PrefillLimits(3.0, 1, 2048)
    assert PrefillLimits.of_step(0, 50.0, 2048, plain_s=1.0) == PrefillLimits(4.0, 1, 2048)


def test_rows_can_be_spared_every_wait_but_the_shortest() -> None:
    for plain_s in (0.0, 1.0):
        limits = PrefillLimits.of_step(1, 0.0, 2048, plain_s)
        assert limits == PrefillLimits(0.0, MIN_CHUNK_TOKENS, 2048)


def feed(remaining: list[int], seconds: float, forward_s: float, num_steps: int) -> list[list[int]]:
    """Feed prompts for some steps, each prompt and token at its cost; return the chunks of each step."""
    chunks, num_passed = [], 0
    for _ in range(num_steps):
        limits = PrefillLimits(seconds, MIN_CHUNK_TOKENS, MANY)
        chunks.append(plan_prefill(remaining, [cost(forward_s)] * len(remaining), limits, None, num_passed))
        remaining = [lack - chunk for lack, chunk in zip(remaining, chunks[-1], strict=True)]
        num_passed = 0 if chunks[-1][0] else num_passed + 1
    return chunks


def test_where_a_quarter_holds_little_but_the_forward_pass_the_oldest_gets_every_fourth_step() -> None:
    assert feed([9000, 800], 0.200, forward_s=0.100, num_steps=8) == [[0, 100]] * 3 + [[100, 0]] + [
        [0, 100]
    ] * 3 + [[100, 0]]


def test_where_no_token_fits_the_oldest_still_advances() -> None:
    assert feed([90, 8], 0.001, forward_s=0.100, num_steps=4) == [[0, 4], [0, 4], [4, 0], [4, 0]]


def test_a_prompt_that_memory_does_not_let_complete_is_a_long_one() -> None:
    limits = PrefillLimits(1e9, 0, 100)
    assert plan_prefill([200, 60], [cost(0.0)] * 2, limits) == [40, 60]


def test_on_a_slow_machine_a_cancellation_and_a_stop_wait_for_few_tokens() -> None:
    def slow(num_tokens: int) -> float:
        return num_tokens * 17 / 512

    for plain_s in (0.0, 0.1):
        (chunk,) = plan_prefill([36_000], [slow], PrefillLimits.of_step(0, 50.0, 2048, plain_s))
        assert slow(chunk) <= ALONE_S
