from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import NO_DRAFT, Drafter, DraftQuery, SequenceStart, finish
from reprise.drafters.prediction import PredictionDrafter

EXPECTED = list(range(100, 160))


def opened(prediction: Sequence[int]) -> PredictionDrafter:
    drafter = PredictionDrafter()
    finish(drafter.open(SequenceStart(1, [1, 2, 3], prediction)))
    return drafter


def run(drafter: PredictionDrafter, answer: Sequence[int], limit: int = 8) -> list[int]:
    """Run the answer step by step, as the engine does; return the number of tokens of each step."""
    steps, at = [], 0
    while at < len(answer):
        draft = list(drafter.propose(DraftQuery(1, limit)).tokens)
        accepted = 0
        while (
            accepted < len(draft) and at + accepted < len(answer) and draft[accepted] == answer[at + accepted]
        ):
            accepted += 1
        committed = answer[at : at + accepted + 1]
        drafter.observe(1, committed)
        if draft:
            drafter.note_verified(1, len(draft), accepted)
        steps.append(len(committed))
        at += len(committed)
    return steps


def test_it_is_a_drafter() -> None:
    drafter: Drafter = PredictionDrafter()
    assert drafter.name == "prediction"


def test_before_the_first_token_it_drafts_the_start_of_the_prediction() -> None:
    assert list(opened(EXPECTED).propose(DraftQuery(1, 5)).tokens) == EXPECTED[:5]


def test_a_long_prediction_is_drafted_before_anything_is_indexed() -> None:
    drafter, long = PredictionDrafter(), list(range(5000))
    drafter.open(SequenceStart(0, (1, 2), long))
    assert list(drafter.propose(DraftQuery(0, 15)).tokens) == long[:15]
    drafter.observe(0, long[:1])
    assert list(drafter.propose(DraftQuery(0, 15)).tokens) == long[1:16]


def test_an_answer_equal_to_the_prediction_takes_few_steps() -> None:
    drafter = opened(EXPECTED)
    assert run(drafter, EXPECTED, limit=9) == [10] * 6
    assert drafter.counts(1) == (54, 0)


def test_without_a_prediction_nothing_is_drafted_or_counted() -> None:
    drafter = opened([])
    drafter.observe(1, [5])
    assert drafter.propose(DraftQuery(1, 5)) == NO_DRAFT
    assert drafter.counts(1) == (0, 0)
    finish(drafter.close(1))


def test_after_a_divergence_it_resumes_and_counts_rejected_tokens() -> None:
    drafter = opened(EXPECTED)
    answer = [*EXPECTED[:20], 7, 8, *EXPECTED[21:]]
    steps = run(drafter, answer)
    assert sum(steps) == len(answer)
    assert len(steps) < 15
    accepted, rejected = drafter.counts(1)
    assert accepted > 40
    assert rejected > 0


def test_an_answer_that_starts_differently_is_found_in_the_prediction() -> None:
    drafter = opened(EXPECTED)
    drafter.observe(1, [7, 8, 9, 10, *EXPECTED[30:35]])
    assert list(drafter.propose(DraftQuery(1, 3)).tokens) == EXPECTED[35:38]


def test_a_change_is_drafted_when_its_source_comes_again() -> None:
    prediction = [*range(20), 500, *range(30, 50), 500, *range(60, 80)]
    drafter = opened(prediction)
    drafter.observe(1, [*range(20), 600, *range(30, 49)])
    assert list(drafter.propose(DraftQuery(1, 4)).tokens) == [49, 600, 60, 61]


def test_after_the_end_of_the_prediction_nothing_is_drafted() -> None:
    drafter = opened(EXPECTED)
    drafter.observe(1, EXPECTED)
    assert drafter.propose(DraftQuery(1, 4)) == NO_DRAFT


@given(st.lists(st.integers(0, 4), max_size=40), st.lists(st.integers(0, 4), min_size=1, max_size=60))
def test_drafts_always_come_from_the_prediction_or_the_answer(a: list[int], b: list[int]) -> None:
    drafter = opened(a)
    for token in b:
        draft = drafter.propose(DraftQuery(1, 6))
        assert drafter.propose(DraftQuery(1, 6)) == draft
        assert len(draft.tokens) <= 6
        assert set(draft.tokens) <= {*a, *b}
        drafter.observe(1, [token])
    finish(drafter.close(1))
