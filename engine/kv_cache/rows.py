"""The rows that decode together: their caches, and one forward over all of them.

BatchedRows runs one forward for all rows and serves models whose every layer keeps plain keys and
values. SeparateRows runs one forward a row, each with its own caches, and serves every other model.
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
    cache_arrays,
    round_columns,
    shrink_extent,
)
from engine.kv_cache.per_row import Caches as Caches
from engine.kv_cache.per_row import Snapshot, is_recurrent, leaves
from engine.kv_cache.per_row import make_caches as make_caches
from engine.kv_cache.slices import KVSlice, State, cut_slice, take_state

log = logging.getLogger("reprise.engine")


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

    def forward_ragged(self, fed: Sequence[Sequence[int]], floors: Sequence[int] | None = None) -> mx.array:
        """Feed row r the tokens fed[r], one or more; widths may differ.

        floors: (rows,) lengths below which no roll_back will go from now on; without them, as many as each
        row holds before. Where there is recurrent state they are no less than that.
        Returns logits (rows, most tokens fed, vocabulary), not yet evaluated; row r's are valid at
        0 .. len(fed[r]). The row then holds len(fed[r]) tokens more.
        """

    def roll_back(self, row: int, length: int) -> int:
        """Forget what a row holds past its first length tokens; returns how many its caches then hold.

        length: the row's floor at the last forward_ragged, or more. Keeping all costs nothing. Recurrent
        state cannot be cut: such a row goes back to the floor, and what else was to be kept is to be fed
        again, with the next forward.
        Raises ValueError if the row does not hold length tokens, or if it cannot go back so far.
        """

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        """Copies of what a row keeps for its tokens start .. end, not yet evaluated. See pieces.py."""

    def state(self, row: int) -> State:
        """What a row keeps beside strips, as it is now."""


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
                own.clear_row(row)
            elif row == 0:
                own.keys, own.values = given.keys, given.values
            else:
                own.put_row(row, given.keys[:, :, :length], given.values[:, :, :length])
        self.shared.add(length)

    def remove(self, row: int) -> None:
        """A row leaves; the last row is copied into its place. The last to leave frees the buffers."""
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
        """Slots and columns of the buffers; (0, 0) while there are none."""
        return next((cache.extent for cache in self.caches if cache.keys is not None), (0, 0))

    def limit_growth(self, max_cells: int) -> None:
        """Let slots times columns be more than max_cells only as far as rows need it."""
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
        """One forward over all rows. If building it raises, every row keeps its length and its tokens."""
        return self._forward(tokens, [tokens.shape[1]] * tokens.shape[0])

    def forward_ragged(
        self,
        fed: Sequence[Sequence[int]],
        floors: Sequence[int] | None = None,  # noqa: ARG002 - any number of tokens can be forgotten
    ) -> mx.array:
        """One forward over right-padded rows. What a row is padded with falls behind its end."""
        width = max(map(len, fed))
        # A row's own last token: computing it again is surely harmless.
        padded = [[*tokens, *[tokens[-1]] * (width - len(tokens))] for tokens in fed]
        return self._forward(mx.array(padded), [len(tokens) for tokens in fed])

    def _forward(self, tokens: mx.array, widths: Sequence[int]) -> mx.array:
        self.shared.begin_forward(widths)
        logits: mx.array = self.model(tokens, cache=self.caches)
        self.shared.end_forward()
        return logits

    def roll_back(self, row: int, length: int) -> int:
        """Forget what the row holds past its first length tokens, however few; returns length."""
        _check_length(row, length, 0, self.shared.lengths[row])
        self.shared.lengths[row] = length
        return length

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        """Copies, so that nothing keeps the shared buffers alive."""
        return [array for own in self.caches for array in own.get_row(row, start, end)]

    def state(self, row: int) -> State:  # noqa: ARG002 - as Rows has it
        """None: all that plain caches keep is in strips."""
        return []


class SeparateRows:
    """Rows that each keep their own caches and take a forward of their own."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.caches: list[Caches] = []
        self._lengths: list[int] = []
        self._snapshots: list[Snapshot | None] = []

    @property
    def lengths(self) -> Sequence[int]:
        """(rows,) tokens in each row's cache."""
        return self._lengths

    def add(self, caches: Caches, length: int) -> None:
        """A prefilled row joins."""
        self.caches.append(caches)
        self._lengths.append(length)
        self._snapshots.append(None)

    def remove(self, row: int) -> None:
        """A row leaves; the last row takes its place."""
        self.caches[row], self._lengths[row] = self.caches[-1], self._lengths[-1]
        self._snapshots[row] = self._snapshots[-1]
        self.caches.pop()
        self._lengths.pop()
        self._snapshots.pop()

    def forward(self, tokens: mx.array) -> mx.array:
        """A forward a row, in order."""
        logits = [self.model(tokens[row : row + 1], cache=caches) for row, caches in enumerate(self.caches)]
        self._lengths = [length + tokens.shape[1] for length in self._lengths]
        return mx.concatenate(logits, axis=0)

    def forward_ragged(self, fed: Sequence[Sequence[int]], floors: Sequence[int] | None = None) -> mx.array:
        """A forward a row, each of its own width, with a snapshot at the row's floor.

        A row with recurrent state takes two forwards if that is behind some of the tokens, but not all.
        """
        width = max(map(len, fed))
        padded = []
        for row, tokens in enumerate(fed):
            logits = self._forward_row(row, tokens, floors[row] if floors else self._lengths[row])
            padded.append(mx.pad(logits, [(0, 0), (0, width - len(tokens)), (0, 0)]))
        return mx.concatenate(padded, axis=0)

    def _forward_row(self, row: int, tokens: Sequence[int], floor: int) -> mx.array:
        """Returns (1, tokens, vocabulary) logits."""
        caches, num_kept = self.caches[row], floor - self._lengths[row]
        self._lengths[row] += len(tokens)
        if any(is_recurrent(cache) for cache in leaves(caches)) and 0 < num_kept < len(tokens):
            first = self.model(mx.array([tokens[:num_kept]]), cache=caches)
            self._snapshots[row] = Snapshot(caches, floor)
            return mx.concatenate([first, self.model(mx.array([tokens[num_kept:]]), cache=caches)], axis=1)
        # Of caches that can be cut it notes nothing but the length.
        snapshot = Snapshot(caches, floor)
        logits: mx.array = self.model(mx.array([tokens]), cache=caches)
        self._snapshots[row] = snapshot if num_kept < len(tokens) else Snapshot(caches, floor)
        return logits

    def roll_back(self, row: int, length: int) -> int:
        """Cut the row's caches, or go back to the snapshot if some of them cannot be cut."""
        held, snapshot = self._lengths[row], self._snapshots[row]
        _check_length(row, length, snapshot.length if snapshot else held, held)
        if snapshot and length < held:
            self._lengths[row] = snapshot.restore(held, length)
        self._snapshots[row] = None
        return self._lengths[row]

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        """Of those of the row's caches that keep every token."""
        return cut_slice(self.caches[row], start, end)

    def state(self, row: int) -> State:
        """Of the row's other caches."""
        return take_state(self.caches[row])


def _check_length(row: int, length: int, least: int, held: int) -> None:
    if not least <= length <= held:
        raise ValueError(f"row {row} holds {held} tokens and can go back to {least}, not to {length}")


def make_rows(model: Any, batched: bool) -> Rows:
    """Empty rows, in one forward or in one each."""
    return BatchedRows(model) if batched else SeparateRows(model)


def evaluate(caches: Caches) -> None:
    """Wait until the caches hold values, not promises."""
    mx.eval(cache_arrays(caches))


def evaluate_async(caches: Caches) -> None:
    """Start computing what the caches hold, without waiting."""
    mx.async_eval(cache_arrays(caches))
