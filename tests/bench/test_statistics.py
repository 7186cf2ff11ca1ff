import pytest

from reprise.bench.statistics import loops


def once(values):
    return [(float(value), 1.0) for value in values]


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
