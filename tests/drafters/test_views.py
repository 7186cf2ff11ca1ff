"""Views: other texts and forms that a sequence's answer may copy from."""

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
    Frame,
    IndexesViews,
    SequenceStart,
    View,
    finish,
)
from reprise.drafters.copies.forms import Forms
from reprise.drafters.copies.history import MAX_TOKENS, Shelf
from reprise.drafters.copies.occurrences import TailHashes
from reprise.drafters.suffix import FORM, NUM_CLASSES, SUCCESSOR, VIEW, SuffixDrafter
from tests.drafters.makers import DRAFTERS
from tests.drafters.test_contract import checked_step, few_ids, some_text, texts

READING = [name for name, make in DRAFTERS.items() if isinstance(make(), IndexesViews)]

# An edit: a name, then a value, then what is between, and a second value that is like the first.
EDIT = Frame(((1, 2, 3), (4, 5, 6), (7, 8)), (None, 0), ({29: (94, 5, 6)}, {29: (97, 8)}))


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
    forms = [Frame(((0, 1), (2, 3), (1,)), (None, 0), ({}, {2: (1, 0)})), Frame(((0,), (0,)), (None,), ({},))]
    seen = {*prompt, *(token for view in views for token in view), 0, 1, 2, 3}
    left: list[View] = [*views, *forms]
    for limit, tokens, share in steps:
        if left:
            finish(drafter.add_view(7, left.pop()))
        checked_step(drafter, 7, limit, tokens, share, seen)
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


def test_what_is_fixed_in_a_form_follows_from_its_first_tokens() -> None:
    drafter = opened([50], EDIT, answer=[1])
    draft = draft_of(drafter)
    assert list(draft.tokens) == [2, 3]
    assert draft.bucket // NUM_CLASSES == FORM
    drafter = opened([50], EDIT, answer=[1, 2, 3, 20, 21, 22, 4])
    # The second value is expected to be like the first.
    assert list(draft_of(drafter).tokens) == [5, 6, 20, 21, 22, 7, 8]


def test_the_first_token_of_what_is_fixed_may_be_one_with_the_value() -> None:
    drafter = opened([50], EDIT, answer=[1, 2, 3, 20, 94])
    assert list(draft_of(drafter).tokens) == [5, 6, 20, 97, 8]


def test_the_last_token_of_what_is_fixed_may_be_one_with_the_value() -> None:
    form = Frame(((1, 2, 3, 40), (4, 5, 6, 40), (7, 8)), (None, 0), ({}, {}))
    drafter = opened([50], form, answer=[1, 2, 3, 41, 20, 21, 4])
    assert list(draft_of(drafter).tokens) == [5, 6, 41, 20, 21, 7, 8]
    drafter.observe(1, [5, 6, 41, 20])
    assert list(draft_of(drafter).tokens) == [21, 7, 8]


def test_a_value_without_an_earlier_one_is_recalled_and_ends_as_that_of_another_form() -> None:
    read = Frame(((1, 2, 9, 30, 31, 32, 33), (70, 71)), (None,), ({},))
    edit = Frame(((1, 2, 10, 30, 31, 32, 33), (4, 5, 6), (7, 8)), (None, None), ({}, {}))
    earlier = [1, 2, 9, 30, 31, 32, 33, 20, 21, 70, 71, 50]
    drafter = opened(earlier, read, edit, answer=[1, 2, 10])
    assert list(draft_of(drafter, 31).tokens) == [30, 31, 32, 33, 20, 21, 4, 5, 6]
    drafter.observe(1, [30, 31, 32, 33, 20])
    assert list(draft_of(drafter, 31).tokens) == [21, 4, 5, 6]


def test_a_cursor_does_not_go_on_behind_what_stands_before_a_value() -> None:
    form = Frame(((1, 2, 3), (4, 5)), (None,), ({},))
    read = [9, 30, 31, 32, 33, 34, 35, 36, 37, 60, 61, 62, 63]
    drafter = opened(read, form, range(60, 70), answer=[30, 31, 32, 33, 34, 1, 2, 3, 60, 61, 62])
    assert draft_of(drafter).bucket // NUM_CLASSES == VIEW


def test_a_value_that_is_copied_ends_where_the_earlier_one_did() -> None:
    value = range(20, 30)
    drafter = opened([50], EDIT, answer=[1, 2, 3, *value, 4, 5, 6])
    assert list(draft_of(drafter, 31).tokens) == [*value[:-1], 97, 8]
    # After a change it is found again within that value.
    for token in (20, 21, 99, 23, 24):
        drafter.observe(1, [token])
    assert list(draft_of(drafter, 31).tokens) == [*value[5:-1], 97, 8]


def test_forms_that_begin_alike_are_fixed_up_to_where_they_differ() -> None:
    forms = Forms()
    forms.add(Frame(((1, 2, 3), (9,)), (None,), ({},)))
    forms.add(Frame(((1, 2, 4, 5), (9,)), (None,), ({},)))
    assert not forms.is_fixed
    forms.advance(1, 1)
    assert forms.is_fixed
    assert forms.draft([], 8, list)[0] == [2]
    forms.advance(2, 2)
    assert not forms.is_fixed
    forms.advance(4, 3)
    assert forms.draft([], 8, list)[0] == [5]
    assert forms.advance(5, 4)
    assert forms.source is None


def test_a_form_can_be_filled_in_again_and_begun_anew() -> None:
    forms = Forms()
    forms.add(EDIT)
    call = [1, 2, 3, 30, 4, 5, 6, 31, 7, 8]
    begins = [forms.advance(token, at) for at, token in enumerate([*call, 60, 1, 2, *call], 1)]
    assert [at for at, is_begin in enumerate(begins, 1) if is_begin] == [3, 7, 16, 20]


def test_a_value_that_is_like_a_recalled_one_is_recalled_too() -> None:
    form = Frame(((1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11)), (None, None, 1), ({}, {}, {}))
    earlier = [1, 2, 3, 30, 4, 5, 6, 20, 21, 7, 8, 9, 20, 22, 10, 11]
    drafter = opened([*earlier, 50], form, answer=[1, 2, 3, 30, 4, 5])
    assert list(draft_of(drafter, 31).tokens)[:6] == [6, 20, 21, 7, 8, 9]
