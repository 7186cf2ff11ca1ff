"""Find out at load what this model's caches allow: one forward for all rows, and exact rollback."""

import logging
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from engine.kv_cache.per_row import is_cuttable, is_recurrent, leaves, make_caches
from engine.kv_cache.rows import BatchedRows, SeparateRows

log = logging.getLogger("reprise.engine")


def has_plain_caches(model: Any) -> bool:
    """Whether every layer keeps plain keys and values of full attention."""
    return all(type(cache) is KVCache for cache in make_prompt_cache(model))


def can_batch(model: Any, kv_bits: int | None = None) -> bool:
    """Whether rows of different lengths can share a forward: tried once, on two of them."""
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
    # Model code that takes its cache's offset for a single number fails here in its own way.
    except Exception as fault:
        log.info("rows of different lengths cannot share a forward of this model: %s", fault)
        return False


def rollback_fault(model: Any, kv_bits: int | None = None) -> str | None:
    """Why this model's caches cannot be rolled back exactly, in one sentence; None if they can be: tried."""
    kinds = {type(cache).__name__: cache for cache in leaves(make_caches(model, kv_bits))}
    unknown = [name for name, cache in kinds.items() if not is_cuttable(cache) and not is_recurrent(cache)]
    if unknown:
        return f"it keeps a {unknown[0]}, which cannot be rolled back"
    names = " and ".join(sorted(kinds))
    try:
        plain = _last_logits(model, kv_bits, None)
        one, other = (_last_logits(model, kv_bits, rejected) for rejected in ([1, 1, 1], [4, 3, 2]))
        if not mx.array_equal(one, other, equal_nan=True).item():
            return f"rejected tokens leave a trace in its {names}"
        if not _agree(one, plain):
            return f"after rolling back its {names} it does not go on as it did"
    except Exception as fault:
        return f"its {names} cannot be rolled back: {fault}"
    return None


def _last_logits(model: Any, kv_bits: int | None, rejected: Sequence[int] | None) -> mx.array:
    """Logits after 5 + 1 + 1 tokens, (vocabulary,); unless None, rejected ones were fed before the last."""
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
    # Kernels may round differently; a wrong position, mask or state is far off.
    return bool((mx.abs(ours - theirs).max() <= 0.1 * mx.abs(theirs).max()).item())
