"""What rank 0 sends of its prefix files."""

from pathlib import Path

import mlx.core as mx
import pytest

from reprise.engine.distributed.leader import SharedModel, SharedPrefixStore
from reprise.engine.kv_cache.buffers import cut_slice
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.prefix_cache.disk import PrefixStore, make_store
from tests.engine.distributed.test_leader_and_replica import Others, make_shared

TOKENS = list(range(300))
ROOM = 2**24


def names_sent(others: Others) -> list[str]:
    """Return the names of the commands sent since the last call."""
    names = [message[1] for message in others.sent.messages if len(message) > 1]
    others.sent.messages.clear()
    return names


def open_store(folder: Path) -> tuple[PrefixStore, SharedModel, Others]:
    model, others = make_shared()
    store = make_store(model, folder, ROOM, "a", False)
    assert names_sent(others) == ["keep_parts"]
    return store, model, others


def save(store: PrefixStore, model: SharedModel, tokens: list[int] = TOKENS) -> None:
    caches = make_caches(model)
    model(mx.array([tokens]), cache=caches)
    store.save(tokens, lambda start, end: cut_slice(caches, start, end), list)


def test_a_prefix_is_saved_read_and_dropped_by_all(tmp_path: Path) -> None:
    store, model, others = open_store(tmp_path)
    save(store, model)
    assert names_sent(others)[-1] == "save_part"
    loading = store.start_load([*TOKENS, 1])
    taken = store.finish_load(loading)
    assert taken is not None
    cut, state = taken
    assert [array.shape[2] for array in cut(10, 250)] == [240] * len(cut(10, 250))
    assert state == []
    assert names_sent(others) == ["begin_parts", "join_parts", "cut_parts", "cut_parts"]
    store.close()


def test_a_prefix_that_another_rank_cannot_read_is_dropped_by_all(tmp_path: Path) -> None:
    store, model, others = open_store(tmp_path)
    save(store, model)
    loading = store.start_load([*TOKENS, 1])
    names_sent(others)
    others.word = "it is damaged"
    assert store.finish_load(loading) is None
    assert names_sent(others) == ["join_parts", "drop_part"]
    assert len(store) == 0
    store.close()


def test_files_that_another_rank_reads_slowly_are_waited_for_and_kept(tmp_path: Path) -> None:
    store, model, others = open_store(tmp_path)
    save(store, model)
    loading = store.start_load([*TOKENS, 1])
    others.word = "files are still being read"
    while not all(one.done() for one in loading.reads):
        assert not loading.wait()
    assert not loading.wait(0.01)
    others.word = None
    assert loading.wait()
    assert store.finish_load(loading) is not None
    assert "drop_part" not in names_sent(others)
    store.close()


def test_what_continues_a_dropped_prefix_is_dropped_by_all_too(tmp_path: Path) -> None:
    store, model, others = open_store(tmp_path)
    save(store, model)
    save(store, model, TOKENS * 2)
    assert len(store) == 2
    loading = store.start_load([*TOKENS, 1])
    names_sent(others)
    others.word = "it is damaged"
    assert store.finish_load(loading) is None
    assert names_sent(others) == ["join_parts", "drop_part", "drop_part"]
    assert len(store) == 0
    store.close()


def test_what_a_head_keeps_is_on_rank_0_alone(tmp_path: Path) -> None:
    store, _, others = open_store(tmp_path)
    own = store.sibling("head", needs_state=False)
    arrays = [mx.zeros((1, 2, len(TOKENS), 4))]
    own.save(TOKENS, lambda start, end: [one[:, :, start:end] for one in arrays], list)
    taken = own.finish_load(own.start_load([*TOKENS, 1]))
    assert taken is not None
    assert taken[0](0, 5)[0].shape == (1, 2, 5, 4)
    assert names_sent(others) == []
    # The files of another part are none of the model's.
    assert store.match([*TOKENS, 1]) == 0
    store.close()


def test_a_rank_that_cannot_keep_files_ends_the_start(tmp_path: Path) -> None:
    model, others = make_shared()
    others.word = "no prefixes are kept in files here"
    with pytest.raises(OSError, match="no prefixes are kept"):
        SharedPrefixStore(model, tmp_path, ROOM, "a", False)
