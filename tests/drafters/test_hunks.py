"""Patches: what an answer keeps, removes and adds is drafted from the same lines with each sign."""

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import SLICE_TOKENS, DraftQuery, SequenceStart, SignedLines, finish
from reprise.drafters.copies.forms import Hunks
from reprise.drafters.suffix import LINE, NUM_CLASSES, SuffixDrafter
from tests.drafters.test_contract import checked_step

KEEP, REMOVE, ADD, HUNK = 1, 2, 3, 4
NUM_LINES, LINE_TOKENS = 12, 6


def line(number: int, sign: int) -> list[int]:
    """Return the tokens of a text's line with a sign."""
    return [sign, *range(100 * number + 10, 100 * number + 10 + LINE_TOKENS)]


def lines(numbers: Sequence[int], sign: int) -> list[int]:
    return [token for number in numbers for token in line(number, sign)]


def text_of(numbers: Sequence[int]) -> SignedLines:
    ends = array("I", range(LINE_TOKENS + 1, (LINE_TOKENS + 1) * len(numbers) + 1, LINE_TOKENS + 1))
    kept, removed, added = (lines(numbers, sign) for sign in (KEEP, REMOVE, ADD))
    return SignedLines(kept, removed, added, (ends, ends, ends))


TEXT = text_of(range(NUM_LINES))


def drafted(answer: Sequence[int], limit: int = 31) -> list[int]:
    drafter = SuffixDrafter(0)
    finish(drafter.open(SequenceStart(1, [9])))
    finish(drafter.add_view(1, TEXT))
    for token in answer:
        drafter.observe(1, [token])
    draft = drafter.propose(DraftQuery(1, limit))
    assert len(draft.by_token) in (0, len(draft.tokens))
    return list(draft.tokens)


def test_behind_three_kept_lines_one_is_removed_and_added() -> None:
    answer = [HUNK, *lines(range(2, 5), KEEP)]
    assert drafted(answer[:-2])[2:16] == [*line(5, REMOVE), *line(5, ADD)]
    assert drafted(answer)[:14] == [*line(5, REMOVE), *line(5, ADD)]


def test_behind_a_change_the_lines_behind_the_removed_ones_are_kept() -> None:
    answer = [HUNK, *lines(range(2, 5), KEEP), *lines((5, 6), REMOVE), *lines((5, 6), ADD)]
    assert drafted(answer[:-1]) == [answer[-1], *lines(range(7, 11), KEEP), *line(11, KEEP)[:2]]
    assert drafted(answer, 7) == line(7, KEEP)


def test_a_second_removed_line_is_expected_to_be_followed_by_another() -> None:
    answer = [HUNK, *lines(range(2, 5), KEEP), *lines((5, 6), REMOVE)]
    assert drafted(answer, 14) == lines((7, 8), REMOVE)


def test_an_added_line_begins_like_the_first_that_was_removed() -> None:
    answer = [HUNK, *lines(range(2, 5), KEEP), *lines((5, 6), REMOVE), ADD]
    assert drafted(answer, 13) == lines((5, 6), ADD)[1:]


def test_the_line_behind_a_change_is_found_again_by_its_first_two_tokens() -> None:
    new = [ADD, 7001, 7002, 7003]
    answer = [HUNK, *lines(range(2, 5), KEEP), *line(5, REMOVE), *new, *new]
    assert drafted([*answer, *line(6, KEEP)[:2]], 5) == line(6, KEEP)[2:]


def test_what_one_hunk_replaces_is_expected_to_be_replaced_in_the_next() -> None:
    """A value in line 2 is replaced in two lines, then in a third."""
    answer: list[int] = []
    for number in (4, 8):
        replaced = line(number, ADD)
        replaced[-2:-1] = [7000]
        answer += [HUNK, *lines(range(number - 3, number), KEEP), *line(number, REMOVE), *replaced]
        answer += lines(range(number + 1, number + 4), KEEP)
    assert drafted(answer[: -3 * (LINE_TOKENS + 1)], 7) == line(9, KEEP)


def test_what_may_be_of_no_patch_is_not_drafted_as_one() -> None:
    """Without its sign a line may be one of the file itself."""
    assert drafted([HUNK, *line(4, KEEP)[1:4]], 3) == []
    assert drafted([HUNK, *line(4, KEEP)[:4]], 3) == line(4, KEEP)[4:]


def test_first_tokens_of_lines_have_rates_of_their_own() -> None:
    drafter = SuffixDrafter(0)
    finish(drafter.open(SequenceStart(1, [9])))
    finish(drafter.add_view(1, TEXT))
    drafter.observe(1, [HUNK, *lines(range(2, 5), KEEP)])
    draft = drafter.propose(DraftQuery(1, 21))
    kinds = [bucket // NUM_CLASSES == LINE for bucket, _ in draft.by_token]
    assert kinds == [at % (LINE_TOKENS + 1) == 0 for at in range(21)]


def test_lines_are_added_in_slices_as_many_as_there_is_room_for() -> None:
    hunks = Hunks(1)
    slices = list(hunks.add(text_of(range(400))))
    assert max(slices) <= SLICE_TOKENS
    assert hunks.shelf.capacity / 2 < len(hunks.shelf.tokens) < hunks.shelf.capacity
    assert list(hunks.add(text_of(range(400)))) == []


signs = st.sampled_from((KEEP, REMOVE, ADD))


@pytest.mark.parametrize("is_late", [False, True])
@given(
    written=st.lists(st.tuples(signs, st.integers(0, NUM_LINES - 1), st.integers(0, 7)), max_size=12),
    steps=st.lists(st.tuples(st.integers(1, 31), st.floats(0, 1)), min_size=1, max_size=30),
)
def test_drafts_through_any_patch_keep_to_the_contract(
    is_late: bool, written: list[tuple[int, int, int]], steps: list[tuple[int, float]]
) -> None:
    """Lines with any signs in any order, some of them cut short; the text is read before or meanwhile."""
    answer = [token for sign, number, cut in written for token in line(number, sign)[: 7 - cut % 7]]
    drafter = SuffixDrafter(0)
    finish(drafter.open(SequenceStart(1, [9])))
    reading = iter(drafter.add_view(1, TEXT) or ())
    seen = {9, *TEXT.kept, *TEXT.removed, *TEXT.added}
    if not is_late:
        finish(reading)
    for (limit, share), at in zip(steps, range(0, len(answer), 3), strict=False):
        next(reading, None)
        checked_step(drafter, 1, limit, answer[at : at + 3], share, seen)
    drafter.close(1)
    assert drafter.num_open == 0
