"""Hold the caches of the rows that decode together, and run forward passes over them.

BatchedRows runs one forward for all rows. It serves models in which every layer keeps the keys and values of
all tokens, unquantized. SeparateRows runs one forward per row, over that row's own caches, and serves every
other model.
"""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from engine.kv_cache.batched import (
    Extent,
    RaggedKVCache,
    RowLengths,
    round_columns,
    shrink_extent,
)
from engine.kv_cache.batched import cache_arrays as cache_arrays
from engine.kv_cache.per_row import Caches as Caches
from engine.kv_cache.per_row import Snapshot, is_recurrent, leaves
from engine.kv_cache.per_row import make_caches as make_caches
from engine.kv_cache.slices import KVSlice, State, cut_slice, take_state

log = logging.getLogger("reprise.engine")


class Rows(Protocol):
    """The rows of one batch, in the order they were added; the last row takes the index of a removed one."""

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens in each row's caches: (rows,)."""

    def add(self, caches: Caches, length: int) -> None:
        """Append a prefilled row. Its caches hold length tokens; the caller must not use them any more."""

    def fill(self, row: int, caches: Caches, length: int) -> None:
        """Give a row that was added empty its caches, as add() does; what it was fed is forgotten."""

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its index."""

    def forward(self, tokens: mx.array) -> mx.array:
        """Feed (rows, width) tokens; return logits (rows, width, vocabulary), not yet evaluated."""

    def forward_ragged(self, fed: Sequence[Sequence[int]], floors: Sequence[int] | None = None) -> mx.array:
        """Feed row r the tokens fed[r], at least one; the widths may differ.

        floors: (rows,) the shortest length that the next roll_back of each row may ask for. None: its length
            before this forward. A row with recurrent state cannot have a floor below that length.
        Returns logits (rows, largest width, vocabulary), not yet evaluated. Row r's are valid at
            [0, len(fed[r])). The row then holds len(fed[r]) more tokens.
        """

    def roll_back(self, row: int, length: int) -> int:
        """Forget a row's tokens past the first length tokens; return how many its caches still hold.

        length: at least the row's floor in the last forward_ragged. Rolling back to the present length is
            free. Recurrent state cannot be trimmed: a row that has it goes back to the floor, and the caller
            must feed the tokens between the floor and length again, in the next forward.
        Raises ValueError if the row holds fewer than length tokens or cannot be rolled back that far.
        """

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        """Copy the keys and values of a row's tokens [start, end), not yet evaluated. See slices.py."""

    def state(self, row: int) -> State:
        """Copy the part of a row's caches that KV slices do not cover, as it is now. See slices.py."""


class BatchedRows:
    """Rows that share one forward and one buffer per layer. batched.py describes the layout."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.shared = RowLengths()
        self.caches = [RaggedKVCache(self.shared) for _ in make_prompt_cache(model)]

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens in each row's caches: (rows,)."""
        return self.shared.lengths

    def add(self, caches: Caches, length: int) -> None:
        """Append a prefilled row. Its buffers are taken over if it is the only row, else copied."""
        row = len(self.shared.lengths)
        self.shared.add(0)
        self.fill(row, caches, length)

    def fill(self, row: int, caches: Caches, length: int) -> None:
        """Give an empty row its caches: the buffers are taken over if it is the only row, else copied."""
        for cache, given in zip(self.caches, caches, strict=True):
            if length == 0:
                cache.clear_row(row)
            elif len(self.shared.lengths) == 1:
                cache.keys, cache.values = given.keys, given.values
            else:
                cache.put_row(row, given.keys[:, :, :length], given.values[:, :, :length])
        self.shared.set_length(row, length)

    def remove(self, row: int) -> None:
        """Remove a row and copy the last row into its slot. Removing the only row frees the buffers."""
        last = len(self.shared.lengths) - 1
        length = self.shared.lengths[last]
        for cache in self.caches:
            if last == 0:
                cache.keys = cache.values = None
            elif row != last and length:
                cache.put_row(row, *cache.get_row(last, 0, length))
            elif row != last:
                cache.clear_row(row)
        self.shared.remove(row)
        if last:
            self._resize(shrink_extent(self.extent, self._needed))

    @property
    def extent(self) -> Extent:
        """The slots and columns of the buffers; (0, 0) while there are none."""
        return next((cache.extent for cache in self.caches if cache.keys is not None), (0, 0))

    def limit_growth(self, max_cells: int) -> None:
        """Keep the buffers within max_cells slots times columns, unless the rows themselves need more."""
        self.shared.max_cells = max_cells
        slots, columns = self.extent
        if slots * columns > max_cells:
            num_slots, num_columns = self._needed
            self._resize((num_slots, min(columns, round_columns(num_columns))))

    @property
    def _needed(self) -> Extent:
        return len(self.shared.lengths), max(self.shared.dirty_ends + self.shared.lengths, default=0)

    def _resize(self, extent: Extent) -> None:
        if extent != self.extent:
            for cache in self.caches:
                cache.resize(*extent)

    def forward(self, tokens: mx.array) -> mx.array:
        """Run one forward over all rows. If building it raises, every row keeps its length and its tokens."""
        return self._forward(tokens, [tokens.shape[1]] * tokens.shape[0])

    def forward_ragged(
        self,
        fed: Sequence[Sequence[int]],
        floors: Sequence[int] | None = None,  # noqa: ARG002 - these rows can roll back to any length
    ) -> mx.array:
        """Run one forward over right-padded rows. Padding lands past a row's end, where it is masked."""
        width = max(map(len, fed))
        # Pad with the row's own last token, which is surely a valid id.
        padded = [[*tokens, *[tokens[-1]] * (width - len(tokens))] for tokens in fed]
        return self._forward(mx.array(padded), [len(tokens) for tokens in fed])

    def _forward(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        self.shared.begin_forward(widths)
        logits: mx.array = self.model(tokens, cache=self.caches)
        self.shared.end_forward()
        return logits

    def roll_back(self, row: int, length: int) -> int:
        """Forget the row's tokens past the first length tokens, any number of them; return length."""
        _check_length(row, length, 0, self.shared.lengths[row])
        self.shared.lengths[row] = length
        return length

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        """Copy the keys and values of tokens [start, end); a view would keep the shared buffers alive."""
        return [array for cache in self.caches for array in cache.get_row(row, start, end)]

    def state(self, row: int) -> State:  # noqa: ARG002 - the signature of Rows
        """Return no arrays: KV slices cover all that these caches hold."""
        return []


class SeparateRows:
    """Rows that each have their own caches and their own forward."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.caches: list[Caches] = []
        self._lengths: list[int] = []
        self._snapshots: list[Snapshot | None] = []

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens in each row's caches: (rows,)."""
        return self._lengths

    def add(self, caches: Caches, length: int) -> None:
        """Append a prefilled row."""
        self.caches.append(caches)
        self._lengths.append(length)
        self._snapshots.append(None)

    def fill(self, row: int, caches: Caches, length: int) -> None:
        """Give an empty row its caches."""
        self.caches[row], self._lengths[row], self._snapshots[row] = caches, length, None

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its index."""
        self.caches[row], self._lengths[row] = self.caches[-1], self._lengths[-1]
        self._snapshots[row] = self._snapshots[-1]
        self.caches.pop()
        self._lengths.pop()
        self._snapshots.pop()

    def forward(self, tokens: mx.array) -> mx.array:
        """Run one forward per row, in order."""
        logits = [self.model(tokens[row : row + 1], cache=caches) for row, caches in enumerate(self.caches)]
        self._lengths = [length + tokens.shape[1] for length in self._lengths]
        return mx.concatenate(logits, axis=0)

    def forward_ragged(self, fed: Sequence[Sequence[int]], floors: Sequence[int] | None = None) -> mx.array:
        """Run one forward per row, each of its own width, and take a snapshot at the row's floor.

        A row with recurrent state takes two forwards if its floor lies between two of the tokens fed, because
        the snapshot has to be taken there.
        """
        width = max(map(len, fed))
        padded = []
        for row, tokens in enumerate(fed):
            logits = self._forward_row(row, tokens, floors[row] if floors else self._lengths[row])
            padded.append(mx.pad(logits, [(0, 0), (0, width - len(tokens)), (0, 0)]))
        return mx.concatenate(padded, axis=0)

    def _forward_row(self, row: int, tokens: Sequence[int], floor: int) -> mx.array:
        """Feed one row; return logits (1, tokens, vocabulary)."""
        caches, num_kept = self.caches[row], floor - self._lengths[row]
        self._lengths[row] += len(tokens)
        if any(is_recurrent(cache) for cache in leaves(caches)) and 0 < num_kept < len(tokens):
            first = self.model(mx.array([tokens[:num_kept]]), cache=caches)
            self._snapshots[row] = Snapshot(caches, floor)
            return mx.concatenate([first, self.model(mx.array([tokens[num_kept:]]), cache=caches)], axis=1)
        # Caches that can be trimmed need no copy of what they hold; the snapshot only records the length.
        snapshot = Snapshot(caches, floor)
        logits: mx.array = self.model(mx.array([tokens]), cache=caches)
        self._snapshots[row] = snapshot if num_kept < len(tokens) else Snapshot(caches, floor)
        return logits

    def roll_back(self, row: int, length: int) -> int:
        """Trim the row's caches to length, or restore the snapshot if they hold recurrent state."""
        held, snapshot = self._lengths[row], self._snapshots[row]
        _check_length(row, length, snapshot.length if snapshot else held, held)
        if snapshot and length < held:
            self._lengths[row] = snapshot.restore(held, length)
        self._snapshots[row] = None
        return self._lengths[row]

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        """Copy tokens [start, end) from those of the row's caches that keep every token."""
        return cut_slice(self.caches[row], start, end)

    def state(self, row: int) -> State:
        """Copy the state of the row's other caches."""
        return take_state(self.caches[row])


def _check_length(row: int, length: int, min_length: int, held: int) -> None:
    if not min_length <= length <= held:
        raise ValueError(
            f"row {row} holds {held} tokens and can be rolled back to a length from {min_length} to {held}, "
            f"not to {length}"
        )


def make_rows(model: Any, batched: bool) -> Rows:
    """Make an empty batch. batched: whether its rows share one forward."""
    return BatchedRows(model) if batched else SeparateRows(model)


def evaluate(caches: Caches) -> None:
    """Compute what the caches hold, and wait for it."""
    mx.eval(cache_arrays(caches))
