"""Let the tokens of an image see each other, while a graph is built."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from reprise.engine.kv_cache.per_row import Caches, leaves


@contextmanager
def images_seen_whole(caches: Caches, numbers: np.ndarray, in_windows_only: bool = False) -> Iterator[None]:
    """Let each token of an image also see the image's later tokens, in the block and with one row's caches.

    numbers: (n,) for each token fed, the number of its image; negative if it belongs to none.
    in_windows_only: change only sliding layers, not those that keep all tokens.
    """
    same = mx.array((numbers[:, None] == numbers) & (numbers >= 0))

    def seeing(make_mask: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def make(N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
            if in_windows_only and window_size is None:
                return make_mask(N, return_array=return_array, window_size=window_size)
            mask = make_mask(N, return_array=True, window_size=window_size)
            return mask | mx.pad(same, [(0, 0), (mask.shape[-1] - N, 0)])

        return make

    held: list[Any] = list(leaves(caches))
    try:
        for cache in held:
            cache.make_mask = seeing(cache.make_mask)
        yield
    finally:
        for cache in held:
            cache.__dict__.pop("make_mask", None)
