"""Measure how much memory a model needs besides its weights, from what its caches really hold."""

from dataclasses import dataclass
from math import ceil
from typing import Any

import mlx.core as mx

from engine.kv_cache.per_row import Caches, arrays_of, leaves, make_caches
from engine.kv_cache.rows import evaluate
from engine.kv_cache.sliding_window import max_columns

PROBE_TOKENS = 32
PROBES = 2
"""Number of measurements. The smallest counts: memory that is freed late is not needed."""

CONTEXT_TOKENS = 256
MIN_GROWTH = 0.25
"""Smaller growth of a forward pass's memory over CONTEXT_TOKENS, as a fraction, is treated as noise."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a row's caches, and of what a forward pass needs while it runs.

    fixed_bytes: per row, whatever its length: recurrent state, and a snapshot of it.
    token_bytes: per token in the caches that keep all tokens.
    windows: (bytes per token, tokens) of each kind of sliding window.
    fed_bytes: of a forward pass, per token fed.
    seen_bytes: of a forward pass, per token fed and token in the caches; almost 0 where attention never
        writes its scores to memory.
    """

    fixed_bytes: int
    token_bytes: int
    windows: tuple[tuple[int, int], ...] = ()
    fed_bytes: int = 0
    seen_bytes: float = 0.0

    def row_bytes(self, num_tokens: int, chunk_tokens: int) -> int:
        """Return the bytes of a row's caches for num_tokens, when fed up to chunk_tokens at a time."""
        windows = sum(
            each * min(num_tokens + chunk_tokens, max_columns(window, chunk_tokens))
            for each, window in self.windows
        )
        return self.fixed_bytes + self.token_bytes * num_tokens + windows

    def forward_bytes(self, num_fed: int, num_seen: int) -> int:
        """Return the bytes that a forward pass over num_fed tokens needs; the longest row holds num_seen."""
        return ceil(num_fed * (self.fed_bytes + self.seen_bytes * num_seen))


def measure(model: Any, kv_bits: int | None = None) -> Footprint:
    """Measure a footprint: feed a few tokens, and look at the caches and at MLX's peak memory."""
    caches = make_caches(model, kv_bits)
    first = min(_forward_bytes(model, caches, PROBE_TOKENS, False) for _ in range(PROBES))
    _forward_bytes(model, caches, CONTEXT_TOKENS, False)
    second = min(_forward_bytes(model, caches, PROBE_TOKENS, False) for _ in range(PROBES))
    growth = second - first if second > first * (1 + MIN_GROWTH) else 0
    whole = _forward_bytes(model, caches, PROBE_TOKENS, True) - growth
    fixed_bytes, token_bytes = 0, 0
    windows: dict[int, int] = {}
    for cache in leaves(caches):
        num_bytes = sum(array.nbytes for array in arrays_of(cache))
        keys = getattr(cache, "keys", None)
        if keys is None:
            fixed_bytes += 2 * num_bytes
            continue
        each = ceil(num_bytes / (keys[0] if isinstance(keys, tuple | list) else keys).shape[-2])
        if window := getattr(cache, "window", None) or getattr(cache, "max_size", None):
            windows[window] = windows.get(window, 0) + each
        else:
            token_bytes += each
    return Footprint(
        fixed_bytes,
        token_bytes,
        tuple((each, window) for window, each in windows.items()),
        fed_bytes=ceil(max(first, whole) / PROBE_TOKENS),
        seen_bytes=growth / (PROBE_TOKENS * CONTEXT_TOKENS),
    )


def _forward_bytes(model: Any, caches: Caches, num_tokens: int, is_sampling: bool) -> int:
    """Return the peak bytes of a forward pass, besides what the caches keep.

    is_sampling: whether every position is sampled, as in a verification step.
    """
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    logits = model(mx.ones((1, num_tokens), mx.int32), cache=caches)
    if is_sampling:
        noisy = logits.astype(mx.float32) + mx.random.gumbel(logits.shape, key=mx.random.key(0))
        mx.eval(mx.argmax(noisy, axis=-1))
        del noisy
    evaluate(caches)
    del logits
    return max(0, mx.get_peak_memory() - max(before, mx.get_active_memory()))
