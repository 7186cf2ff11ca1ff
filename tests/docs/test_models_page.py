"""The page of models has every model of the list, with what its classes say now."""

from pathlib import Path

from scripts.models_page import MODELS, PAGE, describe

ROWS = {
    line.split(" | ")[0].removeprefix("| "): line
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ")
}


def test_every_model_has_a_row():
    assert {*MODELS} == {*ROWS} - {"model"}


def test_a_row_says_what_is_calculated_now():
    row = describe("Gemma 3 1B", MODELS["Gemma 3 1B"])
    cells = ROWS["Gemma 3 1B"].split(" | ")
    assert cells[1] == f"{row['parameters']:.1f} B"
    assert cells[2] == f"{row['weights']:.1f} GiB"
    assert cells[4:7] == [f"{need:.1f} GiB" for need in row["needs"]]


def test_parameters_are_those_that_the_names_say():
    assert abs(describe("Qwen3 4B", MODELS["Qwen3 4B"])["parameters"] - 4.02) < 0.01


def test_the_page_says_that_it_was_calculated():
    assert "Calculated, not measured" in Path(PAGE).read_text()
