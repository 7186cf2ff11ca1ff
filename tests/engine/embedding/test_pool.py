"""A model that embeds is one of several: beside chats, unloaded and loaded again, stopped."""

import pytest

from reprise.engine.embedding import embedding_engine
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.events import Failed
from tests.engine.embedding.encoder_folders import write_encoder
from tests.engine.embedding.test_encoder import texts
from tests.engine.model_folders import write_model
from tests.engine.support import Answer, ask, request


def test_chats_and_embeddings_do_not_change_each_other(pool_of, tmp_path):
    asker = pool_of(write_encoder(tmp_path / "tiny"), models_dir=str(tmp_path))
    write_model(tmp_path / "chat")
    chat = asker.pool.acquire("chat").result(120)
    before, vectors = ask(chat.engine, request([5, 6, 7])), asker.raw(texts(20))
    expected = before.finished().tokens
    pending = [asker.begin(texts(20)) for _ in range(3)]
    beside = ask(chat.engine, request([5, 6, 7]))
    assert beside.finished().tokens == expected
    assert [one.result(120).vectors for one in pending] == [vectors] * 3
    assert asker.pool.counts().num_embedded == 80
    assert asker.pool.counts().num_to_embed == 0


def test_a_chat_takes_a_step_after_every_piece_of_a_pass(pool_of, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding_engine, "MAX_STALL_MS", 1e-6)
    asker = pool_of(write_encoder(tmp_path / "tiny"), models_dir=str(tmp_path))
    write_model(tmp_path / "chat")
    chat = asker.pool.acquire("chat").result(120)
    pending = asker.begin(texts(400))
    seen: list[int] = []
    answer = Answer()
    answer.on_delta = lambda: seen.append(asker.engine.worker.num_progressed)
    chat.engine.submit(request([5, 6, 7], max_tokens=100), answer)
    answer.finished()
    # A few more, as not every step of a chat gives text.
    assert seen[-1] - seen[0] <= 110
    assert len(pending.result(120).vectors) == 400


def test_a_model_that_was_unloaded_makes_the_same_vectors(pool_of, tmp_path):
    asker = pool_of(write_encoder(tmp_path / "tiny"), models_dir=str(tmp_path))
    before = asker.raw(texts())
    asker.use.end()
    asker.pool.unload("tiny").result(120)
    assert asker.pool.find("tiny").state == "unloaded"
    again = asker.pool.acquire("tiny").result(120)
    asker.engine = again.engine
    assert asker.raw(texts()) == before
    assert asker.pool.counts().num_embedded == 2 * len(texts())


def test_a_stop_ends_what_waits(pool_of, tmp_path):
    asker = pool_of(write_encoder(tmp_path / "tiny"))
    pending = [asker.begin(texts(200)) for _ in range(3)]
    asker.pool.stop(0)
    ends = [one.result(120) for one in pending]
    assert all(not isinstance(end, Failed) or end.kind == "draining" for end in ends)


def test_folders_say_what_models_are_for(pool_of, tmp_path):
    asker = pool_of(write_encoder(tmp_path / "tiny"), models_dir=str(tmp_path))
    write_model(tmp_path / "chat")
    write_encoder(tmp_path / "ranks", "xlm-roberta", ranks=True)
    found = {entry.name: (entry.purpose, entry.fault) for entry in asker.pool.entries()}
    assert found == {"tiny": ("embed", None), "chat": ("generate", None), "ranks": ("rerank", None)}


def test_two_models_of_one_name_are_refused_at_the_start(pool_of, tmp_path):
    first, second = (write_encoder(tmp_path / kind / "model") for kind in ("one", "other"))
    with pytest.raises(ModelError, match="the same name"):
        pool_of(first, embedding_model=str(second))


def test_a_model_that_is_not_there_is_said_at_the_start(pool_of, tmp_path):
    with pytest.raises(ModelError, match="there is no folder nowhere, and no model of that name"):
        pool_of(write_encoder(tmp_path / "tiny"), embedding_model="nowhere")
