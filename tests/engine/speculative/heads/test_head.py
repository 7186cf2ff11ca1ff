"""The target's ends are its own, whatever it does to embeddings and logits; heads are read as published."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from reprise.engine.speculative.heads.dflash import spread_taps
from reprise.engine.speculative.heads.formats import find_own_heads
from reprise.engine.speculative.heads.head import find_ends
from reprise.engine.speculative.heads.loading import read_weights
from tests.engine.speculative.heads import folders, published
from tests.engine.speculative.heads.test_loading import config_of
from tests.tiny_models import make_model, tiny_config

IDS = mx.array([[4, 8, 15, 16, 23, 42], [3, 1, 4, 1, 5, 9]])
PLAIN = ("llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "deepseek_v3", "glm4_moe", "cohere")
SCALES = dict.fromkeys(PLAIN, 1.0) | {
    "gemma": 8.0,
    "gemma2": 8.0,
    "gemma3": 8.0,
    "gemma3_text": 8.0,
    "gemma4_text": 8.0,
    "granite": 3.0,
    "minicpm": 3.0,
}
"""By what a model multiplies its embeddings. Cohere, Gemma 2 and 4, and Granite scale or cap logits, too."""


def body_of(model: Any) -> Any:
    while "model" not in model:
        model = model["language_model"]
    return model["model"]


@pytest.mark.parametrize("name", SCALES)
def test_states_through_the_ends_are_what_the_model_makes_of_them(name: str) -> None:
    model = make_model(tiny_config(name, scale_emb=3.0, embedding_multiplier=3.0))
    body, ends = body_of(model), find_ends(model)
    assert mx.array_equal(ends.logits(body(IDS)), model(IDS))
    assert mx.array_equal(ends.embed(IDS), body["embed_tokens"](IDS) * SCALES[name])
    # The model is as it was.
    assert mx.array_equal(ends.logits(body(IDS)), model(IDS))


def test_a_model_of_other_names_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps its embedding in a place of its own"):
        find_ends(make_model(tiny_config("gpt2")))


def test_layers_after_the_first_are_left_out(tmp_path: Path) -> None:
    for family, second in [("qwen3_5", "mtp.layers.1."), ("glm4_moe", "model.layers.3.")]:
        config = config_of(family) | {"model_type": family, "num_nextn_predict_layers": 2}
        folder = tmp_path / family
        folders.write_head(folder, "shards", family, config, published.tiny_mtp(family, config))
        (alone,) = find_own_heads(folder, config)
        more = {f"{second}mlp.up_proj.weight": np.ones((2, 2), np.float32)}
        folders.save(folder / "model-00003.safetensors", more, "pt")
        (found,) = find_own_heads(folder, config)
        assert (found.depth, found.num_bytes) == (2, alone.num_bytes)
        assert read_weights(found).keys() == read_weights(alone).keys()


def test_published_weights_of_eight_bits_are_read_as_mlx_lm_reads_them(tmp_path: Path) -> None:
    config = config_of("deepseek_v3") | {"model_type": "deepseek_v3"}
    arrays = {name: mx.array(array) for name, array in published.tiny_mtp("deepseek_v3", config).items()}
    names = [name for name, array in arrays.items() if array.ndim == 2 and "proj" in name]
    packed = {name: mx.to_fp8(array) if name in names else array for name, array in arrays.items()}
    plain = {
        name: mx.from_fp8(packed[name], mx.bfloat16) if name in names else arrays[name] for name in arrays
    }
    packed |= {f"{name}_scale_inv": mx.ones((1, 1)) for name in names}
    read = []
    for given in (packed, plain):
        file = tmp_path / "model.safetensors"
        prefixed = {f"model.layers.2.{name}": array for name, array in given.items()}
        mx.save_safetensors(str(file), prefixed, metadata={"format": "pt"})
        (found,) = find_own_heads(tmp_path, config)
        weights = read_weights(found)
        mx.eval(weights)
        read.append(weights)
    assert read[0].keys() == read[1].keys()
    assert all(mx.array_equal(read[0][name], read[1][name]) for name in read[0])


@pytest.mark.parametrize(
    ("num_layers", "num", "taps"), [(36, 5, (1, 9, 17, 25, 33)), (6, 1, (3,)), (6, 2, (1, 3))]
)
def test_a_drafter_without_taps_reads_layers_at_equal_distances(
    num_layers: int, num: int, taps: tuple[int, ...]
) -> None:
    assert spread_taps(num_layers, num) == taps
