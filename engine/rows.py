"""The rows that decode together: their caches, and one forward over all of them.

BatchedRows runs one forward for all rows and serves models whose every layer keeps plain keys and
values. SeparateRows runs one forward a row on mlx-lm's own caches and serves every other model.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import KVCache, make_prompt_cache

from engine.kv import RaggedKVCache, RowLengths, states

log = logging.getLogger("reprise.engine")

Caches = list[Any]
"""One row's caches in mlx-lm's form, a cache a layer."""


class Rows(Protocol):
    """Rows keep the order of their joining, except that the last one takes a leaver's place."""

    @property
    def lengths(self) -> Sequence[int]:
        """(rows,) tokens in each row's cache."""

    def add(self, caches: Caches, length: int) -> None:
        """A prefilled row joins as the last one. Its caches hold length tokens and are given away."""

    def remove(self, row: int) -> None:
        """A row leaves; the last row takes its place."""

    def forward(self, tokens: mx.array) -> mx.array:
        """Feed (rows, width) tokens; returns logits (rows, width, vocabulary), not yet evaluated."""

    def extract(self, row: int, length: int) -> Caches:
        """The first length tokens of a row as caches of their own, for models with plain caches."""


class BatchedRows:
    """Rows over ragged caches. See kv.py for the layout."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.shared = RowLengths()
        self.caches = [RaggedKVCache(self.shared) for _ in make_prompt_cache(model)]

    @property
    def lengths(self) -> Sequence[int]:
        """(rows,) tokens in each row's cache."""
        return self.shared.lengths

    def add(self, caches: Caches, length: int) -> None:
        """A prefilled row joins. Alone, it brings its buffers along instead of being copied."""
        row = len(self.shared.lengths)
        for own, given in zip(self.caches, caches, strict=True):
            if length == 0:
                continue
            if row == 0:
                own.keys, own.values = given.keys, given.values
            else:
                own.put_row(row, given.keys[:, :, :length], given.values[:, :, :length])
        self.shared.lengths.append(length)

    def remove(self, row: int) -> None:
        """A row leaves; the last row is copied into its place. The last to leave frees the buffers."""
        last = len(self.shared.lengths) - 1
        length = self.shared.lengths[last]
        for cache in self.caches:
            if last == 0:
                cache.keys = cache.values = None
            elif row != last and length:
                cache.put_row(row, *cache.get_row(last, length))
        self.shared.lengths[row] = length
        self.shared.lengths.pop()

    def rollback(self, row: int, length: int) -> None:
        """Forget what the row holds past its first length tokens."""
        if not 0 <= length <= self.shared.lengths[row]:
            raise ValueError(f"row {row} holds {self.shared.lengths[row]} tokens; cannot go back to {length}")
        self.shared.lengths[row] = length

    def forward(self, tokens: mx.array) -> mx.array:
        """One forward over all rows. If building it raises, every row keeps its length and its tokens."""
        self.shared.begin(tokens.shape[1])
        logits: mx.array = self.model(tokens, cache=self.caches)
        self.shared.end()
        return logits

    def extract(self, row: int, length: int) -> Caches:
        """Copies of the row's first length tokens, so that nothing keeps the shared buffers alive."""
        caches = []
        for own in self.caches:
            cache = KVCache()
            cache.keys, cache.values = own.get_row(row, length)
            cache.offset = length
            caches.append(cache)
        return caches


class SeparateRows:
    """Rows that each keep mlx-lm's own caches and take a forward of their own."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.caches: list[Caches] = []
        self._lengths: list[int] = []

    @property
    def lengths(self) -> Sequence[int]:
        """(rows,) tokens in each row's cache."""
        return self._lengths

    def add(self, caches: Caches, length: int) -> None:
        """A prefilled row joins."""
        self.caches.append(caches)
        self._lengths.append(length)

    def remove(self, row: int) -> None:
        """A row leaves; the last row takes its place."""
        self.caches[row], self._lengths[row] = self.caches[-1], self._lengths[-1]
        self.caches.pop()
        self._lengths.pop()

    def forward(self, tokens: mx.array) -> mx.array:
        """A forward a row, in order."""
        logits = [self.model(tokens[row : row + 1], cache=caches) for row, caches in enumerate(self.caches)]
        self._lengths = [length + tokens.shape[1] for length in self._lengths]
        return mx.concatenate(logits, axis=0)

    def extract(self, row: int, length: int) -> Caches:
        """Not offered: these caches cannot be cut at any length."""
        raise NotImplementedError("only rows with plain key-value caches can be cut out")


def has_plain_caches(model: Any) -> bool:
    """Whether every layer keeps plain keys and values of full attention."""
    return all(type(cache) is KVCache for cache in make_prompt_cache(model))


def make_caches(model: Any) -> Caches:
    """Empty caches for one row to prefill."""
    return list(make_prompt_cache(model))


def can_batch(model: Any) -> bool:
    """Whether rows of different lengths can share a forward: tried once, on two of them."""
    if not has_plain_caches(model):
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
        # Kernels may round differently; a wrong position or mask is far off.
        return bool(mx.abs(together - alone).max() <= 0.1 * mx.abs(alone).max())
    # Model code that takes its cache's offset for a single number fails here in its own way.
    except Exception as fault:
        log.info("rows of different lengths cannot share a forward of this model: %s", fault)
        return False


def make_rows(model: Any, batched: bool) -> Rows:
    """Empty rows, in one forward or in one each."""
    return BatchedRows(model) if batched else SeparateRows(model)


def settle(caches: Caches) -> None:
    """Wait until the caches hold values, not promises."""
    mx.eval(states(caches))


def dispatch(caches: Caches) -> None:
    """Start computing what the caches hold, without waiting."""
    mx.async_eval(states(caches))
