"""`reprise info` over the bundled model, tiny random ones, heads, and folders that hold something else."""

import json
import shutil
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from reprise.cli.main import main
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.kv_cache.per_row import arrays_of, leaves, make_caches
from reprise.engine.model.loading import DEQUANTISED_FROM, describe_weights, load_model
from tests.engine.speculative.heads import folders, published
from tests.engine.speculative.heads.test_arithmetic import dflash_config
from tests.engine.speculative.heads.test_loading import config_of
from tests.tiny_models import DROPS_THOUGHTS, make_model, tiny_config, write_random_model


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")


def info(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, Any]:
    assert main(["info", str(folder), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_bundled_model_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    found = info(capsys, BUNDLED_MODEL)
    assert (found["kind"], found["architecture"], found["num_layers"]) == ("model", "llama", 6)
    assert (found["context_tokens"], found["vocab_size"], found["dtype"]) == (65536, 4096, "BF16")
    # 6 layers, keys and values, 6 heads of 32 numbers of 2 bytes.
    assert found["cache"]["token_bytes"] == 6 * 2 * 6 * 32 * 2
    weights = mx.load(str(BUNDLED_MODEL / "model.safetensors"))
    assert found["weight_bytes"] == sum(array.nbytes for array in weights.values())
    assert found["num_parameters"] == sum(array.size for array in weights.values())
    assert found["drafters"] == ["suffix", "ngram-mod", "ngram-simple", "draft-model"]
    assert found["refused"] == []


def test_the_table_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(BUNDLED_MODEL)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "demo_model"
    assert "kind model (llama)" in lines
    assert "context 65,536 tokens" in lines
    assert "1,000 tokens 4.4 MiB of keys and values" in lines
    assert "drafters suffix, ngram-mod, ngram-simple, draft-model" in lines


def test_what_weights_mean_for_drafts_here_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = write_random_model("llama", tmp_path / "model")
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {DEQUANTISED_FROM: "Q4_1"}))
    note = describe_weights({DEQUANTISED_FROM: "Q4_1"}, "float32")
    assert note.startswith("dequantised from Q4_1")
    assert info(capsys, folder)["weights_note"] == note
    assert main(["info", str(folder)]) == 0
    assert f"here {note}" in [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("bits", [4, 8])
def test_parameters_are_counted_as_numbers_and_not_as_packed_words(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, bits: int
) -> None:
    folder = tmp_path / "quantized"
    assert main(["convert", str(BUNDLED_MODEL), str(folder), "--bits", str(bits), "--group-size", "32"]) == 0
    capsys.readouterr()
    whole = info(capsys, BUNDLED_MODEL)["num_parameters"]
    assert info(capsys, folder)["num_parameters"] == whole
    assert load_model(str(folder), "quantized", None).info.num_parameters == whole


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next", "deepseek_v3", "mamba2"])
def test_memory_is_what_the_caches_of_the_loaded_model_take(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    folder = write_random_model(name, tmp_path / "model")
    found = info(capsys, folder)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    model: Any = make_model(config, next(iter(weights.values())).dtype)
    caches = make_caches(model)
    model(mx.array([[1, 2, 3]]), cache=caches)
    expected = {"token_bytes": 0, "fixed_bytes": 0}
    windows: dict[int, int] = {}
    for cache in leaves(caches):
        num_bytes = sum(array.nbytes for array in arrays_of(cache))
        if not hasattr(cache, "keys"):
            expected["fixed_bytes"] += num_bytes
        elif window := getattr(cache, "window", None):
            windows[window] = windows.get(window, 0) + num_bytes // cache.keys.shape[2]
        else:
            expected["token_bytes"] += num_bytes // cache.keys.shape[2]
    assert {key: found["cache"][key] for key in expected} == expected
    assert {window: each for each, window in found["cache"]["windows"]} == windows


@pytest.mark.parametrize("layout", folders.LAYOUTS[:-1])
def test_a_head_in_the_folder_is_one_of_the_drafters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, layout: str
) -> None:
    folder = write_random_model("llama", tmp_path / "model")
    config = tiny_config("qwen3_next")
    (folder / "model.safetensors").unlink()
    folders.save(folder / "model.safetensors", dict(tree_flatten(make_model(config).parameters())), "mlx")
    arrays = published.tiny_mtp("qwen3_next", config_of("qwen3_next"))
    folders.write_head(folder, layout, "qwen3_next", config, arrays)
    found = info(capsys, folder)
    (head,) = found["heads"]
    source = str(folder) if layout == "shards" else f"{folder}/{layout}"
    assert (head["kind"], head["source"], head["fault"]) == ("MTP head", source, None)
    assert head["num_bytes"] == sum(array.nbytes for array in arrays.values())
    assert found["drafters"][-1] == "mtp"


@pytest.mark.parametrize("family", ["deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "mimo", "nemotron_h"])
def test_a_head_of_each_family_is_described_with_its_model_and_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, family: str
) -> None:
    folder = write_random_model(family, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    num_layers = len(config.get("hybrid_override_pattern", [])) or config["num_hidden_layers"]
    config |= {"num_hidden_layers": num_layers, "mtp_hybrid_override_pattern": "*E"}
    arrays = published.tiny_mtp(family, config_of(family) | config)
    used = sum(array.nbytes for name, array in arrays.items() if not name.startswith(COPIES))
    folders.write_head(folder, "shards", family, config, arrays)
    found = info(capsys, folder)
    (head,) = found["heads"]
    assert (head["kind"], head["num_bytes"], head["fault"]) == ("MTP head", used, None)
    assert found["drafters"][-1] == "mtp"
    if family != "mimo":
        own = folders.write_head(folder, "own folder", family, config, arrays)
        assert info(capsys, own)["kind"] == "MTP head"


COPIES = ("embed_tokens.", "shared_head.head.")
"""Copies of the target's arrays, which a head does not use."""


def test_a_drafter_is_described_as_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folders.write_json(tmp_path / "config.json", dflash_config())
    folders.save(tmp_path / "model.safetensors", published.tiny_dflash(dflash_config()), None)
    found = info(capsys, tmp_path)
    assert (found["kind"], found["num_layers"], found["drafters"]) == ("DFlash drafter", 2, [])


def test_the_bundled_eagle_head_is_described_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = info(capsys, BUNDLED_MODEL / "eagle3")
    assert (found["kind"], found["num_layers"], found["refused"]) == ("EAGLE-3 head", 1, [])


def write_model(folder: Path, **changes: Any) -> None:
    config = tiny_config("llama") | changes
    folders.write_json(folder / "config.json", config)
    folders.save(folder / "model.safetensors", published.random_arrays({"model.norm.weight": (64,)}), "mlx")


def test_what_would_be_refused_is_said_with_the_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for changes, reason in [
        ({"model_type": "no_such_model"}, "does not know the architecture no_such_model"),
        ({"model_file": "model.py"}, "--trust-remote-code"),
        ({"num_attention_heads": "many"}, "cannot build it from its configuration"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "is a Eagle3DeepseekV2ForCausalLM, a drafter"),
    ]:
        write_model(tmp_path, **changes)
        found = info(capsys, tmp_path)
        assert reason in " ".join(found["refused"])
        assert found["drafters"] == []


def test_files_that_the_index_names_but_are_missing_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write_model(tmp_path)
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    folders.write_json(tmp_path / "model.safetensors.index.json", index)
    reason, _no_tokenizer = info(capsys, tmp_path)["refused"]
    assert reason.startswith("model-00002-of-00002.safetensors is missing")


def test_two_heads_at_once_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tiny_config("qwen3_next")
    arrays = published.tiny_mtp("qwen3_next", config_of("qwen3_next"))
    for layout in ("shards", "mtp.safetensors"):
        folders.write_head(tmp_path, layout, "qwen3_next", config, arrays)
    found = info(capsys, tmp_path)
    assert len(found["heads"]) == 2
    assert "keep one" in found["refused"][0]
    assert "mtp" not in found["drafters"]


@pytest.mark.parametrize("given", ["/no/such/folder", "no-one/no-such-model"])
def test_what_is_no_folder_is_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["info", given]) == 1
    error = capsys.readouterr().err
    assert error.startswith("reprise: there is no ")
    assert error.count("\n") == 1


def test_the_switch_that_keeps_thoughts_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = shutil.copytree(BUNDLED_MODEL, tmp_path / "model", ignore=shutil.ignore_patterns("training"))
    assert info(capsys, folder)["thought_switch"] is None
    (folder / "chat_template.jinja").write_text(DROPS_THOUGHTS)
    assert info(capsys, folder)["thought_switch"] == {"preserve_thinking": True}
    assert main(["info", str(folder)]) == 0
    assert """--chat-template-kwargs '{"preserve_thinking": true}' keeps them""" in capsys.readouterr().out
    (folder / "tokenizer.json").write_text("{")
    assert info(capsys, folder)["thought_switch"] is None


def test_a_truncated_file_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write_model(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    assert main(["info", str(tmp_path)]) == 1
    assert capsys.readouterr().err.endswith("of arrays; download it again\n")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": "many"},
        {"vocab_size": [1]},
        {"quantization": 4},
        {"text_config": 3},
        {"architectures": 7},
        {"max_position_embeddings": "long"},
    ],
)
def test_a_configuration_of_other_types_is_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any]
) -> None:
    write_model(tmp_path, **changes)
    assert main(["info", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"reprise: {tmp_path}/config.json has an entry that cannot be read: ")
    assert error.count("\n") == 1
