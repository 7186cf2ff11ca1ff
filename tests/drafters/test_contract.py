"""The protocol of drafters/base.py, tested for every drafter in makers.py."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import NO_DRAFT, Draft, Drafter, DraftQuery, SequenceStart, finish
from tests.drafters.makers import DRAFTERS, SHARING

drafters = pytest.mark.parametrize("name", DRAFTERS)

few_ids = st.integers(0, 3)
texts = st.lists(few_ids, min_size=1, max_size=40)
some_text = st.lists(few_ids, min_size=1, max_size=6)
limits = st.integers(1, 12)
fractions = st.floats(0, 1)

CYCLE = [11, 12, 13, 14, 15, 16, 17, 18]


def step(drafter: Drafter, seq: int, limit: int, tokens: Sequence[int], share: float) -> Draft:
    """Run one step as the engine does: a share of the draft is accepted, then these tokens are committed."""
    draft = drafter.propose(DraftQuery(seq, limit))
    accepted = round(share * len(draft.tokens))
    drafter.observe(seq, [*draft.tokens[:accepted], *tokens])
    if draft.tokens:
        drafter.note_verified(seq, len(draft.tokens), accepted)
    return draft


def checked_step(
    drafter: Drafter, seq: int, limit: int, tokens: Sequence[int], share: float, seen: set[int]
) -> Draft:
    """Run one step, whose draft must be repeatable, within its limit and of what was seen; return it."""
    first = drafter.propose(DraftQuery(seq, limit))
    draft = step(drafter, seq, limit, tokens, share)
    assert draft == first
    assert len(draft.tokens) <= limit
    assert set(draft.tokens) <= seen
    assert all(type(token) is int for token in draft.tokens)
    assert 0.0 <= draft.prior <= 1.0
    return draft


@drafters
def test_a_drafter_has_the_name_that_it_is_listed_under(name: str) -> None:
    assert DRAFTERS[name]().name == name


@drafters
@given(
    prompt=texts,
    prediction=st.lists(few_ids, max_size=20),
    steps=st.lists(st.tuples(limits, some_text, fractions)),
)
def test_drafts_are_bounded_repeatable_and_made_of_what_was_seen(
    name: str, prompt: list[int], prediction: list[int], steps: list[tuple[int, list[int], float]]
) -> None:
    drafter = DRAFTERS[name]()
    finish(drafter.open(SequenceStart(7, prompt, prediction)))
    seen = {*prompt, *prediction}
    for limit, tokens, share in steps:
        draft = checked_step(drafter, 7, limit, tokens, share, seen)
        assert draft == NO_DRAFT or draft.source == name
        assert draft.bucket >= 0
        seen |= set(tokens)
    finish(drafter.close(7))


@drafters
@given(
    prompt=texts,
    calls=st.lists(st.one_of(limits, some_text, st.tuples(limits, fractions)), max_size=60),
)
def test_no_order_of_calls_raises(
    name: str, prompt: list[int], calls: list[int | list[int] | tuple[int, float]]
) -> None:
    drafter = DRAFTERS[name]()
    finish(drafter.open(SequenceStart(1, prompt)))
    for call in calls:
        if isinstance(call, int):
            drafter.propose(DraftQuery(1, call))
        elif isinstance(call, list):
            drafter.observe(1, call)
        else:
            drafter.note_verified(1, call[0], round(call[0] * call[1]))
    finish(drafter.close(1))


@drafters
def test_without_an_earlier_occurrence_nothing_is_drafted(name: str) -> None:
    drafter = DRAFTERS[name]()
    finish(drafter.open(SequenceStart(1, [5])))
    assert not drafter.propose(DraftQuery(1, 8)).tokens


@pytest.mark.parametrize("name", sorted(DRAFTERS.keys() - {"prediction"}))
@pytest.mark.parametrize("limit", [1, 2, 31])
def test_a_periodic_text_is_drafted_correctly(name: str, limit: int) -> None:
    drafter = DRAFTERS[name]()
    finish(drafter.open(SequenceStart(1, CYCLE * 6)))
    draft = drafter.propose(DraftQuery(1, limit))
    assert list(draft.tokens) == (CYCLE * 4)[:limit]


@pytest.mark.parametrize("name", sorted(DRAFTERS.keys() - SHARING))
@given(texts, st.lists(st.tuples(some_text, some_text), min_size=1, max_size=15), limits)
def test_sequences_do_not_see_each_other(
    name: str, prompt: list[int], steps: list[tuple[list[int], list[int]]], limit: int
) -> None:
    together, alone = DRAFTERS[name](), DRAFTERS[name]()
    finish(together.open(SequenceStart(1, prompt)))
    finish(together.open(SequenceStart(2, prompt[::-1], prompt)))
    finish(alone.open(SequenceStart(1, prompt)))
    for own, others in steps:
        together.observe(2, others)
        together.observe(1, own)
        alone.observe(1, own)
        assert together.propose(DraftQuery(1, limit)) == alone.propose(DraftQuery(1, limit))


@drafters
def test_close_frees_the_sequence(name: str) -> None:
    drafter = DRAFTERS[name]()
    for seq in range(50):
        finish(drafter.open(SequenceStart(seq, CYCLE * 2, CYCLE)))
        step(drafter, seq, 4, [1, 2], 0.5)
    assert drafter.num_open == 50
    for seq in random.Random(1).sample(range(50), 50):
        finish(drafter.close(seq))
    assert drafter.num_open == 0


@drafters
def test_the_number_of_a_closed_sequence_can_be_reused(name: str) -> None:
    drafter = DRAFTERS[name]()
    finish(drafter.open(SequenceStart(1, CYCLE * 6)))
    finish(drafter.close(1))
    finish(drafter.open(SequenceStart(1, [90])))
    assert not drafter.propose(DraftQuery(1, 8)).tokens


@drafters
def test_a_sequence_whose_open_left_nothing_can_be_closed(name: str) -> None:
    """The engine closes a sequence whose open raised, which may have been before anything was stored."""
    drafter = DRAFTERS[name]()
    finish(drafter.close(1))
    assert drafter.num_open == 0
