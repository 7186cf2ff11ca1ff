"""Prompt lookup, compared with a scan of the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafters.base import DraftQuery, SequenceStart, finish
from drafters.ngram_simple import NgramSimpleDrafter

sizes = st.tuples(st.integers(1, 4), st.integers(0, 6)).map(lambda pair: (pair[0], sum(pair)))


def scan(text: list[int], sizes: tuple[int, int], limit: int) -> tuple[list[int], int]:
    """Return what follows the newest of the longest matches, and the length of the match."""
    for n in range(sizes[1], sizes[0] - 1, -1):
        for start in range(len(text) - n - 1, -1, -1):
            if text[start : start + n] == text[-n:]:
                line = list(text)
                for at in range(start + n, start + n + limit):
                    line.append(line[at])
                return line[len(text) :], n
    return [], 0


@given(
    sizes,
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=20),
    st.integers(1, 9),
)
def test_it_drafts_what_a_scan_would_find(sizes: tuple[int, int], parts: list[list[int]], limit: int) -> None:
    drafter = NgramSimpleDrafter(*sizes)
    finish(drafter.open(SequenceStart(1, parts[0])))
    text = list(parts[0])
    for part in parts[1:]:
        drafter.observe(1, part)
        text += part
        draft = drafter.propose(DraftQuery(1, limit))
        expected, n = scan(text, sizes, limit)
        assert list(draft.tokens) == expected
        if n:
            assert draft.bucket == sum(n >= start for start in (3, 4, 6, 9, 16))


def test_the_longest_match_wins_and_then_the_newest() -> None:
    drafter = NgramSimpleDrafter(1, 3)
    finish(drafter.open(SequenceStart(1, [1, 2, 3, 50, 2, 3, 60, 2, 3, 70, 1, 2, 3])))
    assert list(drafter.propose(DraftQuery(1, 1)).tokens) == [50]
    finish(drafter.open(SequenceStart(2, [2, 3, 60, 2, 3, 70, 2, 3])))
    assert list(drafter.propose(DraftQuery(2, 1)).tokens) == [70]


def test_a_longer_match_has_a_higher_prior() -> None:
    drafter = NgramSimpleDrafter(2, 16)
    priors = []
    for length in (2, 3, 5, 7, 12, 16):
        finish(drafter.open(SequenceStart(length, [*range(length), 99, *range(length)])))
        priors.append(drafter.propose(DraftQuery(length, 1)).prior)
    assert priors == sorted(set(priors))


def test_a_match_shorter_than_the_minimum_size_is_ignored() -> None:
    drafter = NgramSimpleDrafter(3, 5)
    finish(drafter.open(SequenceStart(1, [1, 2, 9, 1, 2])))
    assert not drafter.propose(DraftQuery(1, 4)).tokens


@pytest.mark.parametrize("sizes", [(0, 3), (4, 3), (-1, -1)])
def test_invalid_sizes_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="1 <= min <= max"):
        NgramSimpleDrafter(*sizes)
