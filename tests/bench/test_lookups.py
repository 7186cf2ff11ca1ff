"""Other projects' lookup rules, compared with a scan of the whole text."""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.replay.rules import FixedLookup, WipedTableLookup
from drafters.base import DraftQuery, SequenceStart

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


class Scanned:
    """ngram-mod's table as a dictionary of the n-grams themselves, so that none can collide."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.table: dict[tuple[int, ...], int] = {}
        self.learnt = 0

    def learn(self, text: Sequence[int]) -> None:
        for at in range(self.learnt, len(text) - self.n):
            self.table[tuple(text[at : at + self.n])] = text[at + self.n]
        self.learnt = max(self.learnt, len(text) - self.n)

    def draft(self, text: Sequence[int], fewest: int, most: int) -> list[int]:
        line = list(text)
        while len(line) - len(text) < most and (found := self.table.get(tuple(line[-self.n :]))) is not None:
            line.append(found)
        drafted = line[len(text) :]
        return drafted if len(text) >= self.n and len(drafted) >= fewest else []


@given(seed=st.integers(0, 1000), num_prompt=st.integers(1, 120))
@settings(max_examples=40, deadline=None)
def test_the_wiped_table_says_what_a_table_of_ngrams_says(seed: int, num_prompt: int) -> None:
    text = random.Random(seed).choices(range(3), k=240)
    scanned = Scanned(4)
    scanned.learn(text[:num_prompt])
    drafts = said_by(WipedTableLookup(n=4, min_tokens=6), text, num_prompt, 20)
    for at, draft in enumerate(drafts, num_prompt):
        # The last token is not learned yet, and nothing is learned before 32 others wait.
        if at > num_prompt and scanned.learnt + 32 < at - 1:
            scanned.learn(text[: at - 1])
        assert draft == scanned.draft(text[:at], 6, 20)


def opened(table: WipedTableLookup, seq: int, text: Sequence[int]) -> None:
    table.open(SequenceStart(seq, text))


def test_five_failed_drafts_wipe_the_table_for_everybody() -> None:
    text = random.Random(1).choices(range(1000), k=200)
    table = WipedTableLookup(n=4, min_tokens=1)
    opened(table, 0, text)
    opened(table, 1, text[:50])
    assert table.propose(DraftQuery(1, 5)).tokens == text[50:55]
    for num_verified, num_accepted in [(8, 1)] * 4 + [(8, 2)] + [(8, 1)] * 4:
        table.record_verified(0, num_verified, num_accepted)
    assert table.propose(DraftQuery(1, 5)).tokens
    table.record_verified(0, 8, 1)
    assert not table.propose(DraftQuery(1, 5)).tokens
    # The sequence that caused it writes its own text again.
    table.observe(0, [5, 6])
    assert table.propose(DraftQuery(1, 5)).tokens == text[50:55]


def test_a_prompt_that_fills_a_quarter_of_the_table_wipes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WipedTableLookup, "SIZE", 400)
    table = WipedTableLookup(n=2, min_tokens=1)
    opened(table, 0, random.Random(1).choices(range(1000), k=60))
    assert table.table.occupied > 40
    opened(table, 1, random.Random(2).choices(range(1000), k=90))
    assert not table.table.occupied


MAKERS: list[Callable] = [
    lambda: FixedLookup(3, 2),
    lambda: FixedLookup(3, 3, is_long=True),
    lambda: WipedTableLookup(4, 1),
]


@pytest.mark.parametrize("make", MAKERS)
def test_tokens_at_once_are_as_good_as_one_by_one(make: Callable) -> None:
    text = random.Random(3).choices(range(3), k=300)
    one, other = make(), make()
    opened(one, 0, text[:100])
    opened(other, 0, text[:100])
    for at in range(100, 300, 4):
        one.observe(0, text[at : at + 4])
        for token in text[at : at + 4]:
            other.observe(0, [token])
    if not isinstance(one, WipedTableLookup):  # which learns at the end of a step
        assert one.propose(DraftQuery(0, 9)) == other.propose(DraftQuery(0, 9))
    assert one.texts == other.texts
