"""Make one row's caches for a model, and roll them back.

Plain, quantized and window caches are trimmed by subtracting from a length. Recurrent state cannot be
trimmed. A snapshot of it only needs references to its arrays, because MLX arrays are immutable.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from math import ceil
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from reprise.engine.kv_cache.sliding_window import ChunkedWindowKVCache, WindowKVCache

GROUP_SIZES = (64, 128, 32)
"""Group sizes that MLX can quantize with, in order of preference."""

Caches = list[Any]
"""One row's caches in mlx-lm's form: one cache per layer."""


def fitting_group_size(*dims: int) -> int:
    """Return a group size to quantize with that divides all dimensions. Raises ValueError if none does."""
    for size in GROUP_SIZES:
        if not any(dim % size for dim in dims):
            return size
    raise ValueError(f"keys and values with {dims} numbers per head cannot be quantized in groups of 32")


class FittedQuantizedKVCache(QuantizedKVCache):
    """mlx-lm's quantized keys and values, with a group size that divides the dimensions of the heads."""

    def __init__(self, bits: int) -> None:
        super().__init__(bits=bits)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        """Append keys and values, as mlx-lm's cache does. Raises ValueError if no group size fits."""
        if self.keys is None:
            self.group_size = fitting_group_size(keys.shape[-1], values.shape[-1])
        return super().update_and_fetch(keys, values)

    def restore(self, keys: Sequence[mx.array], values: Sequence[mx.array], offset: int) -> None:
        """Set the keys and values of offset tokens: three arrays each, quantized with this cache's bits."""
        packed, scales, _ = keys
        group_size = packed.shape[-1] * 32 // self.bits // scales.shape[-1]
        self.state = tuple(keys), tuple(values), offset, group_size, self.bits


@singledispatch
def make_caches(model: Any, kv_bits: int | None = None) -> Caches:
    """Make empty caches for one row to prefill.

    kv_bits: quantize keys and values of full attention to that many bits; None for no quantization. Sliding
        windows and recurrent state are never quantized.
    """
    return [_substitute(cache, kv_bits) for cache in make_prompt_cache(model)]


def _substitute(cache: Any, kv_bits: int | None) -> Any:
    """Return our replacement of an mlx-lm cache, or the cache itself."""
    if type(cache) is RotatingKVCache and not cache.keep:
        return WindowKVCache(cache.max_size)
    if type(cache) is ChunkedKVCache:
        return ChunkedWindowKVCache(cache.chunk_size)
    if type(cache) is CacheList:
        # A layer with several caches may store anything as keys and values, so they are not quantized.
        return CacheList(*(_substitute(child, None) for child in cache.caches))
    if type(cache) is KVCache and kv_bits is not None:
        return FittedQuantizedKVCache(kv_bits)
    return cache


def leaves(caches: Sequence[Any]) -> Iterator[Any]:
    """Yield all caches in order, lists of caches flattened."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


def arrays_of(cache: Any) -> list[mx.array]:
    """Return all arrays that a cache holds now."""
    flat: Any = [] if cache.empty() else tree_flatten(cache.state)
    return [leaf for _, leaf in flat if isinstance(leaf, mx.array)]


@dataclass
class CacheBytes:
    """Bytes of a row's caches, from the shapes of their arrays.

    fixed_bytes: whatever the row's length. token_bytes: per token, in the layers that keep every token.
    windows: tokens of each sliding window -> bytes per token. layer_bytes: per token, in the largest layer.
    """

    fixed_bytes: int = 0
    token_bytes: int = 0
    windows: dict[int, int] = field(default_factory=dict)
    layer_bytes: int = 0


def count_bytes(caches: Caches) -> CacheBytes:
    """Count the bytes of caches that were used. Their arrays need not be computed."""
    counted = CacheBytes()
    for cache in leaves(caches):
        num_bytes = sum(array.nbytes for array in arrays_of(cache))
        keys = getattr(cache, "keys", None)
        if keys is None:
            counted.fixed_bytes += num_bytes
            continue
        each = ceil(num_bytes / (keys[0] if isinstance(keys, tuple | list) else keys).shape[-2])
        counted.layer_bytes = max(counted.layer_bytes, each)
        if window := getattr(cache, "window", None) or getattr(cache, "max_size", None):
            counted.windows[window] = counted.windows.get(window, 0) + each
        else:
            counted.token_bytes += each
    return counted


def cache_arrays(caches: Sequence[object]) -> list[object]:
    """Return the arrays of all caches, for the caller to evaluate."""
    return [cache.state for cache in caches if not cache.empty()]  # type: ignore[attr-defined]


def is_recurrent(cache: Any) -> bool:
    """Return whether a cache keeps state that every token overwrites."""
    return type(cache) is ArraysCache


def keeps_all_tokens(cache: Any) -> bool:
    """Return whether a cache grows with every token: it has neither recurrent state nor a window."""
    return not is_recurrent(cache) and not isinstance(cache, WindowKVCache | RotatingKVCache)


def can_trim(cache: Any) -> bool:
    """Return whether the tokens of a cache's last update can be trimmed off exactly."""
    return type(cache) in (KVCache, FittedQuantizedKVCache) or isinstance(cache, WindowKVCache)


class Snapshot:
    """The contents of a row's caches at one length, from which the caches can be restored after an update."""

    def __init__(self, caches: Caches, length: int) -> None:
        """Take a snapshot. caches: they hold length tokens, and each is recurrent or can be trimmed."""
        self.length = length
        self._caches = list(leaves(caches))
        self._states = [list(cache.cache) if is_recurrent(cache) else None for cache in self._caches]

    def restore(self, held: int, length: int) -> int:
        """Forget tokens past length; return how many tokens the caches then hold.

        held: tokens that the caches hold now. length: self.length <= length < held.
        Without recurrent state, all caches are trimmed to length. With it, all caches go back to self.length,
        because their lengths must agree.
        Raises RuntimeError if a cache cannot be trimmed that far.
        """
        if any(state is not None for state in self._states):
            length = self.length
        for cache, state in zip(self._caches, self._states, strict=True):
            if state is not None:
                cache.cache = list(state)
            elif cache.trim(held - length) != held - length:
                raise RuntimeError(f"a {type(cache).__name__} of {held} tokens was not trimmed to {length}")
        return length
