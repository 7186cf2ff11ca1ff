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
from reprise.engine.speculative.heads import eagle
from reprise.engine.speculative.heads.formats import find_own_heads, identify
from reprise.engine.speculative.heads.head import Target, TargetEnds, text_config
from reprise.engine.speculative.heads.loading import check_fit, choose, load_head, make_head
from tests.engine.speculative.heads import folders, published
from tests.engine.speculative.heads.test_arithmetic import dflash_config, eagle_arrays, eagle_config
from tests.tiny_models import architectures, make_model, tiny_config

READ = "eagle_aux_hidden_state_layer_ids"
ENDS = TargetEnds(*[lambda any_: any_] * 4)
FAMILIES = (*published.QWEN, *published.AFTER_THE_LAST, "mimo", "nemotron_h")


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
        make_head(found, target(config_of("llama")), 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"dflash_config": None},
        {"dflash_config": {"mask_token_id": 5, "target_layer_ids": ["first"]}},
        {"hidden_size": "wide"},
        {"layer_types": ["linear_attention"] * 2},
        {"layer_types": ["sliding_attention"] * 2},
        {"rope_theta": None},
        {"head_dim": 7},
        {"num_key_value_heads": 0},
        {"num_key_value_heads": 3},
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 1},
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": -5},
        {"conv_kernel_size": 3, "conv_group_size": 7},
        {"selector_top_k": 513, "selector_rank": 4},
        {"selector_top_k": -1, "selector_rank": 4},
    ],
)
def test_a_drafter_whose_configuration_cannot_be_read_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    found = identify(write_dflash(tmp_path, **changes))
    assert found is not None
    with pytest.raises(ModelError, match=f"{tmp_path}"):
        make_head(found, target(config_of("llama")), 3)


PUBLISHED = json.loads((Path(__file__).parent / "published_configs.json").read_text(encoding="utf-8"))
OTHERS = ("_mla", "-peagle", "_template")


@pytest.mark.parametrize("name", [name for name in PUBLISHED if "eagle" in name.lower()])
def test_published_configurations_of_eagle_heads_are_read(name: str) -> None:
    config = PUBLISHED[name]["config"]
    if not name.endswith(OTHERS):
        assert eagle.PUBLISHED.describes(config)
        due = config.get("eagle_config") or {}
        inputs = config.get(READ) or [2, 24, 45]
        taps = eagle.read_config(config, 48).taps
        assert taps == tuple(due.get(READ) or [layer - 1 for layer in inputs])
    elif not name.endswith("_template"):
        assert not eagle.PUBLISHED.describes(config)


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}


@pytest.mark.parametrize("said", ["rope_scaling", "rope_parameters"])
def test_a_drafter_whose_rows_cannot_be_rotated_together_is_refused(tmp_path: Path, said: str) -> None:
    found = identify(write_dflash(tmp_path, **{said: DYNAMIC}))
    assert found is not None
    with pytest.raises(ModelError, match=f"{tmp_path}.*rope_type dynamic, with which rows of different"):
        make_head(found, target(config_of("llama")), 3)


EAGLE_MISFITS = [
    ({"hidden_size": 128}, "does not fit the model: its target_hidden_size is 128, that of the model 64"),
    (
        {"target_hidden_size": 32},
        "does not fit the model: its target_hidden_size is 32, that of the model 64",
    ),
    ({"vocab_size": 1000}, "does not fit the model: its vocab_size is 1000, that of the model 512"),
    ({"eagle_config": {READ: [1, 3, 8]}}, r"does not fit the model: it reads layers \[8\] of the model's 8"),
    ({"eagle_config": {READ: [1, 3, 3]}}, r"it reads layers \[1, 3, 3\], one of them twice"),
    ({READ: [0, 3, 4], "eagle_config": None}, r"it reads layers \[-1\] of the model's 8"),
    ({"eagle_config": {READ: [1, 3]}}, r"fc.weight is \(64, 192\), where \(64, 128\) is due"),
    (
        {"eagle_config": {"use_aux_hidden_state": False}},
        "use_aux_hidden_state false, as in heads before EAGLE-3",
    ),
    ({"hidden_act": "gelu"}, "hidden_act gelu, not silu"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type dynamic, with which rows"),
    ({"rope_parameters": DYNAMIC}, "rope_type dynamic, with which rows"),
    ({"layer_types": ["sliding_attention"]}, "layer_types .* of 1 layers, with a sliding_window of 0"),
    (
        {"layer_types": ["sliding_attention"] * 2, "sliding_window": 9},
        "of 1 layers, with a sliding_window of 9",
    ),
    ({"rms_norm_eps": None}, "TypeError.*float"),
    ({"hidden_size": "wide"}, "ValueError.*wide"),
    ({"draft_vocab_size": None}, r"lm_head.weight is \(96, 64\), where \(512, 64\) is due"),
    ({"num_hidden_layers": 2}, "lacks layers.1.input_layernorm.weight"),
    ({"norm_before_fc": True}, "lacks input_norm.weight"),
    ({"attention_bias": True}, "lacks layers.0.self_attn.k_proj.bias"),
]


@pytest.mark.parametrize(("changes", "why"), EAGLE_MISFITS)
def test_an_eagle_head_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    folders.write_eagle(tmp_path, "SpecForge", eagle_config(), eagle_arrays(3))
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    folders.write_json(tmp_path / "config.json", config)
    found = identify(tmp_path)
    assert found is not None
    with pytest.raises(ModelError, match=f"{tmp_path}.*{why}"):
        load_head(found, target(config_of("llama"), 8), 3)


def test_an_eagle_head_whose_tokens_are_not_the_model_s_is_refused(tmp_path: Path) -> None:
    arrays = eagle_arrays(3)
    for far in (-500, 500):
        folders.write_eagle(tmp_path, "SpecForge", eagle_config(), arrays | {"d2t": arrays["d2t"] + far})
        found = identify(tmp_path)
        assert found is not None
        with pytest.raises(ModelError, match=f"{tmp_path}.*d2t names tokens that the model does not have"):
            load_head(found, target(config_of("llama"), 8), 3)


def test_an_eagle_head_that_is_published_for_torch_alone_is_refused(tmp_path: Path) -> None:
    file = folders.write_eagle(tmp_path, "EAGLE", eagle_config(), eagle_arrays(3)) / "model.safetensors"
    file.rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=f"{tmp_path} has no safetensors file; convert its .bin file"):
        identify(tmp_path)


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
        {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2"},
        {"architectures": ["Gemma4Eagle3Model"], "model_type": "gemma4_text"},
        {"architectures": [], "model_type": "medusa"},
        *(
            {"architectures": [], "model_type": f"{family}_mtp"}
            for family in ("deepseek_v4", "glm5_next", "hy_v4", "inkling", "qwen4_exp")
        ),
    ],
)
def test_other_drafters_of_hidden_states_are_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_dflash(tmp_path, dflash_config=None, **changes)
    named = next(
        str(name) for value in changes.values() for name in ([value] if isinstance(value, str) else value)
    )
    with pytest.raises(ModelError, match=f"is a {named}, a drafter of hidden states that is not supported"):
        identify(tmp_path)


@pytest.mark.parametrize(
    ("kind", "architecture"),
    [("dflash", "DFlashDraftModel"), ("dspark", "DSparkDraftModel"), ("peagle", "PEagleDraftModel")],
)
def test_drafters_in_speculators_own_format_are_refused_with_what_to_use(
    tmp_path: Path, kind: str, architecture: str
) -> None:
    write_dflash(tmp_path, architectures=[architecture], speculators_model_type=kind)
    with pytest.raises(
        ModelError, match=rf"in the format of speculators \({kind}\), .* only EAGLE-3.*z-lab's"
    ):
        identify(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": 5},
        {"dflash_config": 5},
        {"text_config": 5, "architectures": [], "dflash_config": None},
    ],
)
def test_a_folder_whose_kind_cannot_be_read_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    write_dflash(tmp_path, model_type="qwen3_5_mtp", **changes)
    with pytest.raises(ModelError, match=f"{tmp_path / 'config.json'} has an entry that cannot be read"):
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
    config = config_of("llama") | {"model_type": "deepseek_v41"}
    folders.save(
        tmp_path / "model.safetensors", {"mtp.fc.weight": published.random_arrays({"a": (2, 2)})["a"]}, "pt"
    )
    (found,) = find_own_heads(tmp_path, config)
    with pytest.raises(
        ModelError, match="has an MTP head of deepseek_v41; supported are those of qwen3_next"
    ):
        check_fit(found, target(config))


@pytest.mark.parametrize("pattern", ["M*E", "**", "E", ""])
def test_a_head_of_nemotron_with_other_layers_is_refused_by_name(tmp_path: Path, pattern: str) -> None:
    config = config_of("nemotron_h") | {"mtp_hybrid_override_pattern": pattern}
    arrays = published.tiny_mtp("nemotron_h", config)
    found = identify(folders.write_head(tmp_path, "own folder", "nemotron_h", config, arrays))
    assert found is not None
    with pytest.raises(ModelError, match=r"its layers are \[.*\], not one of attention"):
        make_head(found, target(config), 3)


def test_the_kinds_of_nemotron_s_layers_may_be_spelled_out(tmp_path: Path) -> None:
    config = config_of("nemotron_h") | {"mtp_layers_block_type": ["attention", "moe"]}
    arrays = published.tiny_mtp("nemotron_h", config)
    found = identify(folders.write_head(tmp_path, "own folder", "nemotron_h", config, arrays))
    assert found is not None
    assert load_head(found, target(config), 3).taps == ()


def test_of_several_layers_of_mimo_the_first_is_used(tmp_path: Path) -> None:
    config = config_of("mimo") | {"num_nextn_predict_layers": 2}
    arrays = published.tiny_mtp("mimo", config)
    folders.write_head(tmp_path, "shards", "mimo", config, arrays)
    second = {f"model.mtp_layers.1.{name}": array for name, array in arrays.items()}
    folders.save(tmp_path / "model-00003-of-00003.safetensors", second, "pt")
    (found,) = find_own_heads(tmp_path, config)
    assert (found.depth, found.num_bytes) == (2, sum(array.nbytes for array in arrays.values()))
    load_head(found, target(config), 3)
