"""The rows of a batch, whether or not they share a forward pass.

BatchedRows runs one forward for all rows. SeparateRows runs one forward per row, over that row's own caches,
and serves the models that cannot share a forward (probes.py).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from functools import singledispatch
from typing import Any

import mlx.core as mx

from reprise.engine.kv_cache.batched_rows import BatchedRows, check_length
from reprise.engine.kv_cache.buffers import (
    GroupedKVCache,
    KVSlice,
    RaggedKVCache,
    State,
    cut_slice,
    row_arrays,
    take_state,
)
from reprise.engine.kv_cache.columns import Ranks
from reprise.engine.kv_cache.groups import FIRST_LIMIT, PerGroup
from reprise.engine.kv_cache.patches import attention_by_part
from reprise.engine.kv_cache.per_row import Caches, Snapshot, cache_arrays
from reprise.engine.kv_cache.sliding_window import WindowKVCache


@dataclass
class _Verified:
    """The last forward_ragged of one row: its tokens, and what the caches held before and after it."""

    tokens: Sequence[int]
    before: Snapshot
    after: Snapshot


class SeparateRows:
    """Rows with their own caches and their own forwards. For the methods see BatchedRows.

    lengths: (rows,) the number of tokens in each row's caches.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.caches: list[Caches] = []
        self.lengths: list[int] = []
        self._verified: list[_Verified | None] = []

    def add(self, caches: Caches, length: int) -> None:
        """Append a prefilled row."""
        self.caches.append(caches)
        self.lengths.append(length)
        self._verified.append(None)

    def fill(self, row: int, caches: Caches, length: int) -> None:
        """Fill an empty row with its own caches."""
        self.caches[row], self.lengths[row], self._verified[row] = caches, length, None

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its index."""
        self.caches[row], self.lengths[row] = self.caches[-1], self.lengths[-1]
        self._verified[row] = self._verified[-1]
        self.caches.pop()
        self.lengths.pop()
        self._verified.pop()

    def forward(self, tokens: mx.array, keeps_state: bool = False) -> mx.array:  # noqa: ARG002
        """Run one forward per row, in order. No state is kept."""
        logits = [self.model(tokens[row : row + 1], cache=caches) for row, caches in enumerate(self.caches)]
        self.lengths = [length + tokens.shape[1] for length in self.lengths]
        return mx.concatenate(logits, axis=0)

    def forward_ragged(self, fed: Sequence[Sequence[int]], ranks: Sequence[Ranks | None] = ()) -> mx.array:
        """Run one forward per row, each of its own width."""
        if any(one is not None for one in ranks):
            raise ValueError("rows with a forward pass each have no ranks")
        width = max(map(len, fed))
        padded = []
        for row, tokens in enumerate(fed):
            before = Snapshot(self.caches[row], self.lengths[row])
            logits = self.model(mx.array([tokens]), cache=self.caches[row])
            self.lengths[row] += len(tokens)
            after = Snapshot(self.caches[row], self.lengths[row])
            self._verified[row] = _Verified(tokens, before, after)
            padded.append(mx.pad(logits, [(0, 0), (0, width - len(tokens)), (0, 0)]))
        return mx.concatenate(padded, axis=0)

    def roll_back(self, row: int, length: int) -> int:
        """Trim the row's caches to length; restore recurrent state, and feed the kept tokens again."""
        held, verified, caches = self.lengths[row], self._verified[row], self.caches[row]
        check_length(row, length, verified.before.length if verified else held, held)
        self._verified[row] = None
        if verified is None or length == held:
            return held
        is_past = length >= verified.after.length
        snapshot = verified.after if is_past else verified.before
        self.lengths[row] = snapshot.restore(held, length)
        if again := [] if is_past else verified.tokens[: length - self.lengths[row]]:
            self.model(mx.array([again]), cache=caches)
            # Waited for now, so that the time counts as this step's.
            mx.eval(cache_arrays(caches))
            self.lengths[row] = length
        return self.lengths[row]

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        """Copy tokens [start, end) from the row's caches that keep every token."""
        return cut_slice(self.caches[row], start, end)

    def state(self, row: int) -> State:
        """Copy the state in the row's caches that do not keep every token."""
        return take_state(self.caches[row])


class Sharing(IntEnum):
    """How much the rows of a batch can share."""

    NOTHING = 0
    """Each row has a forward pass of its own, and buffers of its own."""

    BUFFERS = 1
    """All rows share a forward pass and each layer's buffers."""

    LAYERS = 2
    """As GROUPS, but attention layers run once per group, and not only attention itself."""

    GROUPS = 3
    """All rows share a forward pass, and those of similar length each layer's buffers."""

    @property
    def first_limit(self) -> int | None:
        """The most tokens of rows in the first group; None if there are no groups."""
        return FIRST_LIMIT if self >= Sharing.LAYERS else None

    def describe(self) -> str:
        """Describe in words what the rows of a batch share."""
        if self is Sharing.NOTHING:
            return "a forward pass for each row"
        more = "; short rows take as much memory as the longest" if self is Sharing.BUFFERS else ""
        return f"one forward pass for all rows{more}"


Rows = BatchedRows | SeparateRows
"""The rows of one batch, in the order of joining. See the methods of BatchedRows."""


class NextTokenView:
    """What the token after the newest of each row sees in a layer, for the attention of another model.

    It is a cache as mlx-lm's attention needs one, but keeps nothing. It holds views: drop it before the rows'
    next forward, which could not write to their buffers in place.
    wanted: the rows, each of at least one token. layer: index among the caches of a row.
    offset: (rows,) the position after each newest token. keys_and_values: PerGroup, with a part for each row.
    bits, group_size: of quantized keys and values; other layers have no such attributes.
    """

    bits: int
    group_size: int

    def __init__(self, rows: Rows, wanted: Sequence[int], layer: int) -> None:
        self.offset = mx.array([rows.lengths[row] for row in wanted])
        keys, values = [], []
        for row in wanted:
            cache = rows.caches[layer] if isinstance(rows, BatchedRows) else rows.caches[row][layer]
            if hasattr(cache, "bits"):
                self.bits, self.group_size = cache.bits, cache.group_size
            view = _next_view(cache, row, rows.lengths[row])
            keys.append(view[0] if len(view) == 2 else view[:3])
            values.append(view[1] if len(view) == 2 else view[3:])
        self.keys_and_values = PerGroup(keys), PerGroup(values)

    @staticmethod
    def attending() -> AbstractContextManager[None]:
        """Let attention over views run row by row inside the block."""
        return attention_by_part(lambda array: [*mx.split(array, len(array))], mx.concatenate)

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Return what is given: the other model has no keys and values of its own."""
        return keys, values


def _next_view(cache: Any, row: int, length: int) -> list[mx.array]:
    """Return views of the keys and values that a row's next token sees: (1, heads, columns, any) each."""
    if isinstance(cache, WindowKVCache):
        return cache.view(max(0, length + 1 - cache.window), length)
    if isinstance(cache, GroupedKVCache):
        group, row = cache.groups.place_of(row)
        cache = cache.part(group)
    if not isinstance(cache, RaggedKVCache):
        return [array[:, :, :length] for array in row_arrays(cache)]
    window, base = cache.columns.window or length + 1, cache.columns.bases[row]
    start, end = max(0, length + 1 - window) - base, length - base
    return [array[row : row + 1, :, start:end] for array in cache.arrays]


@singledispatch
def make_batched_rows(model: Any, first_limit: int | None = None, by_layer: bool = False) -> BatchedRows:
    """Make an empty batch whose rows share a forward pass. Arguments: see BatchedRows."""
    return BatchedRows(model, first_limit, by_layer)


@singledispatch
def make_rows(model: Any, sharing: Sharing) -> Rows:
    """Make an empty batch."""
    if not sharing:
        return SeparateRows(model)
    return make_batched_rows(model, sharing.first_limit, sharing is Sharing.LAYERS)


def evaluate(caches: Caches) -> None:
    """Evaluate the arrays of the caches, and wait for them."""
    mx.eval(cache_arrays(caches))
