"""Different weights have different fingerprints, and a model's own code runs only if it is trusted."""

import json

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten, tree_map

from config.settings import BUNDLED_MODEL
from engine.model.loading import ModelError, find_fingerprint, load_model
from tests.engine.support import CONFIGS, make_model


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
    load_model(str(folder), "name", None, trusts_code=True)
    assert (folder / "has-run").exists()
