"""Find out at load what a model's caches allow, by trying it on a few tokens.

Each *_fault function returns None if the caches allow it, and otherwise one sentence that says why not.
"""

import logging
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from engine.kv_cache.per_row import (
    FittedQuantizedKVCache,
    can_trim,
    is_recurrent,
    leaves,
    make_caches,
)
from engine.kv_cache.rows import BatchedRows, SeparateRows
from engine.kv_cache.slices import can_slice, cut_slice, rebuild, take_state
from engine.kv_cache.sliding_window import WindowKVCache

log = logging.getLogger("reprise.engine")


def has_plain_caches(model: Any) -> bool:
    """Return whether every layer keeps unquantized keys and values of full attention."""
    return all(type(cache) is KVCache for cache in make_prompt_cache(model))


def can_batch(model: Any, kv_bits: int | None = None) -> bool:
    """Return whether rows of different lengths can share a forward, by trying two of them."""
    if kv_bits is not None or not has_plain_caches(model):
        return False
    tokens = [[1, 2, 3, 4], [5, 6]]
    try:
        rows = BatchedRows(model)
        for prompt in tokens:
            caches = make_caches(model)
            model(mx.array([prompt[:-1]]), cache=caches)
            rows.add(caches, len(prompt) - 1)
        together = rows.forward(mx.array([prompt[-1:] for prompt in tokens]))[:, -1]
        alone = mx.concatenate([model(mx.array([prompt]))[:, -1] for prompt in tokens])
        return _agree(together, alone)
    # A model that expects its cache's offset to be a single number may raise anything here.
    except Exception as fault:
        log.info("rows of different lengths cannot share a forward of this model: %s", fault)
        return False


def rollback_fault(model: Any, kv_bits: int | None = None) -> str | None:
    """Explain why this model's caches cannot be rolled back exactly; return None if they can."""
    kinds = {type(cache).__name__: cache for cache in leaves(make_caches(model, kv_bits))}
    unknown = [name for name, cache in kinds.items() if not can_trim(cache) and not is_recurrent(cache)]
    if unknown:
        return f"it keeps a {unknown[0]}, which cannot be rolled back"
    names = " and ".join(sorted(kinds))
    try:
        plain = _last_logits(model, kv_bits, None)
        one, other = (_last_logits(model, kv_bits, rejected) for rejected in ([1, 1, 1], [4, 3, 2]))
        if not mx.array_equal(one, other, equal_nan=True).item():
            return f"rejected tokens leave a trace in its {names}"
        if not _agree(one, plain):
            return f"its {names} give other logits after a rollback"
    except Exception as fault:
        return f"its {names} cannot be rolled back: {fault}"
    return None


def kv_bits_fault(model: Any, kv_bits: int) -> str | None:
    """Explain why this model's keys and values cannot be quantized; return None if they can."""
    caches = make_caches(model, kv_bits)
    if not any(isinstance(cache, FittedQuantizedKVCache) for cache in caches):
        return "it has no plain keys and values to quantize"
    try:
        mx.eval(model(mx.array([[1, 2]]), cache=caches))
    # A model that does not support quantized caches may raise anything here.
    except Exception as fault:
        return str(fault)
    return None


def prefix_fault(model: Any, kv_bits: int | None = None) -> str | None:
    """Explain why this model's caches cannot be split into KV slices and state; return None if they can."""
    tokens = [1, 2, 3, 4, 5, 6, 7]
    make = lambda: make_caches(model, kv_bits)  # noqa: E731
    kinds = {type(cache).__name__ for cache in leaves(make())}
    if unknown := [type(cache).__name__ for cache in leaves(make()) if not _is_known(cache)]:
        return f"it keeps a {unknown[0]}, which cannot be split and rebuilt"
    try:
        plain = make()
        model(mx.array([tokens[:4]]), cache=plain)
        kv_slices, state = [cut_slice(plain, 0, 1), cut_slice(plain, 1, 4)], take_state(plain)
        expected = model(mx.array([tokens[4:]]), cache=plain)
        again = rebuild(make(), kv_slices if kv_slices[0] else [], state, 4)
        if not mx.array_equal(expected, model(mx.array([tokens[4:]]), cache=again), equal_nan=True).item():
            return f"its {' and '.join(sorted(kinds))} give other logits after being split and rebuilt"
    except Exception as fault:
        return f"its {' and '.join(sorted(kinds))} cannot be split and rebuilt: {fault}"
    return None


def _last_logits(model: Any, kv_bits: int | None, rejected: Sequence[int] | None) -> mx.array:
    """Return the logits after 5 + 1 + 1 tokens: (vocabulary,).

    rejected: tokens to feed with the sixth and roll back before the seventh; None for no rollback.
    """
    rows = SeparateRows(model)
    caches = make_caches(model, kv_bits)
    model(mx.array([[1, 2, 3, 4, 5]]), cache=caches)
    rows.add(caches, 5)
    held = 5
    if rejected is not None:
        rows.forward_ragged([[6, *rejected]])
        held = rows.roll_back(0, 6)
    return rows.forward_ragged([[6, 7][held - 5 :]])[0, -1]


def _agree(ours: mx.array, theirs: mx.array) -> bool:
    # Kernels may round differently, but a wrong position, mask or state differs by much more than this.
    return bool((mx.abs(ours - theirs).max() <= 0.1 * mx.abs(theirs).max()).item())


def _is_known(cache: Any) -> bool:
    return can_slice(cache) or isinstance(cache, WindowKVCache) or is_recurrent(cache)
