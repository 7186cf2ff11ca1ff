"""Other projects' lookup rules, compared with a scan of the whole text."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.bench.replay.rules import FixedLookup
from reprise.drafters.base import DraftQuery, SequenceStart

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def fixed(text: Sequence[int], longest: int, shortest: int, limit: int, newest: bool) -> list[int]:
    for size in range(longest, shortest - 1, -1):
        starts = [at for at in range(len(text) - size) if text[at : at + size] == text[-size:]]
        if starts and len(text) >= size:
            start = (starts[-1] if newest else starts[0]) + size
            return list(text[start : start + limit])
    return []


def long_copy(text: Sequence[int], n: int, m: int) -> list[int]:
    """Draft like common_ngram_simple_draft, loop by loop. Its tokens lack the last one, just sampled."""
    tokens, pattern = text[:-1], text[-n:]
    if len(tokens) <= n + m + 1:
        return []
    match_pos = 0
    for j in range(len(tokens) - n - 1, 0, -1):
        if tokens[j : j + n] == pattern:
            match_pos = j
            break
    if match_pos == 0:
        return []
    copy_max = min(m, len(tokens) - (match_pos + n))
    return [] if copy_max < n else list(tokens[match_pos + n : match_pos + n + copy_max])


def said_by(drafter, text: Sequence[int], num_prompt: int, limit: int) -> list[list[int]]:
    """Return what a drafter proposes after the prompt and after each further token."""
    drafter.open(SequenceStart(0, text[:num_prompt]))
    drafts = [list(drafter.propose(DraftQuery(0, limit)).tokens)]
    for token in text[num_prompt:]:
        drafter.observe(0, [token])
        drafts.append(list(drafter.propose(DraftQuery(0, limit)).tokens))
    drafter.close(0)
    return drafts


@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize(("longest", "shortest"), [(2, 2), (3, 3), (2, 1), (5, 2)])
@given(text=TOKENS, data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_fixed_lookup_says_what_a_scan_says(longest, shortest, newest, text, data) -> None:
    num_prompt = data.draw(st.integers(1, len(text)))
    drafts = said_by(FixedLookup(longest, shortest, newest=newest), text, num_prompt, 10)
    for at, draft in enumerate(drafts, num_prompt):
        assert draft == fixed(text[:at], longest, shortest, 10, newest)


@given(text=st.lists(st.integers(0, 1), min_size=1, max_size=60), data=st.data())
@settings(max_examples=40, deadline=None)
def test_the_long_copy_says_what_the_loop_says(text, data) -> None:
    num_prompt = data.draw(st.integers(1, len(text)))
    drafts = said_by(FixedLookup(3, 3, is_long=True), text, num_prompt, 8)
    for at, draft in enumerate(drafts, num_prompt):
        assert draft == long_copy(text[:at], 3, 8)


@pytest.mark.parametrize("make", [lambda: FixedLookup(3, 2), lambda: FixedLookup(3, 3, is_long=True)])
def test_tokens_at_once_are_as_good_as_one_by_one(make) -> None:
    text = random.Random(3).choices(range(3), k=300)
    one, other = make(), make()
    for drafter in (one, other):
        drafter.open(SequenceStart(0, text[:100]))
    for at in range(100, 300, 4):
        one.observe(0, text[at : at + 4])
        for token in text[at : at + 4]:
            other.observe(0, [token])
    assert one.propose(DraftQuery(0, 9)) == other.propose(DraftQuery(0, 9))
    assert one.texts == other.texts
