"""Answers that copy a source with changes: which of their tokens are not drafted correctly."""

import random
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.copies.copying import MAX_CHANGE_TOKENS, MAX_CHANGES, Changes, CopyCursor

NAME, NEW = 900, 950


def wrong_at(source: Sequence[int], answer: Sequence[int], learn_changes: bool = True) -> list[int]:
    """Return the positions in the answer whose token the cursor does not draft."""
    cursor = CopyCursor(array("I", source), learn_changes)
    cursor.position = 0
    wrong = []
    for at, token in enumerate(answer):
        if cursor.draft(1) != [token]:
            wrong.append(at)
        cursor.advance(token)
    return wrong


def with_names(name: Sequence[int], occurrences: int = 6, gap: int = 20) -> tuple[list[int], list[int]]:
    """Return a text that contains a name several times, and the positions where the name starts."""
    text, places = [], []
    for number in range(occurrences):
        text += range(number * gap, (number + 1) * gap)
        places.append(len(text))
        text += name
    return [*text, *range(500, 520)], places


@pytest.mark.parametrize("old_size", [1, 2, 3])
@pytest.mark.parametrize("new_size", [1, 2, 3, 6])
def test_a_rename_is_drafted_from_its_second_occurrence_on(old_size: int, new_size: int) -> None:
    source, _ = with_names(range(NAME, NAME + old_size))
    answer, places = with_names(range(NEW, NEW + new_size))
    # The first occurrence cannot be known, and resuming after it takes a token or two.
    assert all(at < places[0] + new_size + 2 for at in wrong_at(source, answer))
    cursor = CopyCursor(array("I", source))
    cursor.position = 0
    for token in answer[: places[1] - 3]:
        cursor.advance(token)
    whole = answer[places[1] - 3 : places[1] + 60]
    assert cursor.draft(len(whole)) == whole


@pytest.mark.parametrize(
    ("old", "new"), [((900,), (900, 901)), ((900, 901), (900,)), ((900, 901), (900, 950))]
)
def test_a_name_that_only_grows_or_shrinks_is_drafted_from_its_third_occurrence_on(
    old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    source, _ = with_names(old)
    answer, places = with_names(new)
    assert all(at < places[2] for at in wrong_at(source, answer))


def test_without_learning_every_occurrence_is_missed() -> None:
    source, _ = with_names([NAME])
    answer, places = with_names([NEW])
    assert set(places) <= set(wrong_at(source, answer, learn_changes=False))


@given(st.integers(1, 60), st.integers(5, 90))
def test_after_an_insertion_copying_resumes_within_three_tokens(size: int, place: int) -> None:
    source = list(range(100))
    answer = [*source[:place], *range(1000, 1000 + size), *source[place:]]
    assert all(place <= at < place + size + 3 for at in wrong_at(source, answer))


@given(st.integers(1, 200), st.integers(5, 90))
def test_after_a_deletion_copying_resumes_within_three_tokens(size: int, place: int) -> None:
    source = list(range(400))
    answer = [*source[:place], *source[place + size :]]
    assert all(place <= at < place + 3 for at in wrong_at(source, answer))


@given(st.integers(1, 20), st.integers(1, 20), st.integers(5, 90))
def test_after_a_replacement_copying_resumes_within_three_tokens(out: int, new: int, place: int) -> None:
    source = list(range(200))
    answer = [*source[:place], *range(1000, 1000 + new), *source[place + out :]]
    assert all(place <= at < place + new + 3 for at in wrong_at(source, answer))


def test_a_one_off_change_costs_one_wrong_draft() -> None:
    source, _ = with_names([NAME])
    answer, places = with_names([NAME])
    answer[places[0]] = NEW
    wrong = wrong_at(source, answer)
    assert set(places) & set(wrong) == {places[0], places[1]}


def test_the_newest_replacement_wins() -> None:
    source, _ = with_names([NAME])
    answer, places = with_names([NEW])
    for place in places[3:]:
        answer[place] = NEW + 1
    wrong = wrong_at(source, answer)
    assert places[3] in wrong
    assert places[4] not in wrong


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.lists(st.integers(0, 5), max_size=120))
def test_a_cursor_stays_within_its_source_for_any_answer(source: list[int], answer: list[int]) -> None:
    cursor = CopyCursor(array("I", source))
    cursor.position = 0
    for token in answer:
        cursor.advance(token)
        assert cursor.position is None or 0 <= cursor.position <= len(source)
        draft = cursor.draft(7)
        assert len(draft) <= 7
        assert cursor.draft(3) == draft[:3]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=100))
def test_an_exact_copy_is_always_drafted_correctly(source: list[int]) -> None:
    assert wrong_at(source, source) == []


def test_changes_are_bounded_in_number_and_size() -> None:
    source = array("I", range(4 * MAX_CHANGES))
    changes = Changes()
    for at in range(2 * MAX_CHANGES):
        changes.learn(source, at, at + 1, [9000, 9001])
    assert len(changes) == MAX_CHANGES
    assert changes.expected_at(source, 0) is None
    assert changes.expected_at(source, 2 * MAX_CHANGES - 1) is not None
    changes.learn(source, 600, 600 + MAX_CHANGE_TOKENS + 1, [1])
    assert changes.expected_at(source, 600) is None


@pytest.mark.parametrize("seed", range(64))
def test_changes_that_change_while_they_are_made_raise_nothing(seed: int) -> None:
    """Seed 13 replaced a change that the cursor was in the middle of by a shorter one."""
    rng = random.Random(seed)

    def some_tokens(most: int) -> list[int]:
        return [rng.randrange(5) for _ in range(rng.randint(1, most))]

    names = [some_tokens(4) for _ in range(3)]
    replacements = [[some_tokens(5) for _ in range(3)] for _ in names]
    source: list[int] = []
    answer: list[int] = []
    first = 10
    for _ in range(rng.randrange(8, 30)):
        between = range(first, first + rng.choice((1, 2, 13, 14, 16)))
        first += 20 if rng.random() < 0.7 else 0
        source += between
        answer += between
        for _ in range(rng.choice((1, 1, 2))):
            chosen = rng.randrange(3)
            source += names[chosen]
            answer += rng.choice(replacements[chosen]) if rng.random() < 0.8 else names[chosen]
    cursor = CopyCursor(array("I", source))
    cursor.jump(cursor.source, 0, None, 0)
    for token in answer:
        cursor.advance(token)
        assert len(cursor.draft(8)) <= 8
