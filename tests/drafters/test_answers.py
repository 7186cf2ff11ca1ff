"""What is remembered of answers judges drafts and makes guesses."""

from array import array
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart, finish
from reprise.drafters.copies.answers import NUM_STRENGTHS, NUM_SUPPORTS, SIZES, AnswerTable
from reprise.drafters.copies.occurrences import TailHashes
from reprise.drafters.suffix import GUESS_PRIORS, MAX_GUESS_TOKENS, SuffixDrafter
from reprise.engine.speculative.acceptance import SUPPORT_ODDS

Memory = dict[tuple[int, ...], tuple[int, int]]
"""n-gram -> the token that last followed it, and how many times in a row."""


def learn(table: AnswerTable, prompt: list[int], answer: list[int], salt: int = 0) -> Memory:
    """Teach an answer; return what must be remembered of it."""
    tail, text, memory = TailHashes(prompt), [*prompt], Memory()
    for token in answer:
        table.learn(tail.hashes, token, salt)
        for size in SIZES:
            if len(text) >= size:
                ngram = tuple(text[-size:])
                before, run = memory.get(ngram, (token, 0))
                memory[ngram] = token, run + 1 if before == token else 1
        tail.append(token)
        text.append(token)
    return memory


def strength_of(size: int, run: int) -> int:
    return 3 * SIZES.index(size) + (run > 1) + (run > 3)


@given(
    st.lists(st.integers(0, 3), min_size=20, max_size=200),
    st.lists(st.integers(0, 3), min_size=1, max_size=31),
)
def test_the_longest_known_ngram_decides(text: list[int], draft: list[int]) -> None:
    table = AnswerTable()
    memory = learn(table, text[:8], text[8:])
    expected = []
    for at, token in enumerate(draft):
        before = [*text, *draft[:at]]
        size = max((size for size in SIZES if tuple(before[-size:]) in memory), default=0)
        if size:
            followed, run = memory[tuple(before[-size:])]
            expected.append(1 + 2 * strength_of(size, run) + (followed == token))
        else:
            expected.append(0)
    assert table.support(array("I", text), draft, 0) == expected
    assert max(expected) < NUM_SUPPORTS
    guessed, strengths = table.guess(TailHashes(text), 4, 0)
    assert max(strengths, default=0) < NUM_STRENGTHS
    before = [*text]
    for token, strength in zip(guessed, strengths, strict=True):
        size = max(size for size in SIZES if tuple(before[-size:]) in memory)
        assert (token, strength) == (
            memory[tuple(before[-size:])][0],
            strength_of(size, memory[tuple(before[-size:])][1]),
        )
        before.append(token)


def test_another_owner_finds_nothing() -> None:
    table, text = AnswerTable(), list(range(100, 140))
    learn(table, text[:8], text[8:], salt=3 << 40)
    assert table.guess(TailHashes(text[:20]), 4, 3 << 40)[0] == text[20:24]
    assert table.guess(TailHashes(text[:20]), 4, 5 << 40) == ([], [])
    assert table.support(array("I", text[:20]), text[20:30], 5 << 40) == [0] * 10


def test_long_runs_are_counted_to_an_end() -> None:
    table = AnswerTable()
    prompt = [9] * 15 + [1]
    learn(table, prompt, [2, 1] * 300)
    assert table.guess(TailHashes([8] * 15 + [1]), 1, 0) == ([2], [2])
    learn(table, prompt, [3])
    assert table.guess(TailHashes([8] * 15 + [1]), 1, 0) == ([3], [0])


def answered(drafter: SuffixDrafter, prompt: list[int], answer: list[int], tenant: str = "") -> None:
    finish(drafter.open(SequenceStart(9, prompt, tenant=tenant)))
    drafter.observe(9, answer)
    finish(drafter.close(9))


def proposed(drafter: SuffixDrafter, prompt: list[int], tenant: str = "") -> Draft:
    finish(drafter.open(SequenceStart(1, prompt, tenant=tenant)))
    draft = drafter.propose(DraftQuery(1, 31))
    finish(drafter.close(1))
    return draft


def test_where_there_is_nothing_to_copy_an_earlier_answer_is_a_guess() -> None:
    drafter = SuffixDrafter()
    answered(drafter, [1], [50, 51, 52, 53, 54, 55, 56])
    # Three tokens are too few to copy from another request.
    draft = proposed(drafter, [7, 51, 52, 53])
    assert list(draft.tokens) == [54, 55, 56][:MAX_GUESS_TOKENS]
    assert draft.is_guess
    assert len(draft.by_token) == len(draft.tokens)
    assert not draft.support
    assert proposed(drafter, [7, 51, 52, 53], tenant="else") == NO_DRAFT


def test_a_copy_has_the_support_of_earlier_answers() -> None:
    drafter = SuffixDrafter()
    text = list(range(30, 60))
    assert set(proposed(drafter, [*text, 9, *text[:12]]).support) == {0}
    answered(drafter, [1], text[:20])
    draft = proposed(drafter, [*text, 9, *text[:12]])
    assert list(draft.tokens[:10]) == text[12:22]
    agree = 1 + 2 * strength_of(8, 1) + 1
    assert list(draft.support[:8]) == [agree] * 8
    assert list(draft.support[9:11]) == [0, 0]


def test_a_reset_forgets_answers() -> None:
    drafter = SuffixDrafter()
    answered(drafter, [1], [50, 51, 52, 53, 54])
    drafter.reset()
    assert proposed(drafter, [7, 51, 52]) == NO_DRAFT


def test_without_a_history_nothing_is_remembered() -> None:
    drafter = SuffixDrafter(0, name="ngram-simple")
    answered(drafter, [1], [50, 51, 52, 53, 54])
    assert proposed(drafter, [7, 51, 52]) == NO_DRAFT
    assert not proposed(drafter, [*range(9), *range(8)]).support


def test_few_lookups_find_what_another_owner_learned() -> None:
    """13 bits beside the slot are compared, so in a full table one of 8,192 lookups errs."""
    table, rng = AnswerTable(), Random(1)
    learn(table, [1] * 16, rng.choices(range(50_000), k=400_000), salt=3 << 40)
    texts = [rng.choices(range(50_000), k=16) for _ in range(10_000)]
    found = sum(bool(table.guess(TailHashes(text), 1, 5 << 40)[0]) for text in texts)
    assert found < 20


def test_every_strength_has_a_prior_and_every_support_has_odds() -> None:
    assert len(GUESS_PRIORS) == NUM_STRENGTHS
    assert len(SUPPORT_ODDS) == NUM_SUPPORTS
