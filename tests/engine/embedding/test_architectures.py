"""Encoders of every architecture make what transformers' own classes make of the same folders."""

import json

import mlx.core as mx
import numpy as np
import pytest

from reprise.config.settings import Settings
from reprise.engine.embedding import embedding_engine
from reprise.engine.embedding.loading import load_embedding_model
from reprise.engine.interface.errors import ModelError
from reprise.engine.model.files.model_folder import find_purpose
from tests.engine.embedding.bert_in_numpy import BertInNumpy
from tests.engine.embedding.encoder_folders import write_modules
from tests.engine.embedding.published_folders import CONFIGS, DECODERS, NO, YES, texts, write_published
from tests.engine.embedding.references import RANKING, read_references
from tests.engine.embedding.test_worker import Driven, foreseen_is_enough

EMBEDDING = (*CONFIGS, *DECODERS)


def load(folder, **settings):
    return load_embedding_model(Settings(model=str(folder), **settings), "tiny")


def vectors(model, inputs):
    driven = Driven(model)
    driven.submit("all", inputs)
    driven.run()
    return driven.ended["all"].vectors


def numbers(raw):
    return [np.frombuffer(one, "<f4").astype(np.float64) for one in raw]


def difference(folder, expected):
    """Return the largest difference of a number, of vectors as transformers makes them, normalized."""
    made = numbers(vectors(load(folder), texts()))
    wanted = [np.array(one) / np.linalg.norm(one) for one in expected]
    return max(np.abs(one - other).max() for one, other in zip(made, wanted, strict=True))


def expected_of(name, folder):
    if name == "jina-bert":
        oracle = BertInNumpy(folder)
        return [oracle.states(tokens).mean(axis=0) for tokens in texts()]
    return read_references()[name]


@pytest.mark.parametrize("name", EMBEDDING)
def test_an_encoder_makes_the_vectors_of_transformers(tmp_path, name):
    folder = write_published(tmp_path / "tiny", name)
    assert difference(folder, expected_of(name, folder)) < 2e-6


@pytest.mark.parametrize("name", [*RANKING, "jina-bert"])
def test_a_ranking_encoder_makes_the_scores_of_transformers(tmp_path, name):
    folder = write_published(tmp_path / "tiny", name, ranks=True)
    if name == "jina-bert":
        expected = [[BertInNumpy(folder).score(tokens, None)] for tokens in texts()]
    else:
        expected = [1 / (1 + np.exp(-np.array(logit))) for logit in read_references()[f"{name}, ranking"]]
    made = numbers(vectors(load(folder, rerank_model=str(folder)), texts()))
    assert np.concatenate(made) == pytest.approx(np.concatenate(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("modernbert", {"global_rope_theta": 10000.0}),
        ("modernbert", {"local_rope_theta": 160000.0}),
        ("modernbert", {"local_attention": 18}),
        ("modernbert", {"global_attn_every_n_layers": 2}),
        ("nomic_bert", {"rotary_emb_base": 10000}),
        ("new", {"rope_scaling": None}),
        ("new", {"rope_theta": 10000}),
        ("jina-bert", {"num_attention_heads": 3}),
        ("mistral", {"sliding_window": 9}),
        ("qwen2", {"max_window_layers": 3}),
        ("qwen2", {"use_sliding_window": False}),
        ("gemma3_text", {"sliding_window": 18}),
        ("gemma3_text", {"sliding_window_pattern": 2}),
        ("gemma3_text", {"use_bidirectional_attention": False}),
    ],
    ids=str,
)
def test_another_base_window_or_kind_of_positions_makes_other_vectors(tmp_path, name, changes):
    expected = expected_of(name, write_published(tmp_path / "right", name))
    assert difference(write_published(tmp_path / "wrong", name, **changes), expected) > 1e-4


@pytest.mark.parametrize("pooling", ["cls", "lasttoken"])
def test_another_pooling_makes_other_vectors(tmp_path, pooling):
    folder = write_published(tmp_path / "tiny", "modernbert")
    expected = expected_of("modernbert", folder)
    write_modules(folder, {"pooling_mode": pooling}, "Normalize")
    assert difference(folder, expected) > 1e-2


def test_a_window_as_long_as_the_longest_text_keeps_what_texts_begin_with(tmp_path):
    short, long = (
        load(write_published(tmp_path / str(window), "mistral", sliding_window=window)) for window in (95, 96)
    )
    assert short.body.make_caches is None
    assert long.body.make_caches()
    assert vectors(short, texts()) == vectors(long, texts())


@pytest.mark.parametrize("name", EMBEDDING)
def test_vectors_are_the_same_alone_and_in_a_batch_to_the_last_bit(tmp_path, name):
    model = load(write_published(tmp_path / "tiny", name))
    long, short, *_ = texts()
    given = [long, long[:60], long[:58], short, short[:21], short[:20]]
    alone = tuple(vectors(model, [tokens])[0] for tokens in given)
    assert vectors(model, given) == alone
    # What is not masked shows: the same padding as tokens makes another vector.
    assert vectors(model, [[*short, 0, 0]])[0] not in alone
    foreseen_is_enough(model)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("nomic_bert", {"num_experts": 8}),
        ("xlm-roberta-flash", {"lora_adaptations": ["retrieval.query"]}),
        ("new", {"rope_scaling": {"type": "dynamic", "factor": 2}}),
        ("jina-bert", {"position_embedding_type": "relative_key"}),
        ("nomic_bert", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1000, "factor": 4}}),
        ("modernbert", {"rope_scaling": {"type": "linear", "factor": 2}}),
        ("modernbert", {"hidden_activation": "swishglu"}),
    ],
    ids=str,
)
def test_what_is_not_known_is_declined_by_its_name(tmp_path, name, changes):
    with pytest.raises(ModelError, match=next(iter(changes)).replace("hidden_activation", "hidden_act")):
        load(write_published(tmp_path / "tiny", name, **changes))


@pytest.mark.parametrize("bits", [None, 8])
def test_conversions_of_embedding_gemma_have_its_dense_layers_with_the_other_weights(tmp_path, bits):
    folder = write_published(tmp_path / "tiny", "gemma3_text")
    (folder / "modules.json").unlink()
    with pytest.raises(ModelError, match=r"no weights dense\.0"):
        load(folder)
    arrays, meant = mx.load(str(folder / "model.safetensors")), []
    rng = np.random.default_rng(2)
    for index, shape in enumerate(((64, 32), (32, 64))):
        array = mx.array(rng.normal(size=shape).astype(np.float32))
        if bits:
            made = mx.quantize(array, group_size=32, bits=bits)
            arrays |= {
                f"dense.{index}.{kind}": one
                for kind, one in zip(("weight", "scales", "biases"), made, strict=True)
            }
            array = mx.dequantize(*made, group_size=32, bits=bits)
        else:
            arrays[f"dense.{index}.weight"] = array
        meant.append(np.array(array, np.float64))
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    expected = [meant[1] @ (meant[0] @ mean) for mean in read_references()["gemma3_text"]]
    assert difference(folder, expected) < 2e-6
    recipe = load(folder).info.embedding.recipe
    assert (
        recipe.describe()
        == "pooling mean, by its architecture; prompts: query, document, by its architecture"
    )


def test_prompts_that_a_folder_does_not_name_are_those_of_its_architecture(tmp_path):
    folder = write_published(tmp_path / "tiny", "nomic_bert")
    assert load(folder).info.embedding.recipe.prompts["search_query"] == "search_query: "
    told = {"prompts": {"query": "mine: "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(told))
    recipe = load(folder).info.embedding.recipe
    assert (dict(recipe.prompts), recipe.prompts_are_guessed) == (told["prompts"], False)


def test_a_model_whose_images_alone_see_later_tokens_generates(tmp_path):
    config = {"model_type": "gemma4_text", "use_bidirectional_attention": "vision"}
    assert find_purpose(tmp_path, config) == "generate"
    assert find_purpose(tmp_path, config | {"use_bidirectional_attention": "all"}) == "embed"


def test_a_qwen3_reranker_without_a_name_is_known_by_what_scores_its_logits(tmp_path):
    folder = write_published(tmp_path / "tiny", "qwen3", ranks=True)
    config = json.loads((folder / "config.json").read_text())
    assert find_purpose(folder, config) == "generate"
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_LogitScore", "type": "x.LogitScore"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_LogitScore").mkdir()
    scoring = folder / "1_LogitScore" / "config.json"
    scoring.write_text(json.dumps({"true_token_id": YES, "false_token_id": NO}))
    assert find_purpose(folder, config) == load(folder).info.purpose == "rerank"
    scoring.write_text(json.dumps({"true_token_id": NO, "false_token_id": YES}))
    with pytest.raises(ModelError, match="not by yes and no"):
        load(folder)


@pytest.mark.parametrize("name", ["mistral", "gemma3_text"])
def test_other_models_that_decode_do_not_rank(tmp_path, name):
    folder = write_published(tmp_path / "tiny", name)
    with pytest.raises(ModelError, match="only qwen3 models rank"):
        load(folder, rerank_model=str(folder))


@pytest.mark.parametrize(
    ("name", "bits", "ranks"), [("modernbert", 4, False), ("new", 8, False), ("qwen3", 4, True)]
)
def test_quantized_folders_make_what_their_weights_say(tmp_path, name, bits, ranks):
    """The quantized folder and one with the numbers that its weights stand for: embeddings have 8 bits."""
    folders = {kind: write_published(tmp_path / kind, name, ranks=ranks) for kind in ("quantized", "meant")}
    arrays = {kind: dict(mx.load(str(folders["meant"] / "model.safetensors"))) for kind in folders}
    for key, array in arrays["meant"].items():
        if array.ndim == 2 and array.shape[1] % 32 == 0:
            of_this = {"group_size": 32, "bits": 8 if "embed" in key else bits}
            made = mx.quantize(array, **of_this)
            base = key.removesuffix("weight")
            arrays["quantized"] |= dict(zip((key, f"{base}scales", f"{base}biases"), made, strict=True))
            arrays["meant"][key] = mx.dequantize(*made, **of_this)
    for kind, folder in folders.items():
        mx.save_safetensors(str(folder / "model.safetensors"), arrays[kind])
    config = json.loads((folders["quantized"] / "config.json").read_text())
    config |= {"quantization": {"group_size": 32, "bits": bits}}
    (folders["quantized"] / "config.json").write_text(json.dumps(config))
    made, meant = (
        np.concatenate(numbers(vectors(load(folder, rerank_model="tiny" if ranks else None), texts())))
        for folder in folders.values()
    )
    assert made == pytest.approx(meant, abs=1e-5)


@pytest.mark.parametrize("name", EMBEDDING)
def test_a_layer_that_is_cut_makes_the_same_vectors_to_the_last_bit(tmp_path, monkeypatch, name):
    model = load(write_published(tmp_path / "tiny", name))
    given = texts()
    whole = vectors(model, given)
    num_calls = sum(len(one) // 5 for one in given)
    monkeypatch.setattr(embedding_engine, "MIN_TOKENS", 5)
    cut = Driven(model, max_stall_ms=1e-6)
    cut.submit("all", given)
    assert cut.run(num_decoding=1) > num_calls
    assert cut.ended["all"].vectors == whole
