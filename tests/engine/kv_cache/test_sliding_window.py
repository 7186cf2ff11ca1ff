"""A window cache gives what attention over the whole sequence gives, and keeps a bounded number of tokens."""

import random

import mlx.core as mx
import pytest
from mlx_lm.models.base import create_causal_mask, scaled_dot_product_attention
from mlx_lm.models.cache import KVCache

from reprise.engine.kv_cache.sliding_window import BLOCK_TOKENS, ROLLBACK_TOKENS, SLACK_TOKENS, WindowKVCache

NUM_TOKENS = 1500


@pytest.fixture(scope="module")
def numbers() -> mx.array:
    mx.random.seed(3)
    return mx.random.normal((1, 2, NUM_TOKENS, 8))


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("window", [1, 16, 64, 100, 300])
def test_any_widths_equal_attention_over_everything(window: int, with_sinks: bool, numbers: mx.array) -> None:
    sinks = mx.array([0.3, -0.7]) if with_sinks else None
    plain = scaled_dot_product_attention(
        numbers, numbers, numbers, KVCache(), 0.4, create_causal_mask(NUM_TOKENS, 0, window), sinks
    )
    rng = random.Random(window)
    cache, outs = WindowKVCache(window), []
    while cache.offset < NUM_TOKENS:
        width = min(rng.choice((1, 1, 1, 2, 5, 8, 40, 200)), NUM_TOKENS - cache.offset)
        mask = cache.make_mask(width, window_size=rng.choice((None, window, window + 50)))
        fed = numbers[:, :, cache.offset : cache.offset + width]
        keys, values = cache.update_and_fetch(fed, fed)
        assert mx.array_equal(cache.keys_and_values()[0], keys).item()
        outs.append(scaled_dot_product_attention(fed, keys, values, cache, 0.4, mask, sinks))
    assert mx.array_equal(mx.concatenate(outs, axis=2), plain).item()


def test_make_mask_takes_a_narrower_window(numbers: mx.array) -> None:
    cache = WindowKVCache(100)
    for start, end in ((0, 150), (150, 151), (151, 158)):
        fed = numbers[:, :, start:end]
        mask = cache.make_mask(end - start, window_size=20)
        keys, values = cache.update_and_fetch(fed, fed)
        ours = scaled_dot_product_attention(fed, keys, values, cache, 0.4, mask)
        all_fed = numbers[:, :, :end]
        mask = create_causal_mask(end, 0, 20)
        plain = scaled_dot_product_attention(all_fed, all_fed, all_fed, KVCache(), 0.4, mask)
        assert mx.array_equal(ours, plain[:, :, start:]).item()


def test_no_mask_is_made_before_the_window_is_full() -> None:
    cache = WindowKVCache(16)
    assert cache.empty()
    assert cache.make_mask(1) is None
    assert cache.make_mask(16) == "causal"
    assert isinstance(cache.make_mask(17), mx.array)
    assert isinstance(cache.make_mask(16, return_array=True), mx.array)


def test_its_bytes_are_bounded(numbers: mx.array) -> None:
    cache = WindowKVCache(100)
    for at in range(NUM_TOKENS):
        fed = numbers[:, :, at : at + 1]
        cache.update_and_fetch(fed, fed)
    max_columns = 100 + BLOCK_TOKENS + ROLLBACK_TOKENS + SLACK_TOKENS
    assert sum(array.nbytes for array in cache.state if array is not None) <= 2 * max_columns * 2 * 8 * 4
    assert not cache.empty()


def test_rolling_back_over_many_updates(numbers: mx.array) -> None:
    rng = random.Random(3)
    cache, furthest = WindowKVCache(16), 0
    while furthest < NUM_TOKENS:
        fed = numbers[:, :, cache.offset : cache.offset + 1]
        keys, _ = cache.update_and_fetch(fed, fed)
        assert mx.array_equal(keys, numbers[:, :, cache.offset - keys.shape[2] : cache.offset]).item()
        furthest = max(furthest, cache.offset)
        if rng.random() < 0.01:
            cache.trim(rng.randint(0, cache.offset - max(0, furthest - ROLLBACK_TOKENS)))


def test_rolling_back_stops_where_the_window_was_dropped(numbers: mx.array) -> None:
    cache = WindowKVCache(16)
    for start, end in ((0, 600), (600, 1000)):
        fed = numbers[:, :, start:end]
        cache.update_and_fetch(fed, fed)
    assert cache.trim(400) == 400
    assert cache.offset == 600
    with pytest.raises(ValueError, match="a window of 16 tokens at 600 cannot be trimmed by 400"):
        cache.trim(400)
