"""One row's caches: made for a model, taken apart, and taken back to what they held before.

Plain, quantised and window caches are cut by a subtraction. Recurrent state cannot be cut, but MLX arrays
are immutable: keeping the old ones is keeping references.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from engine.kv_cache.sliding_window import WindowKVCache

GROUP_SIZES = (64, 128, 32)
"""Group sizes that MLX can quantise with, the usual one first."""

Caches = list[Any]
"""One row's caches in mlx-lm's form, a cache a layer."""


class FittedQuantizedKVCache(QuantizedKVCache):
    """mlx-lm's quantised keys and values, with a group size that fits the heads it is given."""

    def __init__(self, bits: int) -> None:
        super().__init__(bits=bits)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> Any:
        """As mlx-lm's. Raises ValueError if no group size divides the heads."""
        if self.keys is None:
            dims = keys.shape[-1], values.shape[-1]
            fitting = [size for size in GROUP_SIZES if not any(dim % size for dim in dims)]
            if not fitting:
                raise ValueError(f"keys and values of {dims} numbers cannot be quantised in groups of 32")
            self.group_size = fitting[0]
        return super().update_and_fetch(keys, values)

    def restore(self, keys: Sequence[mx.array], values: Sequence[mx.array], offset: int) -> None:
        """Hold keys and values of offset tokens, quantised as this cache does it, three arrays each."""
        packed, scales, _ = keys
        group_size = packed.shape[-1] * 32 // self.bits // scales.shape[-1]
        self.state = tuple(keys), tuple(values), offset, group_size, self.bits


def make_caches(model: Any, kv_bits: int | None = None) -> Caches:
    """Empty caches for one row to prefill.

    kv_bits: quantise full attention's keys and values to that many bits; windows and state stay as they are.
    """
    return [_substitute(cache, kv_bits) for cache in make_prompt_cache(model)]


def _substitute(cache: Any, kv_bits: int | None) -> Any:
    if type(cache) is RotatingKVCache and not cache.keep:
        return WindowKVCache(cache.max_size)
    if type(cache) is CacheList:
        # What such a list calls keys and values may be anything, so it is not quantised.
        return CacheList(*(_substitute(child, None) for child in cache.caches))
    if type(cache) is KVCache and kv_bits is not None:
        return FittedQuantizedKVCache(kv_bits)
    return cache


def leaves(caches: Sequence[Any]) -> Iterator[Any]:
    """The caches themselves and, in place of lists of caches, those in them."""
    for cache in caches:
        if isinstance(cache, CacheList):
            yield from leaves(cache.caches)
        else:
            yield cache


def arrays_of(cache: Any) -> list[mx.array]:
    """All arrays that a cache holds now."""
    flat: Any = [] if cache.empty() else tree_flatten(cache.state)
    return [leaf for _, leaf in flat if isinstance(leaf, mx.array)]


def is_recurrent(cache: Any) -> bool:
    """Whether it keeps state that every token overwrites."""
    return type(cache) is ArraysCache


def can_trim(cache: Any) -> bool:
    """Whether the tokens of its last update can be cut off exactly."""
    return type(cache) in (KVCache, FittedQuantizedKVCache, WindowKVCache)


class Snapshot:
    """What a row's caches hold at some length, for going back to it after the next update."""

    def __init__(self, caches: Caches, length: int) -> None:
        """caches: they hold length tokens, and are of kinds that can be cut or are recurrent."""
        self.length = length
        self._caches = list(leaves(caches))
        self._states = [list(cache.cache) if is_recurrent(cache) else None for cache in self._caches]

    def restore(self, held: int, length: int) -> int:
        """Forget all that was added past length tokens; returns how many the caches then hold.

        held: tokens that the caches hold now. length: self.length <= length < held. Caches without
        recurrent state are cut to length. With it all of them go back to self.length, since they must
        agree, and the tokens between are to be fed again.
        """
        if any(state is not None for state in self._states):
            length = self.length
        for cache, state in zip(self._caches, self._states, strict=True):
            if state is not None:
                cache.cache = list(state)
            elif cache.trim(held - length) != held - length:
                raise RuntimeError(f"a {type(cache).__name__} of {held} tokens was not cut to {length}")
        return length
