"""One row's caches taken apart, and put together again: what the prefix cache keeps of them.

Of keys and values any stretch of tokens can be cut out: a *strip*. A window and recurrent *state* stand for
all tokens up to where they were taken, and are of use at that length alone.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from engine.kv_cache.per_row import Caches, FittedQuantizedKVCache, is_recurrent, leaves
from engine.kv_cache.sliding_window import WindowKVCache

KVSlice = list[mx.array]
"""Of every layer that keeps them, keys and values of some tokens in a row; tokens are axis 2."""

State = list[mx.array | None]
"""All arrays of the layers that no strip covers, at one length."""


def has_state(caches: Caches) -> bool:
    """Whether strips alone do not make up these caches."""
    return any(not can_slice(cache) for cache in leaves(caches))


def cut_slice(caches: Caches, start: int, end: int) -> KVSlice:
    """Copies of what the caches keep for tokens start .. end, not yet evaluated."""
    kept = [cache for cache in leaves(caches) if can_slice(cache)]
    # Views would keep the whole buffer alive.
    return [mx.contiguous(array[:, :, start:end]) for cache in kept for array in _columns(cache)]


def sub_slice(kv_slice: KVSlice, start: int, end: int) -> KVSlice:
    """Copies of tokens start .. end of a strip, counted from its beginning."""
    return [mx.contiguous(array[:, :, start:end]) for array in kv_slice]


def take_state(caches: Caches) -> State:
    """The state as it is now; later updates of the caches do not reach it."""
    taken: State = []
    for cache in leaves(caches):
        if isinstance(cache, WindowKVCache):
            taken += map(mx.contiguous, cache.live_columns())
        elif is_recurrent(cache):
            taken += [None if array is None else mx.contiguous(array) for array in cache.cache]
    return taken


def num_bytes(arrays: Sequence[mx.array | None]) -> int:
    """Bytes of a strip or a state."""
    return sum(array.nbytes for array in arrays if array is not None)


def rebuild(empty: Caches, kv_slices: Sequence[KVSlice], state: State, length: int) -> Caches:
    """Fill empty caches with strips that follow one another and the state behind them: length tokens."""
    joined = iter([_concatenated(arrays) for arrays in zip(*kv_slices, strict=True)])
    states = iter(state)
    for cache in leaves(empty):
        if isinstance(cache, WindowKVCache):
            window = [array for array in (next(states), next(states)) if array is not None]
            cache.restore(window[0], window[1], length)
        elif is_recurrent(cache):
            cache.cache = [next(states) for _ in cache.cache]
        elif isinstance(cache, FittedQuantizedKVCache):
            keys, values = ([next(joined) for _ in range(3)] for _ in "kv")
            cache.restore(keys, values, length)
        else:
            cache.keys, cache.values, cache.offset = next(joined), next(joined), length
    return empty


def can_slice(cache: Any) -> bool:
    """Return whether a cache keeps the keys and values of every token, so that runs of them can be copied."""
    return type(cache) in (KVCache, FittedQuantizedKVCache)


def _columns(cache: Any) -> list[mx.array]:
    # Quantised ones are three arrays each.
    both = (cache.keys, cache.values)
    return [*both] if type(cache) is KVCache else [array for three in both for array in three]


def _concatenated(arrays: Sequence[mx.array]) -> mx.array:
    # Slicing makes an array of its own, so that what is written to it later stays out of the strip.
    return arrays[0][:] if len(arrays) == 1 else mx.concatenate(list(arrays), axis=2)
