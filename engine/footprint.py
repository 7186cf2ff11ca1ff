"""What a model takes in memory beside its weights, found by looking at what its caches really hold."""

from dataclasses import dataclass
from math import ceil
from typing import Any

import mlx.core as mx

from engine.caches import Caches, arrays_of, leaves, make_caches
from engine.rows import settle
from engine.window import most_columns

PROBE_TOKENS = 32
PROBE_CONTEXT_TOKENS = 128
"""Between the first probe and the second, its own tokens included."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a row's caches, and of what a forward needs while it runs.

    fixed_bytes: of a row, however long: recurrent state, that of a snapshot too.
    token_bytes: of each token in the caches that keep all of them.
    windows: (bytes a token, tokens) of each kind of sliding window.
    fed_bytes: a forward's, for each token that it feeds.
    seen_bytes: a forward's, for each token that it feeds and each in the caches; next to nothing where
        attention never writes its scores to memory.
    """

    fixed_bytes: int
    token_bytes: int
    windows: tuple[tuple[int, int], ...] = ()
    fed_bytes: int = 0
    seen_bytes: float = 0.0

    def row_bytes(self, num_tokens: int, chunk_tokens: int) -> int:
        """Caches of a row with buffers for num_tokens, fed up to chunk_tokens at a time."""
        windows = sum(
            each * min(num_tokens + chunk_tokens, most_columns(window, chunk_tokens))
            for each, window in self.windows
        )
        return self.fixed_bytes + self.token_bytes * num_tokens + windows

    def forward_bytes(self, num_fed: int, num_seen: int) -> int:
        """What a forward over num_fed tokens needs, where the longest row holds num_seen."""
        return ceil(num_fed * (self.fed_bytes + self.seen_bytes * num_seen))


def measure(model: Any, kv_bits: int | None = None) -> Footprint:
    """Feed a few tokens twice, and look at the caches and at the peak of MLX's memory."""
    caches = make_caches(model, kv_bits)
    first = _forward_bytes(model, caches, PROBE_TOKENS)
    _forward_bytes(model, caches, PROBE_CONTEXT_TOKENS - PROBE_TOKENS)
    second = _forward_bytes(model, caches, PROBE_TOKENS)
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
        fed_bytes=ceil(first / PROBE_TOKENS),
        seen_bytes=max(0, second - first) / (PROBE_TOKENS * PROBE_CONTEXT_TOKENS),
    )


def _forward_bytes(model: Any, caches: Caches, num_tokens: int) -> int:
    """The most that a forward and a choice at every position need at once, beside what the caches keep."""
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    logits = model(mx.ones((1, num_tokens), mx.int32), cache=caches)
    noisy = logits.astype(mx.float32) + mx.random.gumbel(logits.shape, key=mx.random.key(0))
    mx.eval(mx.argmax(noisy, axis=-1))
    settle(caches)
    del logits, noisy
    return max(0, mx.get_peak_memory() - max(before, mx.get_active_memory()))
