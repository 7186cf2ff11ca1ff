"""Pairs of runs are compared by token ids, and the first divergence is recorded."""

import pytest

from bench.experiment import Parity, first_difference


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
    parity, asked = Parity(), []

    def margin(before: tuple[int, ...]) -> float:
        asked.append(before)
        return 0.25

    parity.compare([(1, 2, 3)] * 3, [(1, 2, 3), (1, 9, 3), (1, 2, 3)], margin)
    assert (parity.num_pairs, parity.num_differing, parity.figures()["parity"]) == (9, 3, "FAIL")
    assert parity.first == {"token": 1, "margin": 0.25}
    assert asked == [(1,)]


def test_the_first_divergence_is_kept_and_one_failure_fails_all() -> None:
    passed, failed, later = Parity(), Parity(), Parity()
    passed.compare([(1,)], [(1,)], lambda _: 0.0)
    failed.compare([(1, 2)], [(1, 3)], lambda _: 1.0)
    later.compare([(7,)], [(8,)], lambda _: 2.0)
    assert Parity.total([passed, failed, later]).figures() == {
        "parity": "FAIL",
        "parity_pairs": 3,
        "parity_differing": 2,
        "first_divergence": {"token": 1, "margin": 1.0},
    }
