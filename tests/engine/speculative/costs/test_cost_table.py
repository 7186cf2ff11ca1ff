"""Measurements are kept apart from guesses, and guesses have the shape of real costs."""

from itertools import pairwise

import pytest

from reprise.engine.speculative.costs.cost_table import CostTable, StepPrice

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def table(**seconds: float) -> CostTable:
    """Return a table of one to eight rows. seconds: by "r<rows>w<width>"."""
    measured = {tuple(int(part) for part in name[1:].split("w")): each for name, each in seconds.items()}
    return CostTable(measured, (1, 2, 4, 8), WIDTHS)  # type: ignore[arg-type]


def test_with_a_plain_step_alone_eight_tokens_are_believed_to_take_another() -> None:
    costs = table(r1w1=1.0)
    assert costs.seconds(1, 9) == pytest.approx(2.0)
    assert costs.seconds(4, 4) == pytest.approx(1 + 15 / 8)


def test_gaps_lie_on_lines_and_what_is_wider_grows_ever_more_slowly() -> None:
    costs = table(r1w1=1.0, r1w4=1.6, r1w8=2.8)
    assert costs.seconds(1, 6) == pytest.approx(2.2)
    steps = [costs.seconds(1, width) for width in (8, 16, 24, 32)]
    growth = [after - before for before, after in pairwise(steps)]
    assert growth == sorted(growth, reverse=True)
    assert 2.8 < steps[1] < 2 * 2.8


def test_more_rows_are_guessed_by_their_tokens() -> None:
    costs = table(r1w1=1.0, r1w8=2.4, r1w32=7.0, r2w1=1.3)
    assert costs.seconds(2, 1) == 1.3
    # Beside a plain step as much as two rows with the same tokens.
    assert costs.seconds(2, 4) == pytest.approx(1.3 * 2.4 / costs.seconds(1, 2))
    assert costs.seconds(8, 4) == pytest.approx(
        costs.seconds(8, 1) * costs.seconds(2, 16) / costs.seconds(2, 4)
    )


def test_guesses_are_ratios_and_measurements_replace_them() -> None:
    costs = CostTable({(1, 1): 0.5}, (1, 2, 4), WIDTHS, {(1, 8): 3.0, (1, 16): 4.0, (2, 8): 5.0})
    assert [costs.seconds(1, width) for width in (1, 8, 12, 16)] == [0.5, 1.5, 1.75, 2.0]
    assert costs.seconds(2, 8) == pytest.approx(5.0 * costs.seconds(2, 1))
    costs.put((1, 8), 0.6)
    costs.put((1, 1), 1.0)
    assert [costs.seconds(1, width) for width in (1, 8, 16)] == [1.0, 0.6, 4.0]
    costs.keep_only({(1, 8)})
    assert (costs.seconds(1, 8), costs.guesses) == (0.6, {})
    assert costs.seconds(1, 16) < 4.0


@pytest.mark.parametrize("seconds", [{}, {(1, 2): 1.0}, {(1, 1): 0.0}, {(1, 1): float("inf")}])
def test_without_a_plain_step_there_is_no_table(seconds: dict[tuple[int, int], float]) -> None:
    with pytest.raises(ValueError, match="positive seconds"):
        CostTable(seconds)


def test_a_price_says_how_it_is_known() -> None:
    told = [StepPrice(1, 8, 7.6, is_seen).describe() for is_seen in (True, False)]
    said = "a step of 8 tokens costs 7.6 plain ones here"
    assert told == [f"{said} (seen in real steps)", f"{said} (a guess)"]


def test_a_price_names_the_rows() -> None:
    said = StepPrice(4, 2, 1.25).describe()
    assert said == "a step of 2 tokens for each of 4 rows costs 1.2 plain ones here (a guess)"
