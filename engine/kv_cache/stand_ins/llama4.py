"""Let mlx-lm's Llama 4 run rows of different lengths.

It computes the mask of its chunked layers, and the temperature of the others, from one position for all rows.
Here the rows' caches make the mask, and each row's queries are scaled by its own positions.
"""

from functools import cache
from typing import Any

import mlx.core as mx
from mlx_lm.models import llama4

from reprise.engine.kv_cache.buffers import RaggedChunkedKVCache


class _AtZero:
    """Stands for a cache at position 0, from which the model makes a mask that no layer uses."""

    start_position = offset = 0


class _CachesOfRows(list[Any]):
    """The caches of all layers. The model iterates over them, but asks the first by index for a position."""

    def __getitem__(self, at: Any) -> Any:
        return _AtZero if at == 0 else super().__getitem__(at)


class _ScaledAttention:
    """An attention layer whose queries have been scaled already. scales: (rows, width, 1)."""

    attn_temperature_tuning = 0

    def __init__(self, attention: Any, scales: mx.array) -> None:
        self._attention = attention
        self._scales = scales

    def __getattr__(self, name: str) -> Any:
        return getattr(self._attention, name)

    def q_proj(self, x: mx.array) -> mx.array:
        queries: mx.array = self._attention.q_proj(x)
        return (queries * self._scales).astype(queries.dtype)


@cache
def take_positions_of_rows() -> None:
    """Let all Llama 4 models take a position for each row, (rows,). Further calls change nothing."""
    model: Any = llama4.LlamaModel
    layer: Any = llama4.Attention
    run, attend = model.__call__, layer.__call__

    def run_rows(self: Any, inputs: mx.array, cache: Any = None) -> mx.array:
        if cache and isinstance(cache[0], RaggedChunkedKVCache):
            cache = _CachesOfRows(cache)
        result: mx.array = run(self, inputs, cache)
        return result

    def attend_rows(self: Any, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        width = x.shape[1]
        if isinstance(cache, RaggedChunkedKVCache):
            mask = cache.make_mask(width, return_array=True)
        elif cache is not None and isinstance(cache.offset, mx.array) and self.attn_temperature_tuning:
            positions = cache.offset[:, None] + mx.arange(1, width + 1)
            scales = mx.log(mx.floor(positions / self.floor_scale) + 1.0) * self.attn_scale + 1.0
            self = _ScaledAttention(self, scales[..., None])
        result: mx.array = attend(self, x, mask, cache)
        return result

    model.__call__, layer.__call__ = run_rows, attend_rows
