"""BERT and its relatives make the vectors and scores of an independent implementation in float64."""

import json

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from reprise.config.settings import Settings
from reprise.engine.embedding.loading import load_embedding_model
from reprise.engine.interface.embeddings import EmbeddingInput
from reprise.engine.interface.errors import ModelError
from tests.engine.embedding.bert_in_numpy import BertInNumpy
from tests.engine.embedding.encoder_folders import minilm, write_encoder, write_modules

TEXTS = ("Hello world", "This is an example sentence", "naïve 東京")
PUBLISHED = [0.0676569, 0.0634959, 0.0487131, 0.0793049]
"""First numbers of "This is an example sentence", as the model's page has them."""
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


def texts(num=5, most=60, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(1000, 30000, int(length)).tolist() for length in rng.integers(1, most, num)]


def test_minilm_equals_float64_to_a_millionth(minilm_asker):
    oracle = BertInNumpy(minilm())
    ids = [minilm_asker.engine.tokenizer.encode(text) for text in TEXTS]
    for tokens, vector in zip(ids, minilm_asker.ask(ids), strict=True):
        assert np.abs(vector - oracle.mean(tokens)).max() < 1e-6


def test_minilm_has_its_published_values(minilm_asker):
    (vector,) = minilm_asker.ask([minilm_asker.engine.tokenizer.encode(TEXTS[1])])
    assert vector[:4] == pytest.approx(PUBLISHED, abs=1e-6)


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_a_random_encoder_equals_float64(pool_of, tmp_path, kind):
    folder = write_encoder(tmp_path / "tiny", kind)
    oracle, asker = BertInNumpy(folder), pool_of(folder)
    for tokens, vector in zip(texts(), asker.ask(texts()), strict=True):
        assert np.abs(vector - oracle.mean(tokens)).max() < 1e-6


@pytest.mark.parametrize("kind", ["bert", "xlm-roberta"])
def test_a_ranking_encoder_equals_float64(pool_of, tmp_path, kind):
    folder = write_encoder(tmp_path / "tiny", kind, ranks=True)
    oracle, asker = BertInNumpy(folder), pool_of(folder)
    pairs = [EmbeddingInput(tuple(tokens), first_of_second=len(tokens) // 2) for tokens in texts()]
    for pair, score in zip(pairs, asker.ask(pairs), strict=True):
        num_first = pair.first_of_second if kind == "bert" else len(pair.tokens)
        types = [0] * num_first + [1] * (len(pair.tokens) - num_first)
        assert score == pytest.approx([oracle.score(pair.tokens, types)], abs=1e-6)


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (MEAN, lambda states: states.mean(axis=0)),
        ({"pooling_mode": "mean"}, lambda states: states.mean(axis=0)),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, lambda states: states[0]),
        ({"pooling_mode": "cls"}, lambda states: states[0]),
        ({"pooling_mode_lasttoken": True}, lambda states: states[-1]),
        ({"pooling_mode_max_tokens": True}, lambda states: states.max(axis=0)),
    ],
    ids=["mean", "mean by name", "cls", "cls by name", "last", "max"],
)
def test_a_folder_says_how_to_pool(tmp_path, pooling, expected):
    folder = write_encoder(tmp_path / "tiny")
    write_modules(folder, pooling)
    model = load_embedding_model(Settings(model=str(folder)), "tiny")
    states = np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32)
    assert np.array(model.finish(mx.array(states))) == pytest.approx(expected(states), abs=1e-6)


def test_dense_layers_follow_pooling_and_normalizing_follows_cutting(tmp_path):
    folder = write_encoder(tmp_path / "tiny")
    write_modules(folder, MEAN, "Dense", "Normalize")
    model = load_embedding_model(Settings(model=str(folder)), "tiny")
    arrays = mx.load(str(folder / "2_Dense" / "model.safetensors"))
    weight, bias = (np.array(arrays[f"linear.{name}"], np.float64) for name in ("weight", "bias"))
    states = np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32)
    whole = np.tanh(weight @ states.mean(axis=0) + bias)
    assert model.info.embedding.dimensions == 12
    for dimensions in (None, 5):
        cut = whole[:dimensions]
        made = np.array(model.finish(mx.array(states), dimensions=dimensions))
        assert made == pytest.approx(cut / np.linalg.norm(cut), abs=1e-6)


def test_a_prompt_s_tokens_are_left_out_if_the_folder_says_so(tmp_path):
    folder = write_encoder(tmp_path / "tiny")
    write_modules(folder, MEAN | {"include_prompt": False})
    model = load_embedding_model(Settings(model=str(folder)), "tiny")
    states = np.random.default_rng(0).normal(size=(5, 32)).astype(np.float32)
    assert np.array(model.finish(mx.array(states), first_pooled=2)) == pytest.approx(
        states[2:].mean(axis=0), abs=1e-6
    )
    assert not model.info.embedding.recipe.counts_prompt


def test_what_a_folder_does_not_say_is_decided_by_the_architecture_and_told(tmp_path):
    info = load_embedding_model(Settings(model=str(write_encoder(tmp_path / "tiny"))), "tiny").info
    assert info.embedding.recipe.is_guessed
    assert info.embedding.recipe.describe() == "pooling mean, by its architecture"


@pytest.mark.parametrize(
    ("pooling", "kinds"),
    [
        ({"pooling_mode_weightedmean_tokens": True}, ()),
        (MEAN | {"pooling_mode_cls_token": True}, ()),
        (MEAN, ("CNN",)),
    ],
    ids=str,
)
def test_what_is_not_known_is_refused_at_the_load(tmp_path, pooling, kinds):
    folder = write_encoder(tmp_path / "tiny")
    write_modules(folder, pooling, *kinds)
    with pytest.raises(ModelError, match="not known here"):
        load_embedding_model(Settings(model=str(folder)), "tiny")


def test_a_classifier_of_several_classes_is_refused(tmp_path):
    folder = write_encoder(tmp_path / "tiny", ranks=True)
    config = json.loads((folder / "config.json").read_text()) | {"id2label": {"0": "good", "1": "bad"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="several classes"):
        load_embedding_model(Settings(model=str(folder)), "tiny")


def test_a_text_is_as_long_as_positions_and_the_folder_allow(tmp_path):
    of = {kind: write_encoder(tmp_path / kind, kind) for kind in ("bert", "xlm-roberta")}
    lengths = {kind: load_embedding_model(Settings(model=str(path)), kind).info for kind, path in of.items()}
    assert {kind: info.context_tokens for kind, info in lengths.items()} == {"bert": 80, "xlm-roberta": 78}
    assert load_embedding_model(Settings(model=str(minilm())), "minilm").info.context_tokens == 256


def test_weights_in_bfloat16_are_computed_in_float32(tmp_path):
    folder = write_encoder(tmp_path / "tiny")
    arrays = mx.load(str(folder / "model.safetensors"))
    mx.save_safetensors(
        str(folder / "model.safetensors"), {k: v.astype(mx.bfloat16) for k, v in arrays.items()}
    )
    model = load_embedding_model(Settings(model=str(folder)), "tiny")
    assert {array.dtype for _, array in tree_flatten(model.body.parameters())} == {mx.float32}


def test_a_quantized_folder_embeds_nearly_the_same(pool_of, tmp_path):
    folder, quantized = write_encoder(tmp_path / "tiny"), write_encoder(tmp_path / "quantized")
    arrays = {}
    for name, array in mx.load(str(folder / "model.safetensors")).items():
        arrays[name] = array
        if "encoder" in name and name.endswith("dense.weight") and array.shape[1] % 32 == 0:
            weight, scales, biases = mx.quantize(array, group_size=32, bits=8)
            base = name.removesuffix("weight")
            arrays |= {name: weight, f"{base}scales": scales, f"{base}biases": biases}
    mx.save_safetensors(str(quantized / "model.safetensors"), arrays)
    config = json.loads((quantized / "config.json").read_text())
    (quantized / "config.json").write_text(
        json.dumps(config | {"quantization": {"group_size": 32, "bits": 8}})
    )
    exact, near = pool_of(folder).ask(texts()), pool_of(quantized).ask(texts())
    assert all(0.999 < float(one @ other) < 1 - 1e-9 for one, other in zip(exact, near, strict=True))
