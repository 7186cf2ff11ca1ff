"""Views: other texts that a sequence's answer may copy from."""

import tracemalloc
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import (
    SLICE_TOKENS,
    Draft,
    DraftQuery,
    IndexesViews,
    SequenceStart,
    View,
    finish,
)
from reprise.drafters.copies.history import MAX_TOKENS, Shelf
from reprise.drafters.copies.occurrences import TailHashes
from reprise.drafters.suffix import NUM_CLASSES, SUCCESSOR, VIEW, SuffixDrafter
from tests.drafters.makers import DRAFTERS
from tests.drafters.test_contract import checked_step, few_ids, some_text, texts

READING = [name for name, make in DRAFTERS.items() if isinstance(make(), IndexesViews)]


def opened(prompt: Sequence[int], *views: View, answer: Sequence[int] = ()) -> SuffixDrafter:
    drafter = SuffixDrafter(0)
    finish(drafter.open(SequenceStart(1, prompt)))
    for view in views:
        finish(drafter.add_view(1, view))
    for token in answer:
        drafter.observe(1, [token])
    return drafter


def draft_of(drafter: SuffixDrafter, limit: int = 8) -> Draft:
    return drafter.propose(DraftQuery(1, limit))


@pytest.mark.parametrize("name", READING)
@given(
    prompt=texts,
    views=st.lists(st.lists(few_ids, max_size=30), max_size=4),
    steps=st.lists(st.tuples(st.integers(1, 12), some_text, st.floats(0, 1))),
)
def test_drafts_with_views_keep_to_the_contract(
    name: str, prompt: list[int], views: list[list[int]], steps: list[tuple[int, list[int], float]]
) -> None:
    drafter = DRAFTERS[name]()
    assert isinstance(drafter, IndexesViews)
    finish(drafter.open(SequenceStart(7, prompt)))
    seen = {*prompt, *(token for view in views for token in view)}
    left: list[View] = [*views]
    for limit, tokens, share in steps:
        if left:
            finish(drafter.add_view(7, left.pop()))
        checked_step(drafter, 7, limit, tokens, share, seen)
        seen |= set(tokens)
    finish(drafter.close(7))
    assert drafter.num_open == 0


def test_a_view_is_drafted_to_its_end_and_no_further() -> None:
    drafter = opened([1], range(10, 20), range(50, 60), answer=[12, 13])
    draft = draft_of(drafter)
    assert list(draft.tokens) == list(range(14, 20))
    assert draft.bucket // NUM_CLASSES == VIEW
    drafter.observe(1, range(14, 19))
    assert list(draft_of(drafter).tokens) == [19]
    drafter.observe(1, [19])
    assert not draft_of(drafter).tokens


def test_a_view_takes_precedence_over_what_the_prompt_shows() -> None:
    shown = [10, 11, 12, 900, 13, 14, 15, 901, 16]
    drafter = opened(shown, [10, 11, 12, 800, 13, 14, 15, 800, 16], answer=[10, 11, 12])
    assert list(draft_of(drafter, 3).tokens) == [800, 13, 14]


def test_the_answer_s_own_text_takes_precedence_over_a_view() -> None:
    drafter = opened([1], [10, 11, 12, 13], answer=[10, 11, 77, 78, 10, 11])
    assert list(draft_of(drafter, 2).tokens) == [77, 78]


def test_a_cursor_resumes_in_the_view_that_it_left() -> None:
    view = range(100, 160)
    drafter = opened(range(60), view, answer=[*view[:20], 7])
    drafter.observe(1, [view[21], view[22], view[23]])
    assert list(draft_of(drafter, 4).tokens) == list(view[24:28])


def test_a_view_that_comes_late_is_drafted() -> None:
    drafter = opened([1], answer=[10, 11])
    assert not draft_of(drafter).tokens
    finish(drafter.add_view(1, range(10, 20)))
    drafter.observe(1, [12])
    assert list(draft_of(drafter, 2).tokens) == [13, 14]


def test_views_are_neither_learned_nor_seen_by_other_sequences() -> None:
    drafter = SuffixDrafter()
    finish(drafter.open(SequenceStart(1, [1])))
    finish(drafter.add_view(1, range(10, 40)))
    finish(drafter.open(SequenceStart(2, range(10, 16))))
    assert not drafter.propose(DraftQuery(2, 4)).tokens
    finish(drafter.close(1))
    assert drafter.status()["tokens"] == 2
    assert not drafter.propose(DraftQuery(2, 4)).tokens


def test_the_last_token_s_latest_successors_are_drafted_where_nothing_matches() -> None:
    drafter = opened([5, 1, 5, 2, 5, 1, 9, 5])
    draft = draft_of(drafter)
    assert list(draft.tokens) == [1]
    assert draft.bucket // NUM_CLASSES == SUCCESSOR


@given(
    st.lists(st.lists(few_ids, min_size=1, max_size=40), max_size=6),
    st.lists(few_ids, min_size=1, max_size=40),
)
def test_a_match_on_the_shelf_is_one_within_a_text(shelved: list[list[int]], end: list[int]) -> None:
    shelf = Shelf(1)
    for text in shelved:
        finish(shelf.add(text))
    match = shelf.find(TailHashes(end).hashes, array("I", end[-32:]))
    if match is not None:
        followed = [end[-1], *shelf.tokens[match.position : shelf.end_of(match.position)]]
        assert len(followed) > 1
        assert any(followed == text[-len(followed) :] for text in shelved)


def test_a_shelf_reads_in_slices_and_takes_what_it_has_room_for() -> None:
    shelf = Shelf(5000)
    slices = [*shelf.add(range(3 * SLICE_TOKENS)), *shelf.add(range(10_000, 90_000))]
    assert max(slices) <= SLICE_TOKENS
    assert len(shelf.tokens) < shelf.capacity <= 8192
    finish(shelf.add(range(200)))
    assert len(shelf.tokens) < shelf.capacity


def test_what_views_take_is_bounded_and_freed_with_their_sequence() -> None:
    """Count the bytes that Python and NumPy hold: some 44 for each token of the shelf."""
    drafter, view = SuffixDrafter(0), array("I", range(MAX_TOKENS // 2))
    tracemalloc.start()
    try:
        finish(drafter.open(SequenceStart(1, range(MAX_TOKENS))))
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(4):
            finish(drafter.add_view(1, view))
        assert tracemalloc.get_traced_memory()[0] - before < 50 * MAX_TOKENS
        drafter.close(1)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
