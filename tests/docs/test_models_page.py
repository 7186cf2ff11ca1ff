"""The page of models has every model of the list, with what its classes say now."""

from pathlib import Path

from reprise.cli.checks.proposals import PROPOSALS
from scripts.models_page import GIB, MODELS, PAGE, describe

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


def test_what_doctor_proposes_takes_what_the_page_says():
    sizes = {
        one.name.removeprefix("mlx-community/").removesuffix("-4bit"): one.weight_bytes for one in PROPOSALS
    }
    for name in ("0.6B", "1.7B", "4B", "8B", "14B"):
        calculated = describe(f"Qwen3 {name}", MODELS[f"Qwen3 {name}"])["weights"]
        assert abs(sizes[f"Qwen3-{name}"] / GIB / calculated - 1) < 0.01
