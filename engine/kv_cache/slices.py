"""Split one row's caches into KV slices and state, which the prefix cache stores, and rebuild them.

A *KV slice* is the keys and values of any run of tokens, in all layers that keep every token. A *state
snapshot* is what the other layers hold: sliding windows and recurrent state. It depends on all tokens up to
the length at which it was taken and can be used at that length only.

Where a model is on several machines, each has its part of every slice and state, and these functions are
commands to all of them (engine/distributed/mirrored.py).
"""

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from reprise.engine.kv_cache.buffers import row_arrays
from reprise.engine.kv_cache.per_row import Caches, FittedQuantizedKVCache, is_recurrent, leaves
from reprise.engine.kv_cache.sliding_window import WindowKVCache

KVSlice = list[mx.array]
"""Keys and values of consecutive tokens, of each layer that keeps every token; axis 2 is the tokens.

In the order of the layers: two arrays per layer, or six if quantized (packed, scales and biases of each).
"""

State = list[mx.array | None]
"""All arrays of the layers that KV slices do not cover, at one length; None for an array not yet set."""


def has_state(caches: Caches) -> bool:
    """Return whether these caches hold anything that KV slices do not cover."""
    return any(not can_slice(cache) for cache in leaves(caches))


@singledispatch
def cut_slice(caches: Caches, start: int, end: int) -> KVSlice:
    """Copy the keys and values of tokens [start, end), not yet evaluated."""
    kept = [cache for cache in leaves(caches) if can_slice(cache)]
    # A view would keep the whole buffer alive.
    return [mx.contiguous(array[:, :, start:end]) for cache in kept for array in row_arrays(cache)]


def sub_slice(kv_slice: KVSlice, start: int, end: int) -> KVSlice:
    """Copy tokens [start, end) of a KV slice, counted from the slice's first token."""
    return [mx.contiguous(array[:, :, start:end]) for array in kv_slice]


@singledispatch
def leading(kv_slice: KVSlice, num_tokens: int) -> KVSlice:
    """Return a KV slice of the first num_tokens tokens of another, as views of its arrays."""
    return [array[:, :, :num_tokens] for array in kv_slice]


@singledispatch
def split_slice(kv_slice: KVSlice, at: int) -> KVSlice:
    """Remove the tokens before index at from a KV slice; return them as another slice, evaluated.

    If this raises, some arrays may have been shortened and others not: the slice cannot be used then.
    """
    upper: KVSlice = []
    # One array after the other, as each is in memory twice while it is split.
    for place, array in enumerate(kv_slice):
        halves = sub_slice([array], 0, at) + sub_slice([array], at, array.shape[2])
        mx.eval(halves)
        upper.append(halves[0])
        kv_slice[place] = halves[1]
    return upper


@singledispatch
def take_state(caches: Caches, length: int | None = None) -> State:
    """Copy the state as it is now; later updates of the caches do not change the copy.

    length: take the state at this earlier length instead, at least that before the last update; only if all
        caches can be trimmed.
    """
    taken: State = []
    for cache in leaves(caches):
        if isinstance(cache, WindowKVCache):
            taken += map(mx.contiguous, cache.live_columns(length))
        elif is_recurrent(cache):
            taken += [None if array is None else mx.contiguous(array) for array in cache.cache]
    return taken


def start_copies(*copies: Sequence[mx.array | None]) -> None:
    """Start computing arrays one after the other, without waiting for them.

    The arrays that are copied may not be computed yet either, such as buffers that have just shrunk. If all
    were computed at once, the old and the new buffers of every layer might be in memory together.
    """
    for arrays in copies:
        for array in arrays:
            if array is not None:
                mx.async_eval(array)


def num_bytes(arrays: Sequence[mx.array | None]) -> int:
    """Return the bytes of a KV slice or a state."""
    return sum(array.nbytes for array in arrays if array is not None)


@singledispatch
def rebuild(empty: Caches, kv_slices: Sequence[KVSlice], state: State, length: int) -> Caches:
    """Fill empty caches with length tokens and return them.

    kv_slices: KV slices of consecutive runs of tokens, length tokens in all; may be empty if no layer keeps
        every token.
    state: the state at that length; empty if there is none.
    """
    joined = iter([_concatenate(arrays) for arrays in zip(*kv_slices, strict=True)])
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


def _concatenate(arrays: Sequence[mx.array]) -> mx.array:
    # Slicing makes a new array, so that later writes by the cache do not reach the stored KV slice.
    return arrays[0][:] if len(arrays) == 1 else mx.concatenate(list(arrays), axis=2)
