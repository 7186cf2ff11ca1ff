"""The n-gram table, compared with a dictionary and the hash written as a sum."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import finish
from reprise.drafters.ngram_mod.table import DEFAULT_SIZE, MULTIPLIER, NgramModCounts, NgramModTable

texts = st.lists(st.integers(0, 5), max_size=60)


class PlainTable:
    """A reference table: a dictionary from slots to tokens."""

    def __init__(self, n: int, size: int) -> None:
        self.n, self.size, self.counts, self.tokens = n, size, NgramModCounts(), dict[int, int]()

    def slot(self, ngram: list[int]) -> int:
        hash_ = sum(t * MULTIPLIER ** (self.n - k) for k, t in enumerate(ngram)) % 2**64
        return (hash_ >> 32) * self.size >> 32

    def learn(self, text: list[int]) -> None:
        for at in range(self.n, len(text)):
            slot = self.slot(text[at - self.n : at])
            before = self.tokens.get(slot)
            self.counts.overwrites += before is not None and before != text[at]
            self.tokens[slot] = text[at]
            self.counts.inserts += 1

    def continuation(self, text: list[int], limit: int) -> list[int]:
        line = list(text)
        while len(line) < len(text) + limit and (slot := self.slot(line[-self.n :])) in self.tokens:
            line.append(self.tokens[slot])
        return line[len(text) :]


@given(st.integers(1, 4), st.integers(1, 300), st.lists(texts, max_size=6))
def test_it_holds_what_a_dictionary_would(n: int, size: int, learned: list[list[int]]) -> None:
    table, plain = NgramModTable(n, size), PlainTable(n, size)
    for text in learned:
        table.learn(text)
        plain.learn(text)
        for start in range(len(text) - n):
            ngram = text[start : start + n]
            assert table.continuation(ngram, table.hash(ngram), 7) == plain.continuation(ngram, 7)
    slots, tokens = table.contents()
    assert dict(zip(slots.tolist(), tokens.tolist(), strict=True)) == plain.tokens
    assert table.occupied == len(plain.tokens)
    assert (table.counts.inserts, table.counts.overwrites) == (plain.counts.inserts, plain.counts.overwrites)


@given(st.integers(1, 20), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=50))
def test_rolling_equals_hashing_from_scratch(n: int, text: list[int]) -> None:
    table = NgramModTable(n)
    hash_ = table.hash(text[:n])
    for at in range(n, len(text)):
        hash_ = table.roll(hash_, text[at - n], text[at])
        assert hash_ == table.hash(text[at - n + 1 : at + 1])


@pytest.mark.parametrize("num_repeats", [1, 400])
def test_the_newest_token_wins_also_within_one_text(num_repeats: int) -> None:
    table = NgramModTable(2)
    table.learn([1, 2, 50, 1, 2, 60] * num_repeats + [1, 2, 70])
    assert table.continuation([1, 2], table.hash([1, 2]), 1) == [70]


def test_slots_are_spread_like_random_ones_even_for_adjacent_ids() -> None:
    """N-grams that differ only in their last token, by one, are the hardest case for the high bits."""
    table = NgramModTable(16, 100_003)
    slots = [table.slot(table.hash([7] * 14 + [a, b])) for a in range(200) for b in range(200)]
    # 40000 random draws from 100003 slots hit 32970 distinct ones on average.
    assert len(set(slots)) == pytest.approx(32_970, rel=0.06)
    assert all(abs(a - b) > 1 for a, b in pairwise(slots))


def test_random_text_fills_the_table_like_random_slots() -> None:
    rng = random.Random(1)
    table = NgramModTable(16, 1 << 16)
    table.learn([int(rng.paretovariate(0.8)) % 50_000 for _ in range(1 << 16)])
    assert table.occupied / table.size == pytest.approx(1 - 2.718281828**-1, abs=0.01)


def test_memory_is_allocated_with_the_first_insert_and_freed_by_clear() -> None:
    table = NgramModTable()
    assert table.num_bytes == 0
    table.learn([1] * 16)
    assert table.continuation([1] * 16, table.hash([1] * 16), 4) == []
    assert table.num_bytes == 0
    table.learn([1] * 17)
    assert table.num_bytes == 4 * DEFAULT_SIZE
    table.clear()
    assert table.num_bytes == table.occupied == 0


def test_the_continuation_of_a_loop_ends_at_the_limit() -> None:
    table = NgramModTable(2, 1000)
    table.learn([1, 2, 3, 1, 2, 3, 1])
    assert table.continuation([1, 2], table.hash([1, 2]), 8) == [3, 1, 2, 3, 1, 2, 3, 1]
    assert (table.counts.hits, table.counts.misses) == (8, 0)


def test_lookups_are_counted() -> None:
    table = NgramModTable(2, 1_000_000)
    table.learn([1, 2, 3, 4])
    assert table.continuation([1, 2], table.hash([1, 2]), 8) == [3, 4]
    assert (table.counts.hits, table.counts.misses) == (2, 1)


def test_memory_is_freed_in_slices_while_a_table_is_in_use_again() -> None:
    table = NgramModTable(2, DEFAULT_SIZE)
    finish(table.allocate())
    table.learn([1, 2, 3])
    freeing = table.clear()
    assert (table.num_bytes, table.occupied) == (0, 0)
    assert table.continuation([1, 2], table.hash([1, 2]), 4) == []
    table.learn([1, 2, 4])
    assert sum(1 for _ in freeing) > 16
    assert table.continuation([1, 2], table.hash([1, 2]), 4) == [4]
