"""Pairs of runs are compared by token ids, and the first divergence is recorded."""

import pytest

from reprise.bench.experiment import first_difference, parity, total_parity


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [
        ((), (), None),
        ((1, 2), (1, 2), None),
        ((1, 2), (1, 3), 1),
        ((1, 2), (1, 2, 3), 2),
        ((1, 2, 3), (1, 2), 2),
        ((), (5,), 0),
    ],
)
def test_the_first_difference_is_where_two_answers_part(
    one: tuple[int, ...], other: tuple[int, ...], at: int | None
) -> None:
    assert first_difference(one, other) == at


def test_each_plain_run_is_compared_with_each_drafted_one() -> None:
    asked = []

    def margin(before: tuple[int, ...]) -> float:
        asked.append(before)
        return 0.25

    found = parity([(1, 2, 3)] * 3, [(1, 2, 3), (1, 9, 3), (1, 2, 3)], margin)
    assert (found["parity_pairs"], found["parity_differing"], found["parity"]) == (9, 3, "FAIL")
    assert found["first_divergence"] == {"token": 1, "margin": 0.25}
    assert asked == [(1,)]


def test_the_first_divergence_is_kept_and_one_failure_fails_all() -> None:
    passed = parity([(1,)], [(1,)], lambda _: 0.0)
    failed = parity([(1, 2)], [(1, 3)], lambda _: 1.0)
    later = parity([(7,)], [(8,)], lambda _: 2.0)
    assert total_parity([passed, failed, later]) == {
        "parity": "FAIL",
        "parity_pairs": 3,
        "parity_differing": 2,
        "first_divergence": {"token": 1, "margin": 1.0},
    }
