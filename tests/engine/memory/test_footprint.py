"""The memory of rows is estimated from what caches really hold, for every kind of cache."""

import mlx.core as mx
import pytest

from reprise.engine.kv_cache.per_row import arrays_of, leaves, make_caches
from reprise.engine.kv_cache.rows import evaluate
from reprise.engine.memory.estimate import Footprint, measure
from tests.engine.support import CONFIGS, make_model

CHUNK = 64
KINDS = [(name, None) for name in CONFIGS] + [("llama", 8), ("llama", 4)]


@pytest.mark.parametrize(("name", "kv_bits"), KINDS)
def test_rows_take_what_was_estimated(name: str, kv_bits: int | None) -> None:
    model = make_model(name)
    footprint = measure(model, kv_bits)
    caches, length = make_caches(model, kv_bits), 0
    for chunk in (1, 50, CHUNK, CHUNK, 7, CHUNK, CHUNK, CHUNK, CHUNK, CHUNK, CHUNK, CHUNK):
        model(mx.ones((1, chunk), mx.int32), cache=caches)
        evaluate(caches)
        length += chunk
        held = sum(array.nbytes for cache in leaves(caches) for array in arrays_of(cache))
        # Buffers grow by 256 tokens, windows keep up to 640 additional tokens, and a snapshot doubles state.
        assert held <= footprint.row_bytes(length + 256, CHUNK)
        assert footprint.row_bytes(length, CHUNK) <= 2 * held


def test_a_forward_takes_more_for_more_tokens_fed_and_cached() -> None:
    footprint = Footprint(0, 1, fed_bytes=100, seen_bytes=0.5)
    assert footprint.forward_bytes(10, 0) == 1000
    assert footprint.forward_bytes(10, 10 * 100) == 1500
    assert measure(make_model("llama")).fed_bytes > 0


def test_a_window_takes_no_more_once_it_is_full() -> None:
    footprint = Footprint(0, 10, windows=((3, 16),))
    growth = footprint.row_bytes(9001, CHUNK) - footprint.row_bytes(9000, CHUNK)
    assert growth == 10
