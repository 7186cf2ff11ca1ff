"""Make mlx-lm's Gemma 2 take a mask for each row of a batch.

Its attention gives grouped heads an axis of their own: scores are (rows, kv_heads, repeats, width, columns).
It applies masks of (rows, 1, width, columns) as they are, so that rows are taken for heads. mlx-lm's own
batches fail for the same reason.
"""

from functools import cache
from typing import Any

import mlx.core as mx
from mlx_lm.models import gemma2


@cache
def take_masks_of_rows() -> None:
    """Let all Gemma 2 models apply masks (rows, 1, width, columns) to rows. Further calls change nothing."""
    layer: Any = gemma2.Attention
    attend = layer.__call__

    def attend_rows(attention: Any, x: mx.array, mask: mx.array | None = None, cache: Any = None) -> mx.array:
        if mask is not None and mask.ndim == 4 and attention.repeats > 1:
            mask = mask[:, :, None]
        result: mx.array = attend(attention, x, mask, cache)
        return result

    layer.__call__ = attend_rows
