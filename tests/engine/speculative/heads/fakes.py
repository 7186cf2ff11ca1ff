"""Heads that know the answers, or nothing. What they draft shows what their caches hold."""

from collections.abc import Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from reprise.engine.kv_cache.sliding_window import WindowKVCache
from reprise.engine.speculative.heads.head import Bounds, Choose

Answers = Mapping[tuple[int, ...], Sequence[int]]


class ReadingHead:
    """A head whose keys are the ids that it was fed, so it drafts what follows the text in its own caches.

    answers: by prompt. window: tokens that its cache keeps; None for all. If it finds no answer it drafts 1.
    bounds: (sink, window). longest: the most tokens that its caches held.
    """

    reads_target = False

    def __init__(
        self,
        answers: Answers,
        taps: tuple[int, ...] = (),
        max_drafted: int = 4,
        window: int | None = None,
        bounds: tuple[int, int] | None = None,
    ) -> None:
        self.taps, self.max_drafted = taps, max_drafted
        self.bounds = Bounds(*bounds, lambda kept, _: kept) if bounds else None
        self.longest = 0
        self._texts = [(*prompt, *answer) for prompt, answer in answers.items()]
        self._window = window
        self.num_found = 0

    def parameters(self) -> dict[str, mx.array]:
        return {"weight": mx.zeros(4)}

    def make_cache(self) -> list[Any]:
        return [KVCache() if self._window is None else WindowKVCache(self._window)]

    def feed(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> None:
        assert states.shape[:2] == following.shape
        shape = (states.shape[0], 1, following.shape[1], 4)
        keys = mx.broadcast_to(following.astype(mx.float32)[:, None, :, None], shape)
        caches[0].update_and_fetch(keys, keys + 0.0 * states[:, None, :, :1].astype(mx.float32))

    def draft(
        self, states: mx.array, last: mx.array, caches: Sequence[Any], num: int, choose: Choose
    ) -> mx.array:
        del choose
        cache = caches[0]
        mask = cache.make_mask(1, window_size=self._window)
        keys = mx.broadcast_to(last.astype(mx.float32)[:, None, None, None], (last.shape[0], 1, 1, 4))
        held, _ = cache.update_and_fetch(keys, keys + 0.0 * states[:, None, None, :1].astype(mx.float32))
        seen = mx.broadcast_to(mx.array(True) if mask is None else mask, (last.shape[0], 1, 1, held.shape[2]))
        texts = [
            [int(key) for key, is_seen in zip(row, columns, strict=True) if is_seen]
            for row, columns in zip(held[:, 0, :, 0].tolist(), seen[:, 0, 0].tolist(), strict=True)
        ]
        if hasattr(cache, "trim"):
            cache.trim(1)
        self.longest = max(self.longest, *map(len, texts))
        if self.bounds:
            texts = [text[-self.bounds.window :] for text in texts]
        return mx.array([self._continue(tuple(text), num) for text in texts])

    def _continue(self, text: tuple[int, ...], num: int) -> list[int]:
        for known in self._texts:
            for end in range(len(text), len(known) + 1):
                if known[end - len(text) : end] == text:
                    self.num_found += 1
                    return [*known[end : end + num], *[1] * num][:num]
        return [1] * num
