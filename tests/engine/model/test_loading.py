"""Fingerprints of weights, models of the hub, and a model's own code, which runs only if it is trusted."""

import json
from dataclasses import replace
from unittest.mock import ANY

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_map

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import SETTINGS, Settings
from reprise.engine.interface.errors import ModelError
from reprise.engine.model.files.model_folder import find_context_tokens
from reprise.engine.model.loading import (
    LoadOptions,
    describe,
    find_fingerprint,
    load_model,
    make_draft_loader,
    make_loader,
)
from tests.end_to_end.seeing_folder import write_seeing
from tests.engine.model import fake_hub
from tests.engine.support import CONFIGS, make_model
from tests.tiny_models import write_random_model


def test_the_same_weights_have_one_fingerprint_and_others_another():
    model = make_model("llama")
    config = dict(CONFIGS["llama"])
    known = find_fingerprint(model, config)
    assert find_fingerprint(model, dict(reversed(config.items()))) == known
    assert find_fingerprint(model, config | {"rope_theta": 5.0}) != known
    for name, array in tree_flatten(model.parameters()):
        model.load_weights([(name, array + 1)], strict=False)
        assert find_fingerprint(model, config) != known, name
        model.load_weights([(name, array)], strict=False)
    assert find_fingerprint(model, config) == known
    model.update(tree_map(lambda array: array.astype(mx.float16), model.parameters()))
    assert find_fingerprint(model, config) != known


def context_of(name, max_context_tokens, **changes):
    config = {
        key: value for key, value in CONFIGS[name].items() if key != "max_position_embeddings"
    } | changes
    return describe(make_model(name), config, name, 1024, max_context_tokens, 0.0).context_tokens


@pytest.mark.parametrize("name", ["llama", "mamba2"])
@pytest.mark.parametrize("key", ["max_position_embeddings", "n_ctx", "model_max_length"])
def test_a_context_that_the_configuration_names_can_be_lowered_and_not_raised(name, key):
    found = [context_of(name, asked, **{key: 1024}) for asked in (None, 512, 2048)]
    assert found == [1024, 512, 1024]


@pytest.mark.parametrize("name", ["llama", "mamba2", "lfm2"])
def test_a_context_that_the_configuration_does_not_name_is_what_the_flag_says(name, caplog):
    assert [context_of(name, asked) for asked in (512, 50_000, 2_000_000)] == [512, 50_000, 2_000_000]
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "context_tokens"),
    [("llama", 4096), ("lfm2", 4096), ("baichuan_m1", 4096), ("gemma3_text", 4096), ("mamba2", 131_072)],
)
def test_without_the_flag_only_a_model_that_keeps_no_tokens_has_a_long_context(name, context_tokens, caplog):
    caplog.set_level("INFO")
    assert context_of(name, None) == context_tokens
    (line,) = (record.getMessage() for record in caplog.records)
    assert f"{context_tokens} tokens" in line
    assert "--max-context-tokens" in line
    assert f"{context_tokens} (" in SETTINGS["max_context_tokens"].help


@pytest.mark.parametrize(("kind", "expected"), [("gemma3", 131_072), ("lfm2_vl", 128_000), ("llama", None)])
def test_some_published_configurations_leave_their_context_to_transformers_defaults(kind, expected):
    assert find_context_tokens({"model_type": kind, "text_config": {"hidden_size": 8}}) == expected


CODE = """
from pathlib import Path
Path(__file__).with_name("has-run").touch()
from mlx_lm.models.llama import Model, ModelArgs
"""
TOKENIZER_CODE = """
from pathlib import Path
Path({place!r}).touch()
from transformers import PreTrainedTokenizerFast
class Own(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def model_with_code(tmp_path):
    """Return a function that copies the bundled model, changes one file and adds a file of code."""

    def make(file, change, code):
        for part in BUNDLED_MODEL.iterdir():
            (tmp_path / part.name).symlink_to(part)
        changed = json.loads((BUNDLED_MODEL / file).read_text()) | change
        (tmp_path / file).unlink()
        (tmp_path / file).write_text(json.dumps(changed))
        (tmp_path / "own.py").write_text(code)
        return tmp_path

    return make


@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_code_in_a_model_s_folder_runs_only_if_it_is_trusted(model_with_code, tmp_path, monkeypatch, part):
    # Transformers copies code to this folder before running it.
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    if part == "model":
        folder = model_with_code("config.json", {"model_file": "own.py"}, CODE)
    else:
        change = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": [None, "own.Own"]}}
        code = TOKENIZER_CODE.format(place=str(tmp_path / "has-run"))
        folder = model_with_code("tokenizer_config.json", change, code)
    with pytest.raises(ModelError, match="--trust-remote-code"):
        load_model(str(folder), "name", None)
    assert not (folder / "has-run").exists()
    load_model(str(folder), "name", None, options=LoadOptions(trusts_code=True))
    assert (folder / "has-run").exists()


def test_a_name_on_the_hub_is_downloaded_once(tmp_path, monkeypatch):
    folder = write_random_model("llama", tmp_path / "model")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    shares = []
    with fake_hub.serve(files, {"model.safetensors"}) as hub:
        fake_hub.use(hub, tmp_path / "cache", monkeypatch)
        loaded = load_model(fake_hub.MODEL, "x", None, shares.append)
        assert [name for name, _ in hub.ranges] == ["model.safetensors"]
    assert shares[-1] == 1.0
    assert loaded.info.weight_bytes == load_model(str(folder), "y", None).info.weight_bytes
    # The hub is gone, and nobody needs it any more.
    assert load_model(fake_hub.MODEL, "x", None).info == replace(loaded.info, loaded_s=ANY)


def test_what_the_hub_refuses_is_a_model_error(tmp_path, monkeypatch):
    with fake_hub.serve({}, set()) as hub:
        fake_hub.use(hub, tmp_path / "cache", monkeypatch)
        with pytest.raises(ModelError, match="there is no model no-org/model"):
            load_model("no-org/model", "x", None)
    with pytest.raises(ModelError, match="cannot load the model no-org/model"):
        load_model("no-org/model", "x", None)
    assert list((tmp_path / "cache").rglob("*.safetensors")) == []


@pytest.mark.parametrize("source", ["./none", "/none", "none/", "a/b/c", "~/none"])
def test_what_cannot_be_a_name_on_the_hub_is_a_folder_that_is_not_there(source):
    with pytest.raises(ModelError, match=f"there is no model folder {source}"):
        load_model(source, "x", None)


def test_what_a_model_sees_with_is_loaded_unless_it_drafts_or_is_to_be_shown_no_images(tmp_path):
    model = str(write_seeing(tmp_path / "seeing", "mistral3"))
    seeing = make_loader(Settings(model=model))(None)
    assert seeing.sight
    shares: list[float] = []
    load_model(model, "seeing", None, shares.append, options=LoadOptions(sees=True))
    # Between two arrays others run: a tower is not read at once.
    assert shares.count(1.0) == 1 + len(seeing.sight.tower.arrays())
    reading = make_loader(Settings(model=model, max_images=0))(None)
    drafting = make_draft_loader(Settings(draft_model=model))(None)
    for loaded in (reading, drafting):
        assert (loaded.sight, loaded.info.vision) == (None, None)
        assert loaded.info.weight_bytes == seeing.info.weight_bytes - seeing.sight.tower.nbytes
