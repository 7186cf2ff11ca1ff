"""The repetition score, compared with a direct count."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.repetition import repetition_score


def count(prompt: list[int]) -> float:
    grams = Counter(zip(prompt, prompt[1:], prompt[2:], strict=False))
    return sum(times > 1 for times in grams.values()) / len(grams) if grams else 0.0


@given(st.lists(st.one_of(st.integers(0, 3), st.sampled_from([1 << 20, (1 << 21) - 1, 1 << 21, 1 << 40]))))
def test_it_is_the_share_of_3_grams_that_occur_twice(prompt: list[int]) -> None:
    assert repetition_score(prompt) == pytest.approx(count(prompt))


def test_short_prompts_do_not_repeat() -> None:
    assert repetition_score([]) == repetition_score([1]) == repetition_score([1, 1]) == 0.0


def test_a_doubled_prompt_repeats_nearly_all_of_itself() -> None:
    assert repetition_score(list(range(100)) * 2) == pytest.approx(0.98)
