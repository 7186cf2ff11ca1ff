"""A WeDLM folder is served as the model whose layers it has, and never answers with its mask token."""

import json
import shutil

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm import convert

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.interface.errors import ModelError
from reprise.engine.model.loading import load_model
from reprise.engine.model.wedlm import FAMILIES, keep_ends
from tests.engine.support import SIZES, make_model
from tests.tiny_models import tiny_config

LAYERS = {family: layers for layers, family in FAMILIES.items()}
MASK = 4000


@pytest.fixture
def make_folder(tmp_path):
    """Return a function that writes a random WeDLM model of a family, with changes to its configuration."""

    def make(family, **changes):
        attention_bias, qk_norm = LAYERS[family]
        config = tiny_config(family, **SIZES) | {
            "model_type": "wedlm",
            "architectures": ["WeDLMForCausalLM"],
            "auto_map": {"AutoModelForCausalLM": "modeling_wedlm.WeDLMForCausalLM"},
            "attention_bias": attention_bias,
            "qk_norm": qk_norm,
            "mask_token_id": MASK,
            "eos_token_id": 2,
        }
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(BUNDLED_MODEL / name, tmp_path)
        (tmp_path / "modeling_wedlm.py").write_text("raise SystemExit('this must not run')\n")
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        model = make_model(family)
        mx.save_safetensors(str(tmp_path / "model.safetensors"), dict(tree_flatten(model.parameters())))
        return tmp_path, model

    return make


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_it_is_the_model_of_its_layers_but_for_the_mask_token(family, make_folder, caplog):
    folder, model = make_folder(family)
    loaded = load_model(str(folder), "wedlm", None)
    tokens = mx.array([[5, 6, 7, MASK, MASK]])
    got, wanted = loaded.model(tokens), model(tokens)
    assert mx.all(got[..., MASK] == -mx.inf)
    others = mx.array([token for token in range(got.shape[-1]) if token != MASK])
    assert mx.array_equal(got[..., others], wanted[..., others])
    assert (loaded.info.mask_token_id, loaded.info.architecture) == (MASK, "wedlm")
    assert not caplog.records


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mask_token_id": None}, "151665 that checkpoints without one use is not in the vocabulary"),
        (
            {"mask_token_id": 4096},
            "4096 .* is not in the vocabulary of 4096 tokens; its config.json",
        ),
        ({"mask_token_id": 2}, "the mask token 2 .* ends answers"),
        ({"attention_bias": True, "qk_norm": True}, "both attention_bias and qk_norm"),
    ],
)
def test_a_checkpoint_without_a_usable_mask_token_is_refused(changes, said, make_folder):
    folder, _ = make_folder("llama", **changes)
    with pytest.raises(ModelError, match=said):
        load_model(str(folder), "wedlm", None)


def test_another_model_has_no_mask_token():
    assert load_model(str(BUNDLED_MODEL), "demo", None).info.mask_token_id is None


def test_mlx_lm_quantizes_a_folder_and_leaves_embeddings_and_head(make_folder, tmp_path):
    folder, _ = make_folder("qwen3")
    small = tmp_path / "small"
    convert(str(folder), str(small), quantize=True, q_bits=4, q_group_size=32, quant_predicate=keep_ends)
    loaded = load_model(str(small), "wedlm", None)
    assert (loaded.info.dtype, loaded.info.mask_token_id) == ("4-bit", MASK)
    names = {name for name, _ in tree_flatten(loaded.model.parameters()) if name.endswith("scales")}
    assert names
    assert not any("embed_tokens" in name or "lm_head" in name for name in names)
