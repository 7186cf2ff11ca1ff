"""The prefix cache holds what it says, within its bytes."""

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from engine.prefix_cache import PrefixCache
from engine.rows import Caches

BYTES_PER_TOKEN = 2 * 4 * 4


def caches_of(tokens: list[int]) -> Caches:
    """One layer whose keys are the tokens themselves."""
    cache = KVCache()
    keys = mx.broadcast_to(mx.array(tokens, mx.float32)[None, None, :, None], (1, 1, len(tokens), 4))
    cache.keys, cache.values, cache.offset = mx.contiguous(keys), mx.contiguous(keys), len(tokens)
    return [cache]


def test_the_longest_common_beginning_is_found() -> None:
    cache = PrefixCache(10**6)
    cache.put([1, 2, 3, 4], caches_of([1, 2, 3, 4]))
    cache.put([1, 2, 9], caches_of([1, 2, 9]))
    found = cache.find([1, 2, 3, 7])
    assert found is not None
    caches, length = found
    assert length == 3
    assert caches[0].keys[0, 0, :, 0].tolist() == [1, 2, 3]
    assert cache.find([8, 1, 2]) is None


def test_the_last_token_of_a_prompt_is_left_to_compute() -> None:
    cache = PrefixCache(10**6)
    cache.put([1, 2, 3], caches_of([1, 2, 3]))
    assert cache.find([1, 2, 3])[1] == 2  # type: ignore[index]
    assert cache.find([1]) is None


def test_the_least_recently_used_goes_first_and_bytes_are_counted() -> None:
    cache = PrefixCache(8 * BYTES_PER_TOKEN)
    cache.put([1, 1, 1], caches_of([1, 1, 1]))
    cache.put([2, 2, 2], caches_of([2, 2, 2]))
    cache.find([1, 1, 1, 5])
    cache.put([3, 3, 3], caches_of([3, 3, 3]))
    assert cache.num_bytes == 6 * BYTES_PER_TOKEN
    assert cache.find([2, 2, 2, 5]) is None
    assert cache.find([1, 1, 1, 5]) is not None
    cache.put([4] * 9, caches_of([4] * 9))
    assert len(cache) == 2


def test_an_entry_that_another_extends_is_dropped() -> None:
    cache = PrefixCache(10**6)
    cache.put([1, 2], caches_of([1, 2]))
    cache.put([1, 2, 3], caches_of([1, 2, 3]))
    assert len(cache) == 1
    assert cache.num_bytes == 3 * BYTES_PER_TOKEN
    cache.put([1, 2], caches_of([1, 2]))
    assert len(cache) == 1


def test_what_a_row_writes_later_does_not_reach_the_cache() -> None:
    cache = PrefixCache(10**6)
    cache.put([1, 2, 3], caches_of([1, 2, 3]))
    caches, _ = cache.find([1, 2, 3, 4])  # type: ignore[misc]
    caches[0].update_and_fetch(mx.full((1, 1, 1, 4), 99.0), mx.full((1, 1, 1, 4), 99.0))
    caches, _ = cache.find([1, 2, 3, 4])  # type: ignore[misc]
    assert caches[0].keys[0, 0, :, 0].tolist() == [1, 2, 3]
