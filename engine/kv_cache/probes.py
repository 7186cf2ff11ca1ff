"""Find out what a model's caches can do, by trying it on a few tokens at load.

Each *_fault function returns None if the caches pass its trial, else a sentence with the reason.
"""

import logging
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from reprise.engine.kv_cache.buffers import can_slice, cut_slice, rebuild, take_state
from reprise.engine.kv_cache.per_row import (
    Caches,
    FittedQuantizedKVCache,
    can_trim,
    is_recurrent,
    leaves,
    make_caches,
)
from reprise.engine.kv_cache.rows import Sharing, make_batched_rows, make_rows
from reprise.engine.kv_cache.sliding_window import WindowKVCache

log = logging.getLogger("reprise.engine")

SHORT_WINDOW = 8
"""Tokens of a sliding window while batching is tried."""

SHORT_LIMIT = 8
"""Tokens of the first group of rows while groups are tried."""


def find_sharing(model: Any, kv_bits: int | None = None) -> Sharing:
    """Find out how much rows of different lengths can share in a forward; log why not more."""
    if fault := batch_fault(model, kv_bits):
        log.info("each row has a forward pass of its own: %s", fault)
        return Sharing.NOTHING
    if not batch_fault(model, kv_bits, SHORT_LIMIT):
        return Sharing.GROUPS
    if fault := batch_fault(model, kv_bits, SHORT_LIMIT, by_layer=True):
        log.info("short rows take as much memory as the longest: %s", fault)
        return Sharing.BUFFERS
    return Sharing.LAYERS


def batch_fault(
    model: Any, kv_bits: int | None = None, first_limit: int | None = None, by_layer: bool = False
) -> str | None:
    """Explain why rows of different lengths cannot share a forward; return None if they can.

    first_limit, by_layer: see BatchedRows; a first_limit as short as SHORT_LIMIT makes a group for each row.
    The trial feeds two rows different numbers of tokens, rolls both back, feeds them a token each, and then
    goes on with the second row alone.
    """
    kept = [[5, 3, 8, 1, 4, 9, 2, 7, 6, 3, 5, 8, 2, 4], [6, 2, 9, 4, 7]]
    more = [[3], [8, 1]]
    kinds = {type(cache).__name__: cache for cache in leaves(make_caches(model, kv_bits))}
    if unknown := [name for name, cache in kinds.items() if not _is_known(cache)]:
        return f"the model keeps a {unknown[0]}, which rows cannot share"
    names = " and ".join(sorted(kinds))
    try:
        rows = make_batched_rows(model, first_limit, by_layer)
        for tokens in kept:
            caches = _make_short_caches(model, kv_bits)
            model(mx.array([tokens[:-3]]), cache=caches)
            rows.add(caches, len(tokens) - 3)
        wide = rows.forward_ragged([[*kept[0][-3:-1], 1, 1], [kept[1][-3], 1, 1]])
        for row, tokens in enumerate(kept):
            # One more token is left to feed the second row.
            if rows.roll_back(row, len(tokens) - 1 - row) != len(tokens) - 1 - row:
                return f"rows that share the model's {names} cannot be rolled back"
        rest = rows.forward_ragged([kept[0][-1:], kept[1][-2:]])
        plain = rows.forward(mx.array([tokens[:1] for tokens in more]))
        rows.remove(0)
        single = rows.forward(mx.array([more[1][1:]]))
        for row, tokens in enumerate(kept):
            caches = _make_short_caches(model, kv_bits)
            alone = model(mx.array([[*tokens, *more[row]]]), cache=caches)[0, -3 - len(more[row]) :]
            parts = [wide[row, : 2 - row], rest[row, : 1 + row], plain[row], *([single[0]] if row else [])]
            if not _agree(mx.concatenate(parts), alone):
                return f"the model's {names} give other logits when rows share them"
    # A model that expects its cache's offset to be a single number may raise anything here.
    except Exception as fault:
        return f"rows cannot share the model's {names}: {fault}"
    return None


def _make_short_caches(model: Any, kv_bits: int | None) -> Caches:
    """Make a row's caches with windows so short that a few tokens exceed them."""
    caches = make_caches(model, kv_bits)
    for cache in leaves(caches):
        # The model itself knows how long chunks are.
        if type(cache) is WindowKVCache:
            cache.window = min(cache.window, SHORT_WINDOW)
    return caches


def rollback_fault(model: Any, kv_bits: int | None = None, sharing: Sharing = Sharing.NOTHING) -> str | None:
    """Explain why this model's caches cannot be rolled back exactly; return None if they can.

    sharing: what the rows of a batch share.
    """
    kinds = {type(cache).__name__: cache for cache in leaves(make_caches(model, kv_bits))}
    unknown = [name for name, cache in kinds.items() if not can_trim(cache) and not is_recurrent(cache)]
    if unknown:
        return f"the model keeps a {unknown[0]}, which cannot be rolled back"
    names = " and ".join(sorted(kinds))
    try:
        plain = _last_logits(model, kv_bits, sharing, None)
        one, other = (_last_logits(model, kv_bits, sharing, rejected) for rejected in ([1, 1, 1], [4, 3, 2]))
        if not mx.array_equal(one, other, equal_nan=True).item():
            return f"rejected tokens leave a trace in the model's {names}"
        if not _agree(one, plain):
            return f"the model's {names} give other logits after a rollback"
    except Exception as fault:
        return f"the model's {names} cannot be rolled back: {fault}"
    return None


def kv_bits_fault(model: Any, kv_bits: int) -> str | None:
    """Explain why this model's keys and values cannot be quantized; return None if they can."""
    caches = make_caches(model, kv_bits)
    if not any(isinstance(cache, FittedQuantizedKVCache) for cache in caches):
        return "the model has no plain keys and values to quantize"
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
    names = " and ".join(sorted({type(cache).__name__ for cache in leaves(make())}))
    if unknown := [type(cache).__name__ for cache in leaves(make()) if not _is_known(cache)]:
        return f"the model keeps a {unknown[0]}, which cannot be split and rebuilt"
    try:
        plain = make()
        model(mx.array([tokens[:4]]), cache=plain)
        kv_slices, state = [cut_slice(plain, 0, 1), cut_slice(plain, 1, 4)], take_state(plain)
        expected = model(mx.array([tokens[4:]]), cache=plain)
        again = rebuild(make(), kv_slices if kv_slices[0] else [], state, 4)
        if not mx.array_equal(expected, model(mx.array([tokens[4:]]), cache=again), equal_nan=True).item():
            return f"the model's {names} give other logits after being split and rebuilt"
    except Exception as fault:
        return f"the model's {names} cannot be split and rebuilt: {fault}"
    return None


def _last_logits(
    model: Any, kv_bits: int | None, sharing: Sharing, rejected: Sequence[int] | None
) -> mx.array:
    """Return the logits after 5 + 1 + 1 tokens: (vocabulary,).

    rejected: tokens fed with the sixth and rolled back before the seventh; None for no rollback.
    """
    rows = make_rows(model, sharing)
    caches = make_caches(model, kv_bits)
    model(mx.array([[1, 2, 3, 4, 5]]), cache=caches)
    rows.add(caches, 5)
    held = 5
    if rejected is not None:
        rows.forward_ragged([[6, *rejected]])
        held = rows.roll_back(0, 6)
    return rows.forward_ragged([[6, 7][held - 5 :]])[0, -1]


def _agree(ours: mx.array, theirs: mx.array) -> bool:
    # Impossible tokens, such as a mask token, have -inf.
    ours, theirs = (mx.where(mx.isinf(logits), 0, logits) for logits in (ours, theirs))
    # Kernels may round differently, but a wrong position, mask or state differs by much more than this.
    return bool((mx.abs(ours - theirs).max() <= 0.1 * mx.abs(theirs).max()).item())


def _is_known(cache: Any) -> bool:
    return can_slice(cache) or isinstance(cache, WindowKVCache) or is_recurrent(cache)
