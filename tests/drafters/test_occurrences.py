from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import SLICE_TOKENS, finish
from reprise.drafters.copies.copying import GrowingText
from reprise.drafters.copies.occurrences import (
    LONGEST,
    MAX_MATCH_TOKENS,
    NGRAM_SIZES,
    Hashes,
    Ids,
    Occurrences,
    TailHashes,
)

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=120)


def text_of(tokens: Sequence[int]) -> GrowingText:
    text = GrowingText(tokens)
    finish(text.index_tokens())
    return text


class Ring:
    """A ring of tokens with an index, as the history keeps it."""

    def __init__(self, capacity: int) -> None:
        self.tokens: Ids = array("I", bytes(4 * capacity))
        self.index = Occurrences(self.tokens, capacity)

    def append(self, token: int, hashes: Hashes) -> None:
        self.tokens[self.index.end % self.index.capacity] = token
        self.index.append(hashes)

    def extend(self, tokens: Ids, before: Ids) -> None:
        for at, token in enumerate(tokens, self.index.end):
            self.tokens[at % self.index.capacity] = token
        self.index.extend(tokens, before)


def longest_by_brute_force(text: list[int], end: list[int], may_touch_end: bool) -> int:
    best = 0
    for place in range(1, len(text) + may_touch_end):
        length = 0
        while length < min(place, len(end)) and text[place - 1 - length] == end[-1 - length]:
            length += 1
        best = max(best, length)
    return best


@given(TOKENS)
def test_a_match_is_real_and_no_shorter_than_the_longest_n_gram_that_occurs(tokens: list[int]) -> None:
    match = text_of(tokens).find_earlier()
    longest = longest_by_brute_force(tokens, tokens, may_touch_end=False)
    if match is None:
        assert longest < NGRAM_SIZES[0]
        return
    assert 0 < match.position < len(tokens)
    assert tokens[match.position - match.length : match.position] == tokens[-match.length :]
    assert match.length <= longest
    assert match.length >= max(n for n in NGRAM_SIZES if n <= longest)


@given(TOKENS)
def test_text_added_token_by_token_finds_what_text_added_at_once_finds(tokens: list[int]) -> None:
    grown = text_of(tokens[:1])
    for token in tokens[1:]:
        grown.append(token)
    assert grown.find_earlier() == text_of(tokens).find_earlier()
    assert grown.tokens.tolist() == tokens


@given(TOKENS, TOKENS, st.sampled_from([16, 64, 1024]))
def test_a_ring_finds_only_what_it_still_holds(text: list[int], end: list[int], capacity: int) -> None:
    filled, tail = Ring(capacity), TailHashes()
    for token in text:
        filled.append(token, tail.append(token))
    ring = filled.index
    assert ring.start == max(0, len(text) - capacity)
    tail_of_end = TailHashes()
    for token in end:
        tail_of_end.append(token)
    match = ring.find(tail_of_end.hashes, array("I", end[-MAX_MATCH_TOKENS:]))
    if match is not None:
        assert ring.start + match.length <= match.position < len(text)
        assert text[match.position - match.length : match.position] == end[-match.length :]


@given(TOKENS, TOKENS, st.data(), st.sampled_from([64, 128, 1024]))
def test_tokens_added_together_are_found_like_tokens_added_one_by_one(
    text: list[int], end: list[int], data: st.DataObject, capacity: int
) -> None:
    one_by_one, together, tail = Ring(capacity), Ring(capacity), TailHashes()
    for token in text:
        one_by_one.append(token, tail.append(token))
    ids, at = array("I", text), 0
    while at < len(ids):
        stop = at + data.draw(st.integers(1, capacity))
        together.extend(ids[at:stop], ids[max(0, at - LONGEST) : at])
        at = stop
    ending = array("I", end)
    assert together.index.find(TailHashes(end).hashes, ending) == one_by_one.index.find(
        TailHashes(end).hashes, ending
    )
    assert together.index.find_earlier(ids) == one_by_one.index.find_earlier(ids)


@given(TOKENS, st.integers(0, 100), st.integers(1, 16))
def test_a_slice_may_cross_the_end_of_the_ring(text: list[int], start: int, size: int) -> None:
    filled, tail = Ring(32), TailHashes()
    for token in text:
        filled.append(token, tail.append(token))
    ring = filled.index
    if ring.start <= start and start + size <= ring.end:
        assert ring.slice(start, start + size).tolist() == text[start : start + size]


@pytest.mark.parametrize("num_read", [0, 300, 3500])
def test_a_text_that_outgrows_its_index_loses_nothing_and_no_token_waits_for_more_than_a_slice(
    num_read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeat every 5,003 tokens, over two doublings."""
    extend, added = Occurrences.extend, list[int]()

    def count(index: Occurrences, tokens: Any, *rest: Any) -> None:
        added.append(len(tokens))
        extend(index, tokens, *rest)

    tokens = [at * 7919 % 5003 for at in range(3 * 5003)]
    text = text_of(tokens[:num_read] or tokens[:1])
    monkeypatch.setattr(Occurrences, "extend", count)
    capacities = set()
    for at in range(len(text.tokens), len(tokens)):
        added.clear()
        text.append(tokens[at])
        assert sum(added) <= SLICE_TOKENS
        capacities.add(text.index.capacity)
        if at % 997 == 0:
            match = text.find_earlier()
            assert (match.position if match else 0) == max(0, at + 1 - 5003)
    assert len(capacities) > 1
    assert text.tokens.tolist() == tokens
