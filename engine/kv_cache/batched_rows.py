"""Run one forward pass for all rows that decode together, over caches that hold all of them."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import CacheList, KVCache

from reprise.engine.kv_cache.buffers import (
    GroupedKVCache,
    KVSlice,
    RaggedChunkedKVCache,
    RaggedKVCache,
    State,
    start_copies,
)
from reprise.engine.kv_cache.columns import (
    Columns,
    Extent,
    Ranks,
    RowLengths,
    grow_slots,
    max_slots,
    round_columns,
    shrink_extent,
)
from reprise.engine.kv_cache.groups import Group, Groups
from reprise.engine.kv_cache.patches import (
    attention_classes,
    by_group,
    take_masks_of_rows,
    take_positions_of_rows,
)
from reprise.engine.kv_cache.per_row import Caches, FittedQuantizedKVCache, is_recurrent, leaves
from reprise.engine.kv_cache.recurrent import RaggedStateCache, StateHistory
from reprise.engine.kv_cache.sliding_window import ChunkedWindowKVCache, WindowKVCache


class BatchedRows:
    """Rows that share one forward pass, and one cache per layer that holds all rows.

    columns.py describes how keys and values are laid out, groups.py which rows share buffers, recurrent.py
    how state is rolled back.
    caches: one per layer, of the kinds that the first row's own caches have.
    """

    def __init__(self, model: Any, first_limit: int | None = None, by_layer: bool = False) -> None:
        """Make an empty batch.

        first_limit: tokens of rows in the first group of full attention; None if all rows share one.
        by_layer: whether whole attention layers run group by group, not only attention itself.
        """
        take_masks_of_rows()
        take_positions_of_rows()
        self.model = model
        self._first_limit = first_limit
        self._attention_classes = attention_classes(model) if by_layer else None
        self._clear()

    def _clear(self) -> None:
        self.shared = RowLengths()
        self.caches: Caches = []
        # Those of full attention, and those of recurrent state.
        self._full: list[GroupedKVCache] = []
        self._states: list[RaggedStateCache] = []
        self._groups = Groups(self.shared, self._first_limit)
        # By window, and none for full attention.
        self._windows: dict[tuple[int, bool], Columns] = {}
        self._history: StateHistory | None = None

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens in each row's caches: (rows,)."""
        return self.shared.lengths

    def add(self, caches: Caches, length: int) -> None:
        """Append a prefilled row, whose caches hold length tokens and belong to the batch from now on.

        A row that is alone in its group takes over its caches' buffers; others are copied.
        """
        row = len(self.shared.lengths)
        if not self.caches:
            self.caches = [self._make_cache(cache) for cache in caches]
            self._full = [cache for cache in leaves(self.caches) if isinstance(cache, GroupedKVCache)]
            self._states = [cache for cache in leaves(self.caches) if isinstance(cache, RaggedStateCache)]
        self.shared.add()
        self._groups.add()
        for columns in self._windows.values():
            columns.add()
        self._settle()
        if self._history:
            self._history.add()
        for state in self._states:
            state.add(row)
        self.fill(row, caches, length)

    def fill(self, row: int, caches: Caches, length: int) -> None:
        """Fill an empty row from its caches, as add() does. Tokens fed to it before are forgotten."""
        self._settle()
        if self._history:
            self._history.stay(row)
        self.shared.lengths[row] = length
        if not self._groups.has(row):
            self._groups.put_in(row)
        elif not self._groups.may_stay(row):
            self._take_out(row)
            self._groups.put_in(row)
        else:
            # Keep its slot: rows out of order would have to be read group by group.
            self._groups.replace(row)
        for columns in self._windows.values():
            columns.place(row)
        for cache, given in zip(leaves(self.caches), leaves(caches), strict=True):
            cache.fill(row, given)

    def _make_cache(self, given: Any) -> Any:
        """Return an empty cache for all rows, of the same kind as a single row's."""
        if isinstance(given, CacheList):
            return CacheList(*(self._make_cache(child) for child in given.caches))
        if is_recurrent(given):
            return RaggedStateCache(self.shared, len(given.cache))
        # Subclasses have their own methods.
        if type(given) in (WindowKVCache, ChunkedWindowKVCache):
            kind = given.window, type(given) is ChunkedWindowKVCache
            columns = self._windows.setdefault(kind, Columns(self.shared, *kind))
            return RaggedChunkedKVCache(columns) if columns.is_chunked else RaggedKVCache(columns)
        if isinstance(given, FittedQuantizedKVCache):
            return GroupedKVCache(self._groups, given.bits)
        if type(given) is not KVCache:
            raise TypeError(f"rows cannot share a {type(given).__name__}")
        return GroupedKVCache(self._groups, None)

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its index, and is copied. Without rows there are no buffers."""
        last = len(self.shared.lengths) - 1
        if last == 0:
            self._clear()
            return
        self._settle()
        if self._history:
            self._history.remove(row)
        self._take_out(row)
        self._groups.remove(row)
        for cache in leaves(self.caches):
            if not isinstance(cache, GroupedKVCache):
                cache.leave(row, last)
        for columns in self._windows.values():
            columns.remove(row)
        self.shared.remove(row)
        for columns in self._windows.values():
            moves, slots = columns.shrink(), max_slots(last)
            for cache in self._in_window(columns):
                if moves:
                    cache.move(moves)
                if slots < cache.extent[0]:
                    cache.resize(slots, cache.extent[1])

    def _take_out(self, row: int) -> None:
        """Remove a row from its group, whose last slot is copied into its own."""
        group, slot = self._groups.place_of(row)
        last = len(group.rows) - 1
        for cache in self._full:
            if last:
                cache.part(group).leave(slot, last)
            else:
                cache.drop(group)
        self._groups.take_out(row)
        if last:
            self._resize(group, shrink_extent(self._extent(group), group.columns.held))

    def _outgrow(self, width: int) -> None:
        """Move each row that would outgrow its group in a forward of this width to the next group."""
        for row in self._groups.outgrown(width):
            length = self.shared.lengths[row]
            held = [cache.row_slice(row, 0, length) for cache in self._full]
            self._take_out(row)
            self._groups.put_in(row, width)
            for cache, arrays in zip(self._full, held, strict=True):
                cache.put(row, arrays)

    @property
    def extents(self) -> list[Extent]:
        """The slots and columns of each group's buffers of full attention."""
        return [self._extent(group) for group in self._groups]

    def window_cells(self, window: int, joining: Sequence[int], width: int) -> int:
        """Return the most cells (slots times columns) of this window's buffers after the next forward.

        joining, width: see Columns.columns_after().
        """
        of_window = (one for one in self._windows.values() if one.window == window)
        columns = next(of_window, None) or Columns(self.shared, window)
        num_slots = next((cache.extent[0] for cache in self._in_window(columns)), 0)
        for row in range(len(joining)):
            num_slots = grow_slots(num_slots, len(self.lengths) + row + 1)
        return num_slots * columns.columns_after(joining, width)

    def limit_growth(self, max_cells: int) -> None:
        """Keep the buffers of full attention within max_cells slots times columns, unless rows need more."""
        self._groups.limit_growth(max_cells, _needed_cells)
        for group in self._groups:
            slots, columns = self._extent(group)
            assert group.columns.max_cells is not None
            if slots * columns > group.columns.max_cells:
                num_slots, num_columns = group.columns.held
                self._resize(group, (num_slots, min(columns, round_columns(num_columns))))

    def _in_window(self, columns: Columns) -> list[RaggedKVCache]:
        all_caches = (cache for cache in leaves(self.caches) if isinstance(cache, RaggedKVCache))
        return [cache for cache in all_caches if cache.columns is columns and cache.arrays]

    def _extent(self, group: Group) -> Extent:
        return next((cache.parts[group].extent for cache in self._full if group in cache.parts), (0, 0))

    def _resize(self, group: Group, extent: Extent) -> None:
        if extent != self._extent(group):
            for cache in self._full:
                cache.part(group).resize(*extent)

    def forward(self, tokens: mx.array, keeps_state: bool = False) -> mx.array:
        """Feed (rows, width) tokens; return logits (rows, width, vocabulary), not yet evaluated.

        keeps_state: whether to keep recurrent state if this is a forward of width 1 after a ragged one, so
            that rows can be rolled back to its end. See roll_back().
        If building the forward raises, every row keeps its length and its tokens.
        """
        self._settle()
        logits = self._forward(tokens, [tokens.shape[1]] * tokens.shape[0])
        if self._history:
            self._history.follow(keeps_state)
        return logits

    def forward_ragged(self, fed: Sequence[Sequence[int]], ranks: Sequence[Ranks | None] = ()) -> mx.array:
        """Feed row r the tokens fed[r], at least one; the widths may differ.

        ranks: (rows,) each row's ranks, or None. With ranks, a new token sees all tokens that the row held
            before, and new tokens of no higher rank wherever they stand; with None, the new tokens before it.
            Empty if no row has ranks.
        Returns logits (rows, largest width, vocabulary), not yet evaluated. Row r's are valid at
            [0, len(fed[r])). The row then holds len(fed[r]) more tokens.
        Raises ValueError if a row has ranks and rows do not share a forward pass.
        """
        width = max(map(len, fed))
        # With the row's own last token, surely a valid id. It lands past the row's end, where it is masked.
        padded = [[*tokens, *[tokens[-1]] * (width - len(tokens))] for tokens in fed]
        self._settle()
        self._history = None
        return self._forward(mx.array(padded), [len(tokens) for tokens in fed], ranks, traces=True)

    def _forward(
        self,
        tokens: mx.array,
        widths: Sequence[int],
        ranks: Sequence[Ranks | None] = (),
        traces: bool = False,
    ) -> mx.array:
        """Run one forward. traces: whether state may be rolled back into it."""
        self._outgrow(max(widths))
        self.shared.begin_forward(widths, ranks=ranks)
        self._groups.begin_forward()
        for columns in self._windows.values():
            if moves := columns.begin_forward():
                for cache in self._in_window(columns):
                    cache.move(moves)
        history = StateHistory(self._states, self.shared) if traces and self._states else None
        before = [(state, list(state.cache)) for state in self._states]
        try:
            with ExitStack() as replaced:
                if history:
                    replaced.enter_context(history.trace())
                if not self._groups.only:
                    replaced.enter_context(by_group(self._groups, self._attention_classes))
                logits: mx.array = self.model(tokens, cache=self.caches)
        except BaseException:
            for state, arrays in before:
                state.cache = arrays
            raise
        self._history = history or self._history
        self.shared.end_forward()
        self._groups.end_forward()
        for columns in self._windows.values():
            columns.end_forward()
        return logits

    def roll_back(self, row: int, length: int) -> int:
        """Forget a row's tokens past the first length tokens; return how many its caches still hold.

        length: at least the row's length before the last forward_ragged. Rolling back to the present length
            is free.
        Returns length itself, unless the row has recurrent state and length is past the end of the last
            forward_ragged. Then it returns the row's length at the end of that forward, or of a later one
            that kept its state. State goes back only once, and the next forward computes it again.
        Raises ValueError if the row holds fewer than length tokens or cannot be rolled back that far.
        """
        held = self.shared.lengths[row]
        shortest = max((columns.min_length(row) for columns in self._windows.values()), default=0)
        if self._states:
            first = self._history.min_length(row) if self._history else None
            shortest = max(shortest, held if first is None else first)
        check_length(row, length, shortest, held)
        if self._history and length == held:
            self._history.stay(row)
        elif self._history:
            length = self._history.go_back(row, length)
        self.shared.lengths[row] = length
        self._groups.set_length(row, length)
        return length

    def start_copies(self) -> None:
        """Start now, not in the next forward, to copy the rows that a joining or leaving row moved.

        Until the copies are made, the old buffers stay in memory too.
        """
        for cache in leaves(self.caches):
            if isinstance(cache, RaggedStateCache):
                start_copies(cache.cache)
                continue
            parts = cache.parts.values() if isinstance(cache, GroupedKVCache) else [cache]
            start_copies(*(part.arrays for part in parts))

    def _settle(self) -> None:
        """Compute the states of rows that were rolled back."""
        if self._history:
            self._history.apply()
            if self._history.is_over:
                self._history = None

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        """Copy the keys and values of a row's tokens [start, end), not yet evaluated. See buffers.py."""
        return [array for cache in self._full for array in cache.row_slice(row, start, end)]

    def state(self, row: int) -> State:
        """Copy the part of a row's caches that KV slices do not cover, as it is now. See buffers.py."""
        self._settle()
        taken: State = []
        for cache in leaves(self.caches):
            if isinstance(cache, RaggedStateCache):
                taken += cache.row_state(row)
            elif isinstance(cache, RaggedKVCache):
                taken += cache.live_columns(row)
        return taken


def _needed_cells(group: Group) -> int:
    num_slots, num_columns = group.columns.held
    return num_slots * round_columns(num_columns)


def check_length(row: int, length: int, min_length: int, held: int) -> None:
    """Raise ValueError unless min_length <= length <= held, the number of tokens that the row holds."""
    if not min_length <= length <= held:
        raise ValueError(
            f"row {row} holds {held} tokens and can be rolled back to a length from {min_length} to {held}, "
            f"not to {length}"
        )
