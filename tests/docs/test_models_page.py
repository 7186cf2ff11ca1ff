"""The page of models has every model of the list, with what its classes say now."""

from pathlib import Path

from reprise.cli.doctor import PROPOSALS
from reprise.engine.checkpoint import find_cache
from scripts.models_page import GIB, MODELS, NAMES, PAGE, describe

ROWS = {
    line.split(" | ")[0].removeprefix("| "): line
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ")
}


def test_every_model_has_a_row_and_a_name_to_type():
    assert {*MODELS} == {*ROWS} - {"model"} == {*NAMES}


def test_a_row_says_what_is_calculated_now():
    row = describe("Gemma 3 1B", MODELS["Gemma 3 1B"])
    cells = ROWS["Gemma 3 1B"].split(" | ")
    assert cells[3] == f"{row['parameters']:.1f} B"
    assert cells[4] == f"{row['weights']:.1f} GiB"
    assert cells[6:9] == [f"{need:.1f} GiB" for need in row["needs"]]


def test_parameters_are_those_that_the_names_say():
    assert abs(describe("Qwen3 4B", MODELS["Qwen3 4B"])["parameters"] - 4.02) < 0.01


def test_the_page_says_that_it_was_calculated():
    assert "Calculated, not measured" in Path(PAGE).read_text()


def test_what_doctor_proposes_is_on_the_page_with_the_same_figures():
    of_name = {f"mlx-community/{hub_name}": name for name, hub_name in NAMES.items()}
    _, *proposed = PROPOSALS
    for one in proposed:
        config = MODELS[of_name[one.name]]
        assert f"| `{one.name}` | {one.context_tokens:,} |" in ROWS[of_name[one.name]]
        assert abs(one.weight_bytes / GIB / describe(of_name[one.name], config)["weights"] - 1) < 0.01
        cache, _ = find_cache(config, [])
        assert cache
        assert one.token_bytes == cache.token_bytes
