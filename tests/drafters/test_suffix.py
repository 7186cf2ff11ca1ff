from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import (
    NO_DRAFT,
    Drafter,
    DraftQuery,
    SequenceStart,
    SharedTable,
    TableFileError,
    finish,
)
from reprise.drafters.copies.copying import GrowingText
from reprise.drafters.copies.history import History
from reprise.drafters.suffix import DISPUTED, FINISHED, MATCH, NUM_CLASSES, SuffixDrafter

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def opened(
    prompt: list[int], drafter: SuffixDrafter | None = None, seq: int = 1, tenant: str = ""
) -> SuffixDrafter:
    drafter = drafter or SuffixDrafter()
    finish(drafter.open(SequenceStart(seq, prompt, tenant=tenant)))
    return drafter


def keep(drafter: SuffixDrafter, tokens: list[int], tenant: str = "") -> None:
    finish(drafter.open(SequenceStart(99, tokens, tenant=tenant)))
    finish(drafter.close(99))


def test_it_is_a_drafter_and_a_shared_table() -> None:
    drafter: Drafter = SuffixDrafter()
    assert isinstance(drafter, SharedTable)


def test_it_drafts_what_followed_the_longest_match() -> None:
    drafter = opened([1, 2, 3, 4, 5, 6, 9, 3, 4, 8, 1, 2, 3, 4])
    draft = drafter.propose(DraftQuery(1, 3))
    assert list(draft.tokens) == [5, 6, 9]
    assert draft.source == "suffix"
    assert draft.bucket // NUM_CLASSES <= MATCH


def test_a_disputed_continuation_has_a_bucket_and_a_lower_prior_of_its_own() -> None:
    sure = opened([1, 2, 7, 4, 1, 2]).propose(DraftQuery(1, 4))
    disputed = opened([1, 2, 7, 4, 1, 2, 8, 1, 2]).propose(DraftQuery(1, 4))
    assert sure.bucket // NUM_CLASSES == MATCH
    assert disputed.bucket // NUM_CLASSES == DISPUTED
    assert disputed.prior < sure.prior


def test_without_an_earlier_occurrence_nothing_is_drafted() -> None:
    assert opened([1, 2, 3, 4]).propose(DraftQuery(1, 4)) == NO_DRAFT


def test_a_periodic_text_is_drafted_beyond_its_end() -> None:
    assert list(opened([1, 2, 3] * 4).propose(DraftQuery(1, 8)).tokens) == [1, 2, 3, 1, 2, 3, 1, 2]


@given(TOKENS, TOKENS, st.integers(1, 12))
def test_a_draft_keeps_to_its_limit_and_is_repeatable(
    prompt: list[int], answer: list[int], limit: int
) -> None:
    drafter = opened(prompt)
    for token in answer:
        draft = drafter.propose(DraftQuery(1, limit))
        assert len(draft.tokens) <= limit
        assert drafter.propose(DraftQuery(1, limit)) == draft
        assert set(draft.tokens) <= {*prompt, *answer}
        drafter.observe(1, [token])


@given(TOKENS, TOKENS)
def test_observing_tokens_one_by_one_or_together_gives_the_same_draft(a: list[int], b: list[int]) -> None:
    # Without the cursor, which jumps at most once per call.
    one, other = (opened(a, SuffixDrafter(0, use_cursor=False)) for _ in range(2))
    for token in b:
        one.observe(1, [token])
    other.observe(1, b)
    assert one.propose(DraftQuery(1, 8)) == other.propose(DraftQuery(1, 8))


def test_a_renamed_function_is_drafted_with_its_new_name() -> None:
    body = [list(range(start, start + 15)) for start in (10, 30, 50, 70)]
    source = [token for part in body for token in (*part, 900, 901)]
    answer = [token for part in body for token in (*part, 950)]
    drafter = opened([1, 2, *source, 3, 4])
    for token in answer[:20]:
        drafter.observe(1, [token])
    assert list(drafter.propose(DraftQuery(1, 31)).tokens) == answer[20:51]


def test_a_finished_request_of_the_same_tenant_is_drafted_from() -> None:
    drafter = SuffixDrafter()
    keep(drafter, list(range(10, 40)), tenant="a")
    opened([1, 12, 13, 14, 15], drafter, tenant="a")
    draft = drafter.propose(DraftQuery(1, 4))
    assert list(draft.tokens) == [16, 17, 18, 19]
    assert draft.bucket // NUM_CLASSES == FINISHED
    drafter.observe(1, [16, 17])
    assert list(drafter.propose(DraftQuery(1, 2)).tokens) == [18, 19]


def test_a_finished_request_of_another_tenant_is_never_drafted_from() -> None:
    drafter = SuffixDrafter()
    keep(drafter, list(range(10, 40)), tenant="a")
    opened([1, 12, 13, 14, 15], drafter, tenant="b")
    assert drafter.propose(DraftQuery(1, 4)) == NO_DRAFT


def test_a_reset_also_ends_a_match_that_is_being_followed() -> None:
    drafter = SuffixDrafter()
    keep(drafter, list(range(10, 40)))
    opened([1, 12, 13, 14, 15], drafter)
    drafter.reset()
    assert drafter.propose(DraftQuery(1, 4)) == NO_DRAFT
    drafter.observe(1, [16])
    assert drafter.propose(DraftQuery(1, 4)) == NO_DRAFT
    assert drafter.status()["tokens"] == 0


def test_a_drafter_without_history_remembers_nothing() -> None:
    drafter = SuffixDrafter(0)
    keep(drafter, list(range(10, 40)))
    opened([1, 12, 13, 14, 15], drafter)
    assert drafter.propose(DraftQuery(1, 4)) == NO_DRAFT


def test_the_history_cannot_be_saved_or_loaded() -> None:
    with pytest.raises(TableFileError, match="in memory only"):
        SuffixDrafter().save()
    with pytest.raises(TableFileError, match="in memory only"):
        SuffixDrafter().load()


def test_the_least_recently_finished_text_is_dropped_first() -> None:
    history = History(64)
    for start in (0, 100, 200, 300):
        add(history, "", range(start, start + 20))
    assert history.num_tokens <= 64
    assert history.num_texts == 4
    for start, known in ((0, False), (200, True), (300, True)):
        drafted = GrowingEnd(range(start, start + 6)).find_in(history)
        assert (drafted == [start + 6, start + 7]) is known


def test_a_start_that_two_texts_share_is_stored_once() -> None:
    history = History(4096)
    add(history, "", range(1000))
    add(history, "", range(1100))
    assert history.num_tokens < 1250
    assert GrowingEnd(range(990, 1010)).find_in(history) == [1010, 1011]
    add(history, "other", range(1000))
    assert history.num_tokens > 2000


@given(st.lists(st.tuples(st.sampled_from("ab"), TOKENS), max_size=12), TOKENS)
def test_a_tenant_finds_only_runs_of_its_own_texts(
    texts: list[tuple[str, list[int]]], end: list[int]
) -> None:
    history = History(128)
    for tenant, tokens in texts:
        add(history, tenant, tokens)
        assert history.num_tokens <= 128
    found = GrowingEnd(end).find_in(history, tenant="a")
    runs = [
        tokens[at : at + len(found)] for tenant, tokens in texts if tenant == "a" for at in range(len(tokens))
    ]
    assert not found or found in runs


def add(history: History, tenant: str, tokens: Sequence[int]) -> None:
    finish(history.add(tenant, GrowingText(tokens)))


class GrowingEnd:
    """A text whose end is looked up in a history, as the drafter does."""

    def __init__(self, tokens: range | list[int]) -> None:
        self.text = GrowingText(tokens)
        finish(self.text.index_tokens())

    def find_in(self, history: History, tenant: str = "") -> list[int]:
        match = history.find(tenant, self.text.tail.hashes, self.text.end)
        return history.copy(match.position, 2) if match else []
