"""Models that decode embed with the states of mlx-lm's own forward pass over the whole text."""

import json

import mlx.core as mx
import numpy as np
import pytest

from reprise.config.settings import Settings
from reprise.engine.embedding.loading import load_embedding_model
from reprise.engine.interface.errors import ModelError, ModelLoadError
from reprise.engine.model.loading import load_model
from tests.engine.embedding.encoder_folders import write_modules
from tests.engine.embedding.test_worker import foreseen_is_enough
from tests.engine.model_folders import write_model

PROMPTS = {"prompts": {"query": "Instruct: find\nQuery:", "document": ""}, "default_prompt_name": None}


def write_decoder(folder, name="qwen3", **changes):
    write_model(folder, name, seed=3, **changes)
    write_modules(folder, {"pooling_mode_lasttoken": True}, "Normalize")
    (folder / "config_sentence_transformers.json").write_text(json.dumps(PROMPTS))
    return folder


def texts(num=12, most=60):
    rng = np.random.default_rng(0)
    return [rng.integers(3, 4000, int(length)).tolist() for length in rng.integers(1, most, num)]


def last_state(model, tokens):
    state = np.array(model.model(mx.array([tokens]))[0, -1].astype(mx.float32), np.float64)
    return state / np.linalg.norm(state)


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_a_text_s_vector_is_its_last_state_alone_and_in_a_batch_to_the_last_bit(pool_of, tmp_path, name):
    folder = write_decoder(tmp_path / "tiny", name)
    asker, model = pool_of(folder), load_model(str(folder), "tiny", None).model
    together = asker.raw(texts())
    assert together == tuple(asker.raw([tokens])[0] for tokens in texts())
    for tokens, vector in zip(texts(), together, strict=True):
        assert np.frombuffer(vector, "<f4") == pytest.approx(last_state(model, tokens), abs=1e-5)


def test_a_pass_takes_no_more_memory_than_was_foreseen(tmp_path):
    foreseen_is_enough(load_embedding_model(Settings(model=str(write_decoder(tmp_path / "tiny"))), "tiny"))


def test_its_end_token_is_added_if_the_tokenizer_does_not(tmp_path):
    embedding = load_embedding_model(
        Settings(model=str(write_decoder(tmp_path / "tiny"))), "tiny"
    ).info.embedding
    assert embedding.after == (2,)
    assert embedding.recipe.prompts == PROMPTS["prompts"]


def test_a_model_trained_in_both_directions_attends_to_later_tokens(pool_of, tmp_path):
    one, other = (
        pool_of(write_decoder(tmp_path / f"{causal}", is_causal=causal)) for causal in (True, False)
    )
    causal, both = one.ask(texts()), other.ask(texts())
    # One token alone has no other to attend to.
    lengths = list(map(len, texts()))
    assert all(
        length == 1 or not np.array_equal(a, b) for length, a, b in zip(lengths, causal, both, strict=True)
    )
    assert other.raw(texts()) == tuple(other.raw([tokens])[0] for tokens in texts())


def test_a_folder_that_does_not_say_that_it_embeds_does_so_if_it_is_named(pool_of, tmp_path):
    silent = tmp_path / "silent"
    write_model(silent, "qwen3")
    asker = pool_of(write_decoder(tmp_path / "tiny"), embedding_model=str(silent))
    assert {entry.name: entry.purpose for entry in asker.pool.entries()} == {
        "tiny": "embed",
        "silent": "embed",
    }
    assert asker.pool.find("silent").info.embedding.recipe.describe() == "pooling last, by its architecture"


def test_other_architectures_are_refused_when_they_are_loaded(tmp_path):
    with pytest.raises(ModelError, match="cannot embed here yet"):
        load_embedding_model(Settings(model=str(write_decoder(tmp_path / "tiny", "qwen3_next"))), "tiny")


def test_a_model_that_generates_does_not_rank(pool_of, tmp_path):
    write_model(tmp_path / "chat")
    with pytest.raises((ModelError, ModelLoadError), match="generates text"):
        pool_of(write_decoder(tmp_path / "tiny"), rerank_model=str(tmp_path / "chat"))
