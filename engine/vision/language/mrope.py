"""Turn queries and keys by places on three axes, time, height and width, while a graph is built."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

Axes = np.ndarray
"""(n,) of each pair of numbers that rope turns, the axis whose place it is turned by: 0, 1 or 2."""


def find_axes(text_config: Mapping[str, Any]) -> Axes | None:
    """Return the axis, 0 to 2, by which a language model turns each pair; None if it has only one axis."""
    rope = text_config.get("rope_parameters") or text_config.get("rope_scaling") or {}
    if (sections := rope.get("mrope_section")) is None:
        return None
    if not rope.get("mrope_interleaved"):
        return np.repeat([0, 1, 2], sections)
    axes = np.zeros(sum(sections), np.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


@contextmanager
def rope_at(places: np.ndarray, axes: Axes) -> Iterator[None]:
    """Make rope turn queries and keys by these places inside the block, in a forward pass of one row.

    places: (3, n) places of the tokens fed. axes: see find_axes(). For the thread that owns MLX.
    """
    fused: Callable[..., mx.array] = mx.fast.rope
    is_text = (places == places[:1, :1] + np.arange(places.shape[1])).all()
    by_axis = [mx.array(one) for one in places]
    of_number = mx.array(np.tile(axes, 2))

    def rope(x: mx.array, dims: int, *, offset: Any, **options: Any) -> mx.array:
        del offset
        if is_text:
            return fused(x, dims, offset=int(places[0, 0]), **options)
        # The tokens stand where rows do, as only rows have places of their own.
        tokens = x.swapaxes(0, 2)
        turned = [fused(tokens, dims, offset=each, **options) for each in by_axis]
        pad = x.shape[-1] - 2 * len(axes)
        chosen = mx.pad(of_number, (0, pad)) if pad else of_number
        found = mx.where(chosen == 2, turned[2], mx.where(chosen == 1, turned[1], turned[0]))
        return found.swapaxes(0, 2)

    try:
        mx.fast.rope = rope  # type: ignore[assignment]
        yield
    finally:
        mx.fast.rope = fused
