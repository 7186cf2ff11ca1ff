"""Lay out rows of different lengths in the columns of a buffer.

The buffers of all layers of one kind, full attention or one size of window, have the same layout. It is
described by a Columns object, which these layers share. The token at position p of row r is in column
p - bases[r] of slot r:

    columns before the row's first token    zero, or tokens that no window reaches any more
    columns up to lengths[r] - bases[r]     the row's tokens; of a window at least those that it can still see
    columns up to dirty_ends[r]             leftovers of rejected drafts or failed forwards: perhaps NaN
    all columns after that                  zero

With full attention every base is 0. With a window, a base is a multiple of BLOCK_TOKENS, perhaps negative.
So a key falls into the same lane of a vectorized sum as in a buffer that holds the whole sequence, and sums
do not depend on the row's neighbors. When the columns are full, every row is moved toward the front, without
the tokens that no window reaches any more, so that all rows end within a block of each other.

Attention masks every column that a token must not see. But a masked value is still multiplied by a weight of
zero, and zero times NaN is NaN; with latent attention (MLA) keys are values too. So no forward reads
leftovers before it has overwritten them.

A forward of width w writes row r's new tokens to the w columns after its last token. A row with fewer than w
new tokens is padded on the right, with zeros.

- Rows that end in the same column (*uniform*): one slice is written in all rows.
- Rows that do not (*ragged*): each row is written at its own columns. The write is num_cleared columns
  longer, with zeros, to erase all leftovers.

So rolling back a row only lowers its length, and adding or removing a row copies at most one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from reprise.engine.kv_cache.sliding_window import (
    BLOCK_TOKENS,
    ROLLBACK_TOKENS,
    SLACK_TOKENS,
    first_needed,
    window_columns,
)

GROWTH_TOKENS = 256
"""The number of columns of a buffer of full attention is a multiple of this."""

Extent = tuple[int, int]
"""The number of slots and the number of columns of a buffer. Their product is its number of *cells*."""


def grow_extent(extent: Extent, needed: Extent, max_cells: int | None) -> Extent:
    """Return the extent to grow buffers to, so that they have at least the slots and columns needed.

    Growing copies the buffers, so it has to be rare: slots double and columns grow by a quarter. If that
    makes more than max_cells cells, the buffers get what is needed, and give up what they have to spare.
    max_cells: None for no limit.
    """
    (slots, columns), (num_slots, num_columns) = extent, needed
    if num_slots > slots:
        slots = max(num_slots, 2 * slots)
    if num_columns > columns:
        columns = round_columns(max(num_columns, columns + columns // 4))
    if max_cells is not None and slots * columns > max_cells:
        return num_slots, round_columns(num_columns)
    return slots, columns


def grow_slots(slots: int, num_slots: int) -> int:
    """Return the slots to grow a window's buffers to, at least num_slots.

    At most max_slots(num_slots), unless the buffers already have more.
    """
    return slots if num_slots <= slots else max(num_slots, max_slots(slots))


def max_slots(num_rows: int) -> int:
    """Return the maximum slots of a window's buffers: these slots are large, so few are spare."""
    return num_rows + num_rows // 4


def shrink_extent(extent: Extent, needed: Extent) -> Extent:
    """Return the extent to shrink buffers to; extent itself if shrinking would free too little."""
    (slots, columns), (num_slots, num_columns) = extent, needed
    # Slots shrink at a quarter of their number, columns at a half, and both keep some spare, so that buffers
    # which have shrunk do not have to grow again at once.
    if num_slots <= slots // 4:
        slots = 2 * num_slots
    if num_columns <= columns // 2:
        columns = min(columns, round_columns(num_columns + num_columns // 4))
    return slots, columns


def round_columns(num_columns: int) -> int:
    """Round a number of columns up to a multiple of GROWTH_TOKENS, at least one multiple."""
    return max(1, -(-num_columns // GROWTH_TOKENS)) * GROWTH_TOKENS


Ranks = Sequence[int]
"""(tokens,) the rank of each token that a forward adds to a row: a permutation of the places."""


class RowLengths:
    """The rows' lengths and the shape of the current forward, shared by the caches of all layers.

    lengths: (rows,) tokens in the caches before the current forward.
    widths: (rows,) tokens that the current forward adds to each row; width is the largest of them.
    are_equal: whether all rows have the same length.
    offset: the position for rope of each row's first new token: an int if all rows agree, else (rows,).
    deltas: (rows,) added to a token's index to get its position for rope; 0 without images.
        has_deltas: whether any is not 0.
    fed: (rows,) the widths on the device; None if no row is padded.
    padding: (rows, 1, width, 1) True where a row is padded; None if no row is.
    ranks: (rows,) the ranks of the row's new tokens, if a token sees new tokens of no higher rank instead of
        those before it; None for other rows. Empty if no row has ranks.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.widths: Sequence[int] = ()
        self.width = 0
        self.are_equal = True
        self.offset: int | mx.array = 0
        self.deltas: list[int] = []
        self.has_deltas = False
        self.fed: mx.array | None = None
        self.padding: mx.array | None = None
        self.ranks: Sequence[Ranks | None] = ()

    def add(self) -> None:
        """Append an empty row."""
        self.lengths.append(0)
        self.deltas.append(0)

    def shift(self, row: int, delta: int) -> None:
        """Set a row's delta: rope places its tokens at their index plus delta."""
        self.deltas[row] = delta
        self.has_deltas = any(self.deltas)

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its index."""
        self.lengths[row] = self.lengths[-1]
        self.lengths.pop()
        self.deltas[row] = self.deltas[-1]
        self.deltas.pop()
        self.has_deltas = any(self.deltas)

    def begin_forward(
        self, widths: Sequence[int], width: int = 0, ranks: Sequence[Ranks | None] = ()
    ) -> None:
        """Compute the lengths, widths and padding of the next forward, for the caches of all layers.

        widths: (rows,) tokens to add, each >= 1. width: of the whole forward, if it has more rows than these.
        ranks: (rows,) see the class.
        """
        self.ranks = ranks if any(one is not None for one in ranks) else ()
        self.widths, self.width = widths, max(width, *widths)
        self.fed = self.padding = None
        if min(widths) < self.width:
            self.fed = mx.array(list(widths))
            self.padding = (mx.arange(self.width) >= self.fed[:, None])[:, None, :, None]
        self.are_equal = len(set(self.lengths)) == 1
        self.offset = self.lengths[0] if self.are_equal else mx.array(self.lengths)
        if self.has_deltas:
            places = [length + delta for length, delta in zip(self.lengths, self.deltas, strict=True)]
            self.offset = places[0] if len(set(places)) == 1 else mx.array(places)

    def follow(self, other: "RowLengths") -> None:
        """Take over the result of begin_forward() on another object for the same rows in the same order."""
        self.widths, self.width = other.widths, other.width
        self.fed, self.padding, self.ranks = other.fed, other.padding, other.ranks
        self.are_equal, self.offset = other.are_equal, other.offset

    def end_forward(self) -> None:
        """Add each row's width to its length. To be called once the forward's graph has been built."""
        self.lengths = [length + width for length, width in zip(self.lengths, self.widths, strict=True)]


@dataclass(frozen=True, slots=True)
class Move:
    """Columns [start, end) of one row's slot, to be copied to the columns that begin at to."""

    start: int
    end: int
    to: int


class Columns:
    """Where the rows' tokens lie in the buffers of all layers of one kind.

    window: tokens that a token sees, itself included; None for full attention.
    is_chunked: whether a token sees only those of its own chunk of window tokens, up to itself.
    max_cells: slots times columns up to which buffers may grow ahead of need; None means no limit.
    num_reserved: columns that a window's buffers have, or get when they are made.
    dirty_ends: (rows,) the column after which a row's columns are all zero; at least its end.

    For the current forward:
    uniform: whether all rows end in the same column.
    read_start, read_end: the columns that the forward reads. read_slice: the same as a slice.
    write_slice: the columns that a uniform forward writes. write_indices: the cells that another one writes:
        slots (rows, 1) and columns (rows, width + num_cleared).
    num_cleared: columns of zeros that the forward writes after its tokens.
    num_used: columns up to the last one that it reads or writes.
    """

    def __init__(self, shared: RowLengths, window: int | None = None, is_chunked: bool = False) -> None:
        self.shared = shared
        self.window = window
        self.is_chunked = is_chunked
        self.max_cells: int | None = None
        self.num_reserved = 0
        self.bases: list[int] = []
        self.dirty_ends: list[int] = []
        # The first position of each row that is still held.
        self._oldest: list[int] = []
        self.uniform = True
        self.read_start = self.read_end = self.num_cleared = self.num_used = 0
        self.read_slice = self.write_slice = slice(0, 0)
        self.write_indices: Sequence[mx.array] = ()
        self._masks: dict[tuple[int, bool, int | None], mx.array | str | None] = {}

    @property
    def held(self) -> Extent:
        """The slots and columns that the rows take, leftovers included."""
        return len(self.bases), max([0, *map(max, self._ends(), self.dirty_ends)])

    def end_of(self, row: int) -> int:
        """Return the column after a row's last token."""
        return self.shared.lengths[row] - self.bases[row]

    def _ends(self) -> list[int]:
        """(rows,) the column after each row's last token."""
        return [length - base for length, base in zip(self.shared.lengths, self.bases, strict=True)]

    def start_of(self, row: int) -> int:
        """Return the column of a row's first token that is still held."""
        return self._oldest[row] - self.bases[row]

    def first_live(self, row: int) -> int:
        """Return the position of the first token that later forwards of a row may read."""
        length = self.shared.lengths[row]
        return 0 if self.window is None else first_needed(length, self.window)

    def min_length(self, row: int) -> int:
        """Return the shortest length that a row can be rolled back to."""
        # Back to there, a forward needs no token before the oldest held.
        return 0 if self.window is None or not self._oldest[row] else self._oldest[row] + self.window - 1

    def add(self) -> None:
        """Append an empty row."""
        for numbers in (self.bases, self._oldest, self.dirty_ends):
            numbers.append(0)

    def place(self, row: int) -> None:
        """Choose a row's base from its length.

        The caller writes the row's live tokens, with zeros around them.
        """
        length, base = self.shared.lengths[row], 0
        oldest = self.first_live(row)
        if self.window is not None:
            others = (other for other in range(len(self.bases)) if other != row)
            end = max((self.end_of(other) for other in others), default=0)
            # End with the other rows, or less than a block before them, if the live tokens fit there.
            base = min(oldest, round_block(length - end))
            if length - base > end:
                self.num_reserved = max(self.num_reserved, round_block(length - base + SLACK_TOKENS))
        self.bases[row], self._oldest[row], self.dirty_ends[row] = base, oldest, length - base

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its index. Call it before the row is removed from the lengths.

        The caller copies the last row to its slot, with zeros around it.
        """
        last = len(self.bases) - 1
        self.dirty_ends[row], self.bases[row] = self.end_of(last), self.bases[last]
        self._oldest[row] = self._oldest[last]
        for numbers in (self.dirty_ends, self.bases, self._oldest):
            numbers.pop()

    def begin_forward(self) -> list[Move]:
        """Compute which columns the next forward reads and writes, after RowLengths.begin_forward.

        Returns a move for each row if the buffers must be laid out anew with num_reserved columns, else none.
        """
        moves: list[Move] = []
        self._masks = {}
        ends = self._look()
        if self.window is not None and self.num_used > self.num_reserved:
            moves = self._move_to_front(self.window)
            ends = self._look()
            self.num_reserved = round_block(self.num_used + SLACK_TOKENS)
        # Set now, not when the forward ends: one that fails halfway has written up to here.
        width = self.shared.width
        ends = [end + width for end in ends]
        self.dirty_ends = list(map(max, self.dirty_ends, ends))
        if not self.uniform:
            written = mx.array(ends)[:, None] + mx.arange(-width, self.num_cleared)
            self.write_indices = mx.arange(len(ends))[:, None], written
        return moves

    def columns_after(self, joining: Sequence[int], width: int) -> int:
        """Return the maximum columns of a window's buffers after the next forward.

        joining: lengths of the rows that join before that forward. width: most tokens that it feeds a row.
        """
        assert self.window is not None
        seen = self.window + BLOCK_TOKENS
        live = max((min(length, seen) for length in joining), default=0)
        reserved = max(self.num_reserved, round_block(live + SLACK_TOKENS) if joining else 0)
        # A forward also erases what the last one left behind a row's end.
        if max([live, *self.dirty_ends]) + 2 * width <= reserved:
            return reserved
        longest = max([*joining, *self.shared.lengths], default=0)
        held = round_block(min(longest, seen + ROLLBACK_TOKENS))
        return max(reserved, round_block(held + width + SLACK_TOKENS))

    def shrink(self) -> list[Move]:
        """Return a move for each row if a window's buffers have more columns than these rows need."""
        longest = max(self.shared.lengths) + SLACK_TOKENS
        if self.window is None or self.num_reserved <= window_columns(longest, self.window, 1):
            return []
        moves = self._move_to_front(self.window)
        self.num_reserved = round_block(max(self.dirty_ends) + SLACK_TOKENS)
        return moves

    def _look(self) -> list[int]:
        """Find the columns of the next forward for the present bases; return those after each row's end."""
        width, ends = self.shared.width, self._ends()
        self.uniform = self.shared.are_equal and len(set(ends)) == 1
        # Rows that end together read only columns that hold their tokens or are written by this forward.
        self.num_cleared = 0
        if not self.uniform:
            dirty = max([dirty_end - end for dirty_end, end in zip(self.dirty_ends, ends, strict=True)])
            self.num_cleared = max(0, dirty - width)
        if self.window is None:
            self.read_start = -max(self.bases)
        else:
            self.read_start = min([self.first_live(row) - base for row, base in enumerate(self.bases)])
        self.read_end = max(ends) + width
        self.num_used = self.read_end + self.num_cleared
        self.read_slice = slice(self.read_start, self.read_end)
        self.write_slice = slice(self.read_end - width, self.read_end)
        return ends

    def _move_to_front(self, window: int) -> list[Move]:
        lengths = self.shared.lengths
        starts = [self.start_of(row) for row in range(len(lengths))]
        ends = self._ends()
        self._oldest = [
            max(oldest, first_needed(max(0, length - ROLLBACK_TOKENS), window))
            for oldest, length in zip(self._oldest, lengths, strict=True)
        ]
        end = max(length - oldest for length, oldest in zip(lengths, self._oldest, strict=True))
        held_from = [oldest - base for oldest, base in zip(self._oldest, self.bases, strict=True)]
        assert all(start >= before for start, before in zip(held_from, starts, strict=True))
        self.bases = [round_block(length - end) for length in lengths]
        self.dirty_ends = self._ends()
        return [
            Move(start, stop, self.start_of(row))
            for row, (start, stop) in enumerate(zip(held_from, ends, strict=True))
        ]

    def end_forward(self) -> None:
        """Note which columns the forward has erased. To be called after RowLengths.end_forward()."""
        self._masks = {}
        if not self.uniform:
            self.dirty_ends = self._ends()

    def make_mask(self, num_fed: int, return_array: bool, window_size: int | None) -> mx.array | str | None:
        """Return the mask for mlx-lm's attention: None, "causal" or booleans, True where a token attends.

        num_fed: the forward's width. return_array: never return None or "causal".
        window_size: tokens that each token sees, itself included, if fewer than the window.
        The booleans have shape (rows, 1, num_fed, read_end - read_start), or 1 instead of rows if uniform.
        """
        asked = num_fed, return_array, window_size
        if asked not in self._masks:
            self._masks[asked] = self._make_mask(*asked)
        return self._masks[asked]

    def _make_mask(self, num_fed: int, return_array: bool, window_size: int | None) -> mx.array | str | None:
        sizes = [size for size in (window_size, self.window) if size]
        window = min(sizes) if sizes else None
        starts_at_zero, ranks = self.read_start == 0 and not any(self.bases), self.shared.ranks
        is_short = not window or self.read_end <= window
        if self.uniform and starts_at_zero and not return_array and is_short and not ranks:
            return None if num_fed == 1 else "causal"
        # Rows with the same length and base need one mask.
        num_masks = 1 if self.uniform and not ranks else len(self.bases)
        reads = mx.arange(self.read_start, self.read_end) + mx.array(self.bases[:num_masks])[:, None, None]
        writes = mx.array(self.shared.lengths[:num_masks])[:, None, None] + mx.arange(num_fed)[:, None]
        mask = _see_by_rank(ranks, reads - writes[:, :1], num_fed) if ranks else reads <= writes
        if window is not None:
            mask = mask & (
                reads // window == writes // window if self.is_chunked else writes - reads < window
            )
        return (mask if starts_at_zero else mask & (reads >= 0))[:, None]


def _see_by_rank(ranks: Sequence[Ranks | None], reads: mx.array, num_fed: int) -> mx.array:
    """Return which tokens of a forward see which: (rows, num_fed, columns) booleans.

    ranks: (rows,) those of RowLengths. A token of a row without any sees those before it.
    reads: (rows, 1, columns) the place of each token among those fed; negative if it was in the cache before.
    """
    # Padding comes last, as it is seen by no token.
    of_fed = mx.array([[*(one or ()), *range(len(one or ()), num_fed)] for one in ranks])[:, None]
    of_reads = mx.take_along_axis(of_fed, mx.clip(reads, 0, num_fed - 1), axis=-1)
    return mx.where(reads < num_fed, mx.where(reads < 0, -1, of_reads), num_fed) <= of_fed.swapaxes(1, 2)


def round_block(num_columns: int) -> int:
    """Round a number of columns, or a position, up to a multiple of BLOCK_TOKENS."""
    return -(-num_columns // BLOCK_TOKENS) * BLOCK_TOKENS
