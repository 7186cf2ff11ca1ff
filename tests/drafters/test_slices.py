"""Prompts read and texts learned in slices: as if done at once, and with bounded work in each call."""

import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import (
    NO_DRAFT,
    SLICE_TOKENS,
    Draft,
    Drafter,
    DraftQuery,
    SequenceStart,
    SharedTable,
    finish,
)
from reprise.drafters.copies import copying, history
from reprise.drafters.copies.history import History
from reprise.drafters.ngram_mod import drafter as ngram_mod
from reprise.drafters.repetition import repetition_score, score_in_slices
from reprise.drafters.suffix import SuffixDrafter
from tests.drafters.makers import DRAFTERS, SHARING

drafters = pytest.mark.parametrize("name", DRAFTERS)

few_ids = st.integers(0, 3)
texts = st.lists(few_ids, min_size=1, max_size=60)
LONG = [at * 7919 % 1009 for at in range(20 * SLICE_TOKENS)]
PERIODIC = [5, 6, 7, 8, 9, 10, 11, 12] * 40


@contextmanager
def slices_of(num_tokens: int) -> Iterator[None]:
    """Let all slices read at most this many tokens."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (copying, history, ngram_mod):
            patch.setattr(module, "SLICE_TOKENS", num_tokens)
        yield


class Watched(Sequence[int]):
    """A prompt that counts how many of its tokens are read."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tokens
        self.num_read = 0

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, at: Any) -> Any:
        found = self.tokens[at]
        self.num_read += len(found) if isinstance(at, slice) else 1
        return found

    def take_count(self) -> int:
        """Return how many tokens were read since the last call."""
        num_read, self.num_read = self.num_read, 0
        return num_read


def draft_of(drafter: Drafter, seq: int = 1) -> Draft:
    return drafter.propose(DraftQuery(seq, 8))


@drafters
@given(texts, texts, st.integers(1, 20))
def test_a_prompt_read_in_slices_gives_the_drafts_of_one_read_at_once(
    name: str, prompt: list[int], answer: list[int], num_tokens: int
) -> None:
    whole, sliced = DRAFTERS[name](), DRAFTERS[name]()
    finish(whole.open(SequenceStart(1, prompt, answer)))
    with slices_of(num_tokens):
        finish(sliced.open(SequenceStart(1, prompt, answer)))
    assert draft_of(sliced) == draft_of(whole)
    for token in answer:
        whole.observe(1, [token])
        sliced.observe(1, [token])
        assert draft_of(sliced) == draft_of(whole)
    # The next request finds the same in what was learned.
    finish(whole.close(1))
    with slices_of(num_tokens):
        finish(sliced.close(1))
    for drafter in (whole, sliced):
        finish(drafter.open(SequenceStart(2, [*prompt, *answer])))
    assert draft_of(sliced, 2) == draft_of(whole, 2)


@drafters
@given(texts, st.lists(st.lists(few_ids, min_size=1, max_size=5), max_size=20), st.data())
def test_tokens_committed_while_the_prompt_is_read_are_not_lost(
    name: str, prompt: list[int], steps: list[list[int]], data: st.DataObject
) -> None:
    # Without the cursor, which may have copied from elsewhere before the best source was read.
    history_tokens = {"suffix": 1024, "ngram-simple": 0}.get(name)
    make = (
        DRAFTERS[name]
        if history_tokens is None
        else partial(SuffixDrafter, history_tokens, use_cursor=False, name=name)
    )
    whole, sliced = make(), make()
    finish(whole.open(SequenceStart(1, prompt)))
    seen = set(prompt)
    with slices_of(3):
        slices = iter(sliced.open(SequenceStart(1, prompt)) or ())
        for tokens in steps:
            for _ in range(data.draw(st.integers(0, 4))):
                next(slices, None)
            draft = draft_of(sliced)
            assert draft == NO_DRAFT or draft.source == name
            assert len(draft.tokens) <= 8
            assert set(draft.tokens) <= seen
            assert all(type(token) is int for token in draft.tokens)
            whole.observe(1, tokens)
            sliced.observe(1, tokens)
            seen |= set(tokens)
        finish(slices)
    if name != "ngram-mod":  # it may have written more of the answer to the table
        assert draft_of(sliced).tokens == draft_of(whole).tokens
    finish(whole.close(1))
    finish(sliced.close(1))
    if isinstance(whole, SharedTable) and isinstance(sliced, SharedTable):
        lookups = {"hits": 0, "misses": 0}
        assert sliced.status() | lookups == whole.status() | lookups


@drafters
@given(st.integers(0, 30), st.booleans())
def test_a_sequence_may_be_closed_after_any_slice(name: str, num_slices: int, is_learned: bool) -> None:
    drafter = DRAFTERS[name]()
    with slices_of(10):
        slices = iter(drafter.open(SequenceStart(1, PERIODIC, PERIODIC)) or ())
        for _ in range(num_slices):
            next(slices, None)
        drafter.observe(1, [5, 6])
        closing = drafter.close(1)
        assert drafter.num_open == 0
        finish(slices)
        if is_learned:
            finish(closing)
    # Nothing of it is left that could disturb the next sequence.
    finish(drafter.open(SequenceStart(1, PERIODIC)))
    expected = (PERIODIC * 2)[:8] if name != "prediction" else []
    assert list(draft_of(drafter).tokens) == expected
    finish(drafter.close(1))
    assert drafter.num_open == 0


@drafters
def test_no_call_reads_more_than_a_slice_of_a_long_prompt(name: str) -> None:
    drafter, prompt = DRAFTERS[name](), Watched(LONG)
    slices = drafter.open(SequenceStart(1, prompt, prompt))
    # The prediction drafter reads its first slice at once.
    assert prompt.take_count() <= SLICE_TOKENS + 64
    for num_tokens in slices or ():
        assert num_tokens <= SLICE_TOKENS
        assert prompt.take_count() <= SLICE_TOKENS + 64
    for token in LONG[:50]:
        drafter.observe(1, [token])
        drafter.propose(DraftQuery(1, 31))
    closing = drafter.close(1)
    assert prompt.take_count() == 0
    assert all(num_tokens <= SLICE_TOKENS for num_tokens in closing or ())
    assert prompt.take_count() == 0


@pytest.mark.parametrize("name", sorted(SHARING))
@pytest.mark.parametrize("num_slices", [0, 1, 2, 5])
def test_a_reset_also_stops_the_learning_of_texts_that_ended(name: str, num_slices: int) -> None:
    drafter: Any = DRAFTERS[name]()
    with slices_of(16):
        slices = drafter.open(SequenceStart(1, PERIODIC))
        closing = drafter.close(1)
        for _ in range(num_slices):
            next(closing, None)
        drafter.reset()
        finish(slices)
        finish(closing)
    status = drafter.status()
    assert status["occupied" if name == "ngram-mod" else "tokens"] == 0


@pytest.mark.parametrize("num_slices", [0, 4, 9])
def test_a_reset_also_stops_the_restoring_of_earlier_texts(num_slices: int) -> None:
    history = History(4096)
    slices = history.restore([("one", array("I", range(at, at + 100))) for at in range(0, 1000, 100)])
    for _ in range(num_slices):
        next(slices)
    history.reset()
    finish(slices)
    assert (history.num_texts, history.num_tokens) == (0, 0)


def test_a_text_whose_learning_was_dropped_does_not_run_into_the_next() -> None:
    drafter = SuffixDrafter(1024)
    with slices_of(16):
        drafter.open(SequenceStart(1, range(100, 200), tenant="anna"))
        dropped = iter(drafter.close(1) or ())
        for _ in range(10):
            next(dropped)
        assert 0 < drafter.status()["tokens"] < 100
        finish(drafter.open(SequenceStart(2, range(300, 400), tenant="ben")))
        finish(drafter.close(2))
        assert list(dropped) == []
    last = 100 + drafter.status()["tokens"] - 102 - 1
    finish(drafter.open(SequenceStart(3, range(last - 12, last - 4), tenant="anna")))
    assert list(draft_of(drafter, 3).tokens) == list(range(last - 4, last + 1))


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(3, 20))
def test_a_score_computed_in_slices_equals_one_computed_at_once(prompt: list[int], num_tokens: int) -> None:
    score = repetition_score(prompt)
    with pytest.MonkeyPatch.context() as patch:
        module = sys.modules["reprise.drafters.repetition"]
        patch.setattr(module, "SLICE_TOKENS", num_tokens)
        patch.setattr(module, "RANGE_KEYS", num_tokens)
        assert repetition_score(prompt) == score


def test_a_score_reads_a_slice_at_a_time() -> None:
    prompt = Watched(LONG)
    score = score_in_slices(prompt)
    for num_tokens in score:
        assert num_tokens <= SLICE_TOKENS
        assert prompt.take_count() <= SLICE_TOKENS + 2
