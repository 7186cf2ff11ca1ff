import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.bench.serving.client import divide_tokens
from reprise.bench.statistics import compare, loops, percentile, ratio


def once(values):
    return [(float(value), 1.0) for value in values]


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        (range(1, 101), 0.50, 50),
        (range(1, 101), 0.95, 95),
        (range(1, 101), 0.99, 99),
        (range(1, 101), 1.00, 100),
        ([7], 0.5, 7),
        ([7], 0.99, 7),
        ([15, 20, 35, 40, 50], 0.50, 35),
        ([15, 20, 35, 40, 50], 0.95, 50),
        ([3, 1, 2], 0.5, 2),
    ],
)
def test_a_percentile_is_the_nearest_rank(values, share, expected):
    assert percentile(once(values), share) == expected


def test_a_weight_counts_like_so_many_equal_values():
    assert percentile([(1.0, 3.0), (2.0, 1.0)], 0.75) == 1.0
    assert percentile([(1.0, 3.0), (2.0, 1.0)], 0.76) == 2.0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1), st.integers(1, 100))
def test_weighted_percentiles_equal_those_of_repeated_values(pairs, hundredths):
    repeated = sorted(value for value, weight in pairs for _ in range(weight))
    rank = -(-hundredths * len(repeated) // 100)  # the ceiling, in whole numbers
    assert percentile([(float(v), float(w)) for v, w in pairs], hundredths / 100) == repeated[rank - 1]


def test_a_ratio_has_the_medians_and_the_extremes_of_the_rounds():
    assert compare([10, 20, 30], [10, 10, 60]) == {"of_medians": 2.0, "lowest": 0.5, "highest": 2.0}


def test_a_round_that_one_side_did_not_finish_counts_for_neither():
    assert compare([10, 20, None], [5, 0.0, 1]) == {"of_medians": 2.0, "lowest": 2.0, "highest": 2.0}
    assert compare([None], [1.0]) is None


def test_nothing_in_no_time_has_no_rate():
    assert ratio(10, 4) == 2.5
    assert ratio(10, 0) is None
    assert ratio(None, 10) is None


def test_as_many_chunks_as_tokens_are_one_token_each():
    assert divide_tokens(3, ["a", "b c d", "e"]) == [1, 1, 1]


def test_tokens_go_to_chunks_by_what_their_texts_hold_and_add_up():
    assert divide_tokens(8, ["abc", "d"]) == [6, 2]
    assert divide_tokens(5, []) == []


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], False),
        (list(range(40)), False),
        ([1, 2, 3] * 12, True),
        ([*range(60), *range(100, 106), *range(100, 106)], False),
        ([*range(12), *(50 + at % 6 for at in range(30))], True),
    ],
)
def test_an_answer_loops_if_much_of_it_stands_in_it_before(tokens, expected):
    assert loops(tokens) is expected
