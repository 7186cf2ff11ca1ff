"""The page of models has every model and drafter of the lists, with what their shapes say now."""

import json
from pathlib import Path

import pytest

from reprise.cli.doctor import PROPOSALS
from reprise.engine.checkpoint import find_cache
from scripts.models_page import (
    DRAFTERS,
    GIB,
    MODELS,
    NAMES,
    PAGE,
    SERVED,
    Sizes,
    describe,
    describe_drafter,
    dflash,
    eagle3,
)

OF_MODELS, OF_DRAFTERS = PAGE.read_text().split("\n## ")
ROWS = {
    line.split(" | ")[0].removeprefix("| "): line for line in OF_MODELS.splitlines() if line.startswith("| ")
}
OF_REPOSITORY = {drafter.repository: drafter for drafter in DRAFTERS}
PUBLISHED = Path(__file__).parents[1] / "engine" / "speculative" / "heads" / "published_configs.json"


def test_every_model_has_a_row_and_a_name_to_type():
    assert {*MODELS} == {*ROWS} - {"model"} == {*NAMES}


def test_a_row_says_what_is_calculated_now():
    row = describe("Gemma 3 1B", MODELS["Gemma 3 1B"])
    cells = ROWS["Gemma 3 1B"].split(" | ")
    assert cells[1] == f"{row['mac']} GB"
    assert cells[4] == f"{row['parameters']:.1f} B"
    assert cells[5] == f"{row['weights']:.1f} GiB"
    assert cells[7:9] == [f"{need:.1f} GiB" for need in row["needs"][:2]]


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


def test_every_drafter_has_the_row_that_is_calculated_now():
    _, *rows = [line for line in OF_DRAFTERS.splitlines() if line.startswith("| ")]
    assert rows == [describe_drafter(drafter) for drafter in DRAFTERS]


def test_a_drafter_is_for_a_model_of_the_page_and_says_where_it_was_read():
    assert {drafter.model for drafter in DRAFTERS} <= {*MODELS}
    assert {drafter.kind for drafter in DRAFTERS} == {*SERVED}
    assert all(drafter.source and drafter.licence for drafter in DRAFTERS)


@pytest.mark.parametrize(
    ("repository", "num_bytes"),
    [("z-lab/Qwen3.8-27B-DFlash2", 3_848_817_896), ("z-lab/Muse-Glimmer-30B-DFlash2", 5_544_328_424)],
)
def test_a_drafter_takes_as_much_as_the_file_that_is_published(repository, num_bytes):
    parameters = OF_REPOSITORY[repository].parameters
    assert parameters
    assert 0 < num_bytes - 2 * parameters < 10_000, "the header of the file"


@pytest.mark.parametrize(
    ("repository", "millions"),
    [
        ("google/gemma-4-E2B-it-assistant", 78),
        ("google/gemma-4-E4B-it-assistant", 78.8),
        ("google/gemma-4-12B-it-assistant", 423),
        ("google/gemma-4-26B-A4B-it-assistant", 420),
        ("google/gemma-4-31B-it-assistant", 470),
        ("mlx-community/Qwen3.6-35B-A3B-MTP-bf16", 845),
        ("z-lab/Qwen3-Coder-30B-A3B-DFlash", 474),
        ("z-lab/Qwen3.6-35B-A3B-DFlash", 386),
        ("z-lab/gpt-oss-120b-DFlash", 785),
        ("deepseek-ai/dspark_qwen3_4b_block7", 1395),
        ("deepseek-ai/dspark_qwen3_8b_block7", 2370),
    ],
)
def test_a_drafter_has_the_parameters_that_its_publisher_states(repository, millions):
    parameters = OF_REPOSITORY[repository].parameters
    assert parameters
    assert abs(parameters / 1e6 / millions - 1) < 0.01


def test_a_drafter_has_the_shape_of_its_configuration():
    configs = json.loads(PUBLISHED.read_text())
    for repository, drafter in OF_REPOSITORY.items():
        config = configs.get(repository, {}).get("config", {})
        if drafter.kind == "DFlash" and "num_attention_heads" in config:
            taps = len(config["dflash_config"]["target_layer_ids"])
            assert drafter.parameters == dflash(sizes_in(config), taps), repository
        if drafter.kind == "EAGLE-3" and config:
            inner = config.get("transformer_layer_config", config)
            embedded = inner["vocab_size"] if repository.startswith("RedHatAI/") else 0
            calculated = eagle3(sizes_in(inner), config["draft_vocab_size"], embedded=embedded)
            assert drafter.parameters == calculated, repository


def sizes_in(config):
    """Return the sizes that a configuration states."""
    return Sizes(
        config["num_hidden_layers"],
        config["hidden_size"],
        config["intermediate_size"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
    )
