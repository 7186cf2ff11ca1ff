"""The response store stays within its limits, and every stored response can be continued."""

from pydantic_core import to_json

from reprise.server.openai_api.responses.items import as_listed
from reprise.server.openai_api.responses.store import (
    ITEM_OVERHEAD_BYTES,
    OVERHEAD_BYTES,
    ResponseStore,
    stored_response,
)


def add(store, number, previous=None, owner="", size=100):
    item = to_json(as_listed({"role": "user", "content": "x" * size}, f"msg_{number}"))
    response = {"id": f"resp_{number}", "output": []}
    stored = stored_response(response, previous, [(f"msg_{number}", item)])
    store.add(owner, f"resp_{number}", stored)


def ids(store, count, owner=""):
    return [n for n in range(count) if (owner, f"resp_{n}") in store]


def test_the_least_recently_used_response_is_evicted():
    store = ResponseStore(10**9, max_responses=3)
    for number in range(3):
        add(store, number)
    store.find("", "resp_0")
    add(store, 3)
    assert ids(store, 4) == [0, 2, 3]
    assert len(store) == 3


def test_the_store_stays_within_max_bytes():
    store = ResponseStore(50_000)
    for number in range(100):
        add(store, number, size=number * 20)
        assert store.num_bytes <= 50_000
    assert 0 < len(store) < 30
    kept = ids(store, 100)
    assert kept == list(range(100 - len(kept), 100))


def test_a_response_too_large_for_the_store_is_not_stored():
    store = ResponseStore(5000)
    add(store, 0, size=5000)
    assert (len(store), store.num_bytes) == (0, 0)


def test_a_store_of_size_zero_stores_nothing():
    store = ResponseStore(0)
    add(store, 0)
    assert (len(store), store.num_bytes) == (0, 0)


def test_a_turn_counts_once_until_nothing_continues_it():
    store = ResponseStore(10**9)
    add(store, 0, size=10_000)
    alone = store.num_bytes
    first = store.find("", "resp_0").turn
    add(store, 1, first)
    add(store, 2, store.find("", "resp_1").turn)
    add(store, 3, first)
    assert store.num_bytes < alone + 3 * (3 * OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES)
    store.remove("", "resp_0")
    assert store.num_bytes > 10_000
    assert [item["content"][0]["text"][:1] for item in store.find("", "resp_2").turn.conversation()] == [
        "x"
    ] * 3
    for number in (2, 1, 3):
        store.remove("", f"resp_{number}")
    assert (len(store), store.num_bytes) == (0, 0)


def test_a_released_turn_counts_again_once_it_is_continued():
    store = ResponseStore(10**9)
    add(store, 0, size=10_000)
    turn = store.find("", "resp_0").turn
    store.remove("", "resp_0")
    assert store.num_bytes == 0
    add(store, 1, turn)
    assert store.num_bytes > 10_000
    assert len(store.find("", "resp_1").turn.conversation()) == 2
