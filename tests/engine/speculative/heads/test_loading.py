"""Models load with heads in their folders or without, and what is no fitting head is refused by name."""

import json
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.interface.errors import ModelError
from reprise.engine.model.architectures import name_in_head
from reprise.engine.model.loading import load_model
from reprise.engine.speculative.heads.formats import find_own_heads, identify, text_config
from reprise.engine.speculative.heads.head import TargetEnds
from reprise.engine.speculative.heads.loading import Target, check_fit, choose, load_head
from tests.engine.speculative.heads import folders, published
from tests.engine.speculative.heads.test_arithmetic import dflash_config
from tests.tiny_models import architectures, make_model, tiny_config

ENDS = TargetEnds(lambda ids: ids, lambda states: states)
FAMILIES = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "deepseek_v3", "glm4_moe")


def target(config: dict[str, Any], num_layers: int = 2) -> Target:
    return Target("the model", config, num_layers, 512, ENDS)


def config_of(family: str) -> dict[str, Any]:
    return tiny_config("qwen3_5")["text_config"] | tiny_config(family).get("text_config", tiny_config(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_loads_as_if_no_head_were_in_its_folder(family: str, tmp_path: Path) -> None:
    config = tiny_config(family)
    model = make_model(config)
    folders.write_head(tmp_path, "shards", family, config, published.tiny_mtp(family, config_of(family)))
    arrays = dict(tree_flatten(model.parameters()))
    # As mlx-lm writes models, though nothing it writes has a head.
    mx.save_safetensors(str(tmp_path / "model.safetensors"), arrays, metadata={"format": "mlx"})
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED_MODEL / name, tmp_path)
    loaded = load_model(str(tmp_path), "a model", None)
    ids = mx.array([[4, 8, 15, 16, 23, 42]])
    assert mx.array_equal(loaded.model(ids), model(ids))
    assert [head.family for head in find_own_heads(tmp_path, config)] == [family]


def test_no_array_of_any_architecture_is_taken_for_one_of_a_head() -> None:
    tried = 0
    for name in architectures():
        # It needs a package of its own.
        if name == "olmo":
            continue
        config = tiny_config(name)
        module = import_module(f"mlx_lm.models.{name}")
        model = module.Model(module.ModelArgs.from_dict(config))
        num_layers = text_config(config).get("num_hidden_layers") or 0
        arrays = [array for array, _ in tree_flatten(model.parameters())]
        assert [array for array in arrays if name_in_head(array, num_layers) is not None] == []
        tried += 1
    assert tried > 100


def test_a_sidecar_is_read_in_the_bits_in_which_it_was_written(tmp_path: Path) -> None:
    config = config_of("qwen3_5_moe")
    arrays = published.tiny_mtp("qwen3_5_moe", config)
    own = folders.write_head(tmp_path, "own folder", "qwen3_5_moe", config, arrays)
    file = str(own / "model.safetensors")
    weights: Any = mx.load(file)
    for name in [
        name for name, array in weights.items() if array.ndim > 1 and not name.endswith("gate.weight")
    ]:
        packed = mx.quantize(weights.pop(name), group_size=32, bits=8)
        parts = zip(("weight", "scales", "biases"), packed, strict=True)
        weights |= {name.removesuffix("weight") + part: array for part, array in parts}
    mx.save_safetensors(file, weights)
    found = identify(own)
    assert found is not None
    head: Any = load_head(found, target(config), 3)
    experts = head.layers[0].mlp.switch_mlp.up_proj
    assert (head.fc.bits, head.fc.group_size, experts.bits, experts.group_size) == (8, 32, 8, 32)
    assert head.layers[0].mlp.gate.weight.dtype == mx.float32


def test_norms_without_metadata_lack_one_if_the_convolutions_are_as_published(tmp_path: Path) -> None:
    config = config_of("qwen3_5")
    arrays = {f"mtp.{name}": array for name, array in published.tiny_mtp("qwen3_5", config).items()}
    for shape, lacks_one in [((8, 1, 4), True), ((8, 4, 1), False)]:
        convolution = published.random_arrays({"model.layers.0.linear_attn.conv1d.weight": shape})
        folders.save(tmp_path / "model.safetensors", arrays | convolution, None)
        (found,) = find_own_heads(tmp_path, config | {"model_type": "qwen3_5"})
        assert found.adds_one == lacks_one


@pytest.mark.parametrize("writer", ["pt", "mlx"])
def test_what_a_file_says_of_its_norms_takes_precedence(tmp_path: Path, writer: str) -> None:
    config = config_of("qwen3_5") | {"model_type": "qwen3_5"}
    arrays = {f"mtp.{name}": array for name, array in published.tiny_mtp("qwen3_5", config).items()}
    folders.save(tmp_path / "model-mtp.safetensors", arrays, writer)
    (found,) = find_own_heads(tmp_path, config)
    assert found.adds_one == (writer == "pt")
    (found,) = find_own_heads(tmp_path, config | {"mtp_norm_encoding": "delta"})
    assert found.adds_one


def write_dflash(folder: Path, **changes: Any) -> Path:
    config = dflash_config(**changes)
    folders.write_json(folder / "config.json", config)
    folders.save(folder / "model.safetensors", published.tiny_dflash(dflash_config()), None)
    return folder


MISFITS = [
    ({"hidden_size": 128}, "its hidden_size is 128, that of the model 64"),
    ({"vocab_size": 1000}, "its vocab_size is 1000, that of the model 512"),
    ({"num_target_layers": 3}, "its num_target_layers is 3, that of the model 2"),
    (
        {"dflash_config": {"mask_token_id": 512, "target_layer_ids": [0, 1]}},
        "its mask_token_id 512 is",
    ),
    (
        {"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 2]}},
        r"it reads layers \[2\] of the model's 2",
    ),
    ({"block_size": 1}, "its block_size is 1, which leaves nothing"),
]


@pytest.mark.parametrize(("changes", "why"), MISFITS)
def test_a_drafter_of_another_model_is_refused(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    found = identify(write_dflash(tmp_path, **changes))
    assert found is not None
    with pytest.raises(
        ModelError, match=f"DFlash drafter in {tmp_path} does not fit the model: {why}.*Use one"
    ):
        check_fit(found, target(config_of("llama")))


@pytest.mark.parametrize(
    "changes",
    [
        {"dflash_config": None},
        {"dflash_config": {"mask_token_id": 5, "target_layer_ids": ["first"]}},
        {"hidden_size": "wide"},
        {"layer_types": ["linear_attention"] * 2},
        {"layer_types": ["sliding_attention"] * 2},
        {"rope_theta": None},
    ],
)
def test_a_drafter_whose_configuration_cannot_be_read_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    found = identify(write_dflash(tmp_path, **changes))
    assert found is not None
    with pytest.raises(ModelError, match=f"{tmp_path}"):
        check_fit(found, target(config_of("llama")))


def test_an_mtp_head_of_another_model_is_refused(tmp_path: Path) -> None:
    config = config_of("qwen3_5")
    arrays = published.tiny_mtp("qwen3_5", config)
    found = identify(folders.write_head(tmp_path, "own folder", "qwen3_5", config, arrays))
    assert found is not None
    for changes, why in [
        ({"hidden_size": 32}, "hidden_size is 64, that of the model 32"),
        ({}, "num_hidden_layers"),
    ]:
        with pytest.raises(ModelError, match=why):
            check_fit(found, target(config | changes, 3))


def test_arrays_of_another_shape_are_refused_by_name(tmp_path: Path) -> None:
    found = identify(write_dflash(tmp_path, num_attention_heads=2))
    assert found is not None
    with pytest.raises(ModelError, match=r"not fit: layers.0.self_attn.o_proj.weight is \(64, 64\), where"):
        load_head(found, target(config_of("llama")), 3)


def test_missing_and_strange_arrays_are_refused_by_name(tmp_path: Path) -> None:
    for changes, why in [
        ({"num_hidden_layers": 3, "layer_types": None}, "lacks layers.2.input_layernorm.weight.* and 8 more"),
        ({"num_hidden_layers": 1, "layer_types": None}, "has weights that no such head has: layers.1."),
    ]:
        found = identify(write_dflash(tmp_path, **changes))
        assert found is not None
        with pytest.raises(ModelError, match=why):
            load_head(found, target(config_of("llama")), 3)


@pytest.mark.parametrize("held", [5, 100, -7])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, held: int) -> None:
    file = write_dflash(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:held])
    with pytest.raises(ModelError, match=f"{file}.*download it again"):
        identify(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["DFlash2DraftModel"]},
        {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"},
        {"architectures": ["SpeculatorModel"], "speculators_model_type": "eagle3"},
        {"architectures": [], "model_type": "medusa"},
        {"architectures": [], "model_type": "deepseek_v4_mtp"},
    ],
)
def test_other_drafters_of_hidden_states_are_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_dflash(tmp_path, **changes)
    named = next(
        str(name) for value in changes.values() for name in ([value] if isinstance(value, str) else value)
    )
    with pytest.raises(ModelError, match=f"is a {named}, a drafter of hidden states that is not supported"):
        identify(tmp_path)


def test_an_ordinary_model_is_no_head() -> None:
    assert identify(BUNDLED_MODEL) is None
    assert find_own_heads(BUNDLED_MODEL, json.loads((BUNDLED_MODEL / "config.json").read_text())) == []


def test_of_two_heads_neither_is_taken(tmp_path: Path) -> None:
    config = config_of("qwen3_5") | {"model_type": "qwen3_5"}
    arrays = published.tiny_mtp("qwen3_5", config)
    for layout in ("shards", "mtp.safetensors"):
        folders.write_head(tmp_path, layout, "qwen3_5", config, arrays)
    with pytest.raises(
        ModelError, match=f"in {tmp_path} and the MTP head in {tmp_path}/mtp.safetensors; keep one"
    ):
        choose(find_own_heads(tmp_path, config))


def test_a_head_of_an_unknown_family_is_found_but_not_loaded(tmp_path: Path) -> None:
    config = config_of("llama") | {"model_type": "mimo"}
    folders.save(
        tmp_path / "model.safetensors", {"mtp.fc.weight": published.random_arrays({"a": (2, 2)})["a"]}, "pt"
    )
    (found,) = find_own_heads(tmp_path, config)
    with pytest.raises(ModelError, match="has an MTP head of mimo; supported are those of qwen3_next"):
        check_fit(found, target(config))
