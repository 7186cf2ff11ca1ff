"""Keep the keys and values of rows of different lengths in one right-padded buffer per layer.

Every layer has a buffer of keys and one of values, each of shape (slots, heads, columns, head_dim).
Row r of the batch uses slot r; slots past the last row are spare. The token at position i of row r is in
column i:

    columns [0, lengths[r])               the row's tokens
    columns [lengths[r], dirty_ends[r])   leftovers of rejected drafts or failed forwards: anything, even NaN
    columns [dirty_ends[r], columns)      values are zero; keys may be anything

Attention masks every column past a row's length. A masked key has no effect, but a masked value is still
multiplied by a weight of zero, and zero times NaN is NaN. So no forward reads a value from the second range
before it has overwritten it.

A forward of width w writes row r's new tokens to columns [lengths[r], lengths[r] + w) and reads columns
[0, max(lengths) + w). A row with fewer than w new tokens is padded on the right, with values of zero.

- Rows of equal length (*uniform*): one slice is written in all rows, and the offset is an int.
- Rows of different lengths (*ragged*): each row is written at its own columns, and the offset is an array of
  shape (rows,). The write is num_cleared columns longer, with values of zero, to erase all leftovers.

So rolling back a row only lowers its length, and adding or removing a row copies at most one row.
"""

from collections.abc import Sequence

import mlx.core as mx

GROWTH_TOKENS = 256
"""The number of columns of a buffer is a multiple of this."""

Extent = tuple[int, int]
"""The number of slots and the number of columns of a buffer. Their product is its number of *cells*."""


class RowLengths:
    """The rows' lengths and the shape of the current forward, shared by the caches of all layers.

    max_cells: slots times columns up to which buffers may grow ahead of need; None means no limit.
    lengths: (rows,) tokens in the cache before the current forward.
    dirty_ends: (rows,) first column from which on all of a row's values are zero; at least its length.
    widths: (rows,) tokens that the current forward adds to each row; width is the largest of them.
    num_cleared: columns of zero values that the current forward writes after the width.
    uniform: whether all rows have the same length.
    offset: tokens before the current forward: an int if uniform, else (rows,).
    padding: (rows, 1, width, 1) True where a row is padded; None if no row is.
    """

    def __init__(self) -> None:
        self.max_cells: int | None = None
        self.lengths: list[int] = []
        self.dirty_ends: list[int] = []
        self._clear_forward()

    def _clear_forward(self) -> None:
        self.widths: Sequence[int] = ()
        self.width = 0
        self.num_cleared = 0
        self.uniform = True
        self.offset: int | mx.array = 0
        self.padding: mx.array | None = None
        self._rows = self._columns = mx.array(0)

    def add(self, length: int) -> None:
        """Append a row of that length, whose values past its end are zero."""
        self.lengths.append(length)
        self.dirty_ends.append(length)

    def set_length(self, row: int, length: int) -> None:
        """Set the length of a row that was just written; its values past its end are zero."""
        self.lengths[row] = self.dirty_ends[row] = length

    def remove(self, row: int) -> None:
        """Remove a row. The caller has copied the last row to its slot, with zero values after it."""
        self.lengths[row] = self.dirty_ends[row] = self.lengths[-1]
        self.lengths.pop()
        self.dirty_ends.pop()
        if not self.lengths:
            self._clear_forward()

    def begin_forward(self, widths: Sequence[int]) -> None:
        """Compute what every layer of the next forward uses. widths: (rows,) tokens to add, each >= 1."""
        self.widths, self.width = widths, max(widths)
        self.padding = None
        if min(widths) < self.width:
            self.padding = (mx.arange(self.width) >= mx.array(list(widths))[:, None])[:, None, :, None]
        self.uniform = len(set(self.lengths)) == 1
        dirty = max(end - length for end, length in zip(self.dirty_ends, self.lengths, strict=True))
        # Rows of equal length read only columns that hold their tokens or are written by this forward.
        self.num_cleared = 0 if self.uniform else max(0, dirty - self.width)
        # Set now, not when the forward ends: one that fails halfway has written up to here.
        ends = [length + self.width for length in self.lengths]
        self.dirty_ends = [max(pair) for pair in zip(self.dirty_ends, ends, strict=True)]
        if self.uniform:
            self.offset = self.lengths[0]
            return
        self.offset = mx.array(self.lengths)
        self._rows = mx.arange(len(self.lengths))[:, None]
        self._columns = self.offset[:, None] + mx.arange(self.width + self.num_cleared)

    def end_forward(self) -> None:
        """Add each row's width to its length. Call it when the graph of the forward has been built."""
        self.lengths = [length + width for length, width in zip(self.lengths, self.widths, strict=True)]
        if not self.uniform:
            self.dirty_ends = list(self.lengths)

    @property
    def num_read_columns(self) -> int:
        """Columns that this forward reads: the longest row and the width."""
        return max(self.lengths) + self.width

    @property
    def num_used_columns(self) -> int:
        """Columns that this forward reads or writes."""
        return self.num_read_columns + self.num_cleared

    @property
    def write_indices(self) -> tuple[mx.array, mx.array]:
        """Where a ragged forward writes: slots (rows, 1) and columns (rows, width + num_cleared)."""
        return self._rows, self._columns


class RaggedKVCache:
    """One layer's keys and values. It has mlx-lm's cache protocol, so mlx-lm's models run unchanged.

    keys, values: (slots, heads, columns, head_dim), laid out as the module describes; None until first used.
    """

    def __init__(self, shared: RowLengths) -> None:
        self.shared = shared
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        """The number of tokens before this forward: an int if all rows agree, else (rows,)."""
        return self.shared.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write the new keys and values and return all keys and values that this forward reads.

        keys, values: (rows, heads, width, head_dim).
        Returns keys and values of shape (rows, heads, num_read_columns, head_dim). The caller must mask the
        columns past each row's own end.
        """
        num_rows, total = keys.shape[0], self.shared.num_read_columns
        self.reserve(num_rows, self.shared.num_used_columns, keys, values)
        assert self.keys is not None and self.values is not None
        # A masked value is still multiplied by a weight of zero, and zero times NaN is NaN.
        if self.shared.padding is not None:
            values = mx.where(self.shared.padding, mx.zeros((), values.dtype), values)
        if self.shared.uniform:
            start = self.shared.lengths[0]
            self.keys[:num_rows, :, start:total] = keys
            self.values[:num_rows, :, start:total] = values
        else:
            at, columns = self.shared.write_indices
            if self.shared.num_cleared:
                values = mx.pad(values, [(0, 0), (0, 0), (0, self.shared.num_cleared), (0, 0)])
            # Indexing with two arrays moves the indexed axes to the front: (rows, width, heads, head_dim).
            self.keys[at, :, columns[:, : self.shared.width]] = keys.transpose(0, 2, 1, 3)
            self.values[at, :, columns] = values.transpose(0, 2, 1, 3)
        return self.keys[:num_rows, :, :total], self.values[:num_rows, :, :total]

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the mask for mlx-lm's attention: None, "causal" or booleans, True where a token attends.

        N: the forward's width. return_array: never return None or "causal".
        window_size: tokens that each token sees, itself included; None for all.
        The booleans have shape (rows, 1, N, num_read_columns).
        """
        total = self.shared.num_read_columns
        if self.shared.uniform and not return_array and (window_size is None or total <= window_size):
            return None if N == 1 else "causal"
        reads = mx.arange(total)
        writes = mx.array(self.shared.lengths)[:, None] + mx.arange(N)
        mask = reads <= writes[..., None]
        if window_size is not None:
            mask = mask & (writes[..., None] - reads < window_size)
        return mask[:, None]

    def reserve(self, num_slots: int, num_columns: int, keys: mx.array, values: mx.array) -> None:
        """Ensure that the buffers have at least that many slots and columns.

        keys, values: examples, which set the heads, head_dim and dtype of buffers that do not exist yet.
        """
        if self.keys is None or self.values is None:
            extent = num_slots, round_columns(num_columns)
            self.keys, self.values = (
                mx.zeros((extent[0], like.shape[1], extent[1], like.shape[3]), like.dtype)
                for like in (keys, values)
            )
        elif num_slots > self.extent[0] or num_columns > self.extent[1]:
            self.resize(*grow_extent(self.extent, (num_slots, num_columns), self.shared.max_cells))

    @property
    def extent(self) -> Extent:
        """The slots and columns of the buffers; (0, 0) before the first use."""
        return (0, 0) if self.keys is None else (self.keys.shape[0], self.keys.shape[2])

    def resize(self, num_slots: int, num_columns: int) -> None:
        """Resize the buffers to that many slots and columns; new cells are zero, cells beyond are dropped."""
        if self.keys is not None and self.values is not None:
            self.keys = _resized(self.keys, num_slots, num_columns)
            self.values = _resized(self.values, num_slots, num_columns)

    def put_row(self, row: int, keys: mx.array, values: mx.array) -> None:
        """Write a whole row, and zero its values after it. keys, values: (1, heads, n, head_dim), n >= 1."""
        length = keys.shape[2]
        self.reserve(row + 1, length, keys, values)
        assert self.keys is not None and self.values is not None
        self.keys[row : row + 1, :, :length] = keys
        self.values[row : row + 1, :, :length] = values
        self.values[row : row + 1, :, length:] = 0

    def clear_row(self, row: int) -> None:
        """Zero the values that an earlier row left in this slot."""
        if self.values is not None and row < self.values.shape[0]:
            self.values[row : row + 1] = 0

    def get_row(self, row: int, start: int, end: int) -> tuple[mx.array, mx.array]:
        """Copy columns [start, end) of a row: keys and values of (1, heads, end - start, head_dim)."""
        assert self.keys is not None and self.values is not None
        # A view would hold a reference to the buffer, which could then not be updated in place.
        keys, values = self.keys[row : row + 1, :, start:end], self.values[row : row + 1, :, start:end]
        return mx.contiguous(keys), mx.contiguous(values)


def grow_extent(extent: Extent, needed: Extent, max_cells: int | None) -> Extent:
    """Return the extent to grow buffers to, so that they have at least the slots and columns needed.

    Growing copies the buffers, so it has to be rare: slots double and columns grow by a quarter. If that
    makes more than max_cells cells, the buffers grow only as far as needed. max_cells: None for no limit.
    """
    (slots, columns), (num_slots, num_columns) = extent, needed
    if num_slots > slots:
        slots = max(num_slots, 2 * slots)
    if num_columns > columns:
        columns = round_columns(max(num_columns, columns + columns // 4))
    if max_cells is not None and slots * columns > max_cells:
        return max(extent[0], num_slots), max(extent[1], round_columns(num_columns))
    return slots, columns


def shrink_extent(extent: Extent, needed: Extent) -> Extent:
    """Return the extent to shrink buffers to when only that many slots and columns are needed."""
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


def _resized(buffer: mx.array, num_slots: int, num_columns: int) -> mx.array:
    if num_slots < buffer.shape[0] or num_columns < buffer.shape[2]:
        # A view would keep the whole old buffer alive.
        buffer = mx.contiguous(buffer[:num_slots, :, :num_columns])
    slots, heads, columns, dim = buffer.shape
    if num_columns > columns:
        more = mx.zeros((slots, heads, num_columns - columns, dim), buffer.dtype)
        buffer = mx.concatenate([buffer, more], axis=2)
    if num_slots > slots:
        more = mx.zeros((num_slots - slots, *buffer.shape[1:]), buffer.dtype)
        buffer = mx.concatenate([buffer, more], axis=0)
    return buffer


def cache_arrays(caches: Sequence[object]) -> list[object]:
    """Return the arrays to evaluate so that these caches hold no lazy array."""
    return [cache.state for cache in caches if not cache.empty()]  # type: ignore[attr-defined]
