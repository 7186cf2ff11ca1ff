"""Keys and values of many rows of different lengths, in one right-padded buffer a layer.

Row r of a buffer holds its tokens at 0 .. lengths[r]; what lies beyond is leftover and masked. So
rolling back is an integer subtraction, and a row joins or leaves by copying that row alone.
"""

from collections.abc import Sequence

import mlx.core as mx

GROWTH_TOKENS = 256

Extent = tuple[int, int]
"""Slots and columns of a buffer."""


class RowLengths:
    """How many tokens each row holds, and this forward's shape; shared by the caches of all layers.

    lengths: (rows,) tokens in the cache before this forward.
    dirty_ends: (rows,) columns from which on a row's values are zeros; between its length and there lie
        leftovers of rejected drafts, which may be anything.
    widths: (rows,) tokens that this forward adds to each row; width is the largest of them.
    most_places: slots times columns up to which buffers may grow ahead of need; None for no limit.
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
        """A row joins as the last one. Its values past its own end are zeros."""
        self.lengths.append(length)
        self.dirty_ends.append(length)

    def remove(self, row: int) -> None:
        """A row leaves; the last one was written into its place, with zeros behind."""
        self.lengths[row] = self.dirty_ends[row] = self.lengths[-1]
        self.lengths.pop()
        self.dirty_ends.pop()
        if not self.lengths:
            self._clear_forward()

    def begin_forward(self, widths: Sequence[int]) -> None:
        """Fix the arrays that every layer of the coming forward uses."""
        self.widths, self.width = widths, max(widths)
        self.padding = None
        if min(widths) < self.width:
            self.padding = (mx.arange(self.width) >= mx.array(list(widths))[:, None])[:, None, :, None]
        self.uniform = len(set(self.lengths)) == 1
        dirty = max(end - length for end, length in zip(self.dirty_ends, self.lengths, strict=True))
        # Rows of one length read nothing that they do not write in the same forward.
        self.num_cleared = 0 if self.uniform else max(0, dirty - self.width)
        # A forward that fails half-way has written this much.
        ends = [length + self.width for length in self.lengths]
        self.dirty_ends = [max(pair) for pair in zip(self.dirty_ends, ends, strict=True)]
        if self.uniform:
            self.offset = self.lengths[0]
            return
        self.offset = mx.array(self.lengths)
        self._rows = mx.arange(len(self.lengths))[:, None]
        self._columns = self.offset[:, None] + mx.arange(self.width + self.num_cleared)

    def end_forward(self) -> None:
        """The forward is built: every row now holds its width of tokens more."""
        self.lengths = [length + width for length, width in zip(self.lengths, self.widths, strict=True)]
        if not self.uniform:
            self.dirty_ends = list(self.lengths)

    @property
    def num_read_columns(self) -> int:
        """Columns that this forward reads: the longest row, its new tokens included."""
        return max(self.lengths) + self.width

    @property
    def num_used_columns(self) -> int:
        """Columns that this forward reads or writes."""
        return self.num_read_columns + self.num_cleared

    @property
    def write_indices(self) -> tuple[mx.array, mx.array]:
        """Where to write: rows (rows, 1), columns (rows, width + num_cleared). Ragged forwards only."""
        return self._rows, self._columns


class RaggedKVCache:
    """One layer's keys and values, speaking mlx-lm's cache protocol, so its models run unchanged.

    keys, values: (slots, heads, capacity, head_dim); rows are the first len(lengths) slots.
    """

    def __init__(self, shared: RowLengths) -> None:
        self.shared = shared
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        """Tokens before this forward: one int when all rows agree, else (rows,)."""
        return self.shared.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write (rows, heads, width, head_dim) and return all that this forward attends to.

        Returns (rows, heads, total, head_dim) twice; columns past a row's own end must be masked.
        """
        num_rows, total = keys.shape[0], self.shared.num_read_columns
        self.reserve(num_rows, self.shared.num_used_columns, keys, values)
        assert self.keys is not None and self.values is not None
        # Masked values still meet a weight of zero, and zero times a leftover NaN is NaN.
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
            # Indexing puts the indexed axes first: (rows, width, heads, head_dim).
            self.keys[at, :, columns[:, : self.shared.width]] = keys.transpose(0, 2, 1, 3)
            self.values[at, :, columns] = values.transpose(0, 2, 1, 3)
        return self.keys[:num_rows, :, :total], self.values[:num_rows, :, :total]

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """What mlx-lm's attention takes: None, "causal", or a boolean array, True where attended."""
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
        """Make room for that many slots and columns of what is shaped like keys and values."""
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
        """Slots and columns of the buffers; (0, 0) while there are none."""
        return (0, 0) if self.keys is None else (self.keys.shape[0], self.keys.shape[2])

    def resize(self, num_slots: int, num_columns: int) -> None:
        """Give the buffers that many slots and columns; what is new is zeros, what is beyond is forgotten."""
        if self.keys is not None and self.values is not None:
            self.keys = _resized(self.keys, num_slots, num_columns)
            self.values = _resized(self.values, num_slots, num_columns)

    def put_row(self, row: int, keys: mx.array, values: mx.array) -> None:
        """Write a whole row, with zeros for values behind it: (1, heads, n, head_dim) twice, n >= 1."""
        length = keys.shape[2]
        self.reserve(row + 1, length, keys, values)
        assert self.keys is not None and self.values is not None
        self.keys[row : row + 1, :, :length] = keys
        self.values[row : row + 1, :, :length] = values
        self.values[row : row + 1, :, length:] = 0

    def clear_row(self, row: int) -> None:
        """Zero the values that an earlier row left in this place."""
        if self.values is not None and row < self.values.shape[0]:
            self.values[row : row + 1] = 0

    def get_row(self, row: int, start: int, end: int) -> tuple[mx.array, mx.array]:
        """Copies of columns start .. end of a row: (1, heads, columns, head_dim) twice."""
        assert self.keys is not None and self.values is not None
        # Views would keep the buffer from being updated in place.
        keys, values = self.keys[row : row + 1, :, start:end], self.values[row : row + 1, :, start:end]
        return mx.contiguous(keys), mx.contiguous(values)


def grow_extent(extent: Extent, needed: Extent, max_cells: int | None) -> Extent:
    """Slots and columns that buffers of extent get so that they hold what is needed.

    Growth copies everything, so it is made rare: slots double and columns grow by a quarter. Where that
    would be more than most_places, they grow no further than is needed.
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
    """Slots and columns that buffers of extent keep when no more than this is needed any more."""
    (slots, columns), (num_slots, num_columns) = extent, needed
    # A quarter and a half: so that what shrank does not grow again at once.
    if num_slots <= slots // 4:
        slots = 2 * num_slots
    if num_columns <= columns // 2:
        columns = min(columns, round_columns(num_columns + num_columns // 4))
    return slots, columns


def round_columns(num_columns: int) -> int:
    """Columns that a buffer gets for so many tokens."""
    return max(1, -(-num_columns // GROWTH_TOKENS)) * GROWTH_TOKENS


def _resized(buffer: mx.array, num_slots: int, num_columns: int) -> mx.array:
    if num_slots < buffer.shape[0] or num_columns < buffer.shape[2]:
        # A view would keep all of it alive.
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
    """Everything that must be evaluated for these caches to hold no lazy array."""
    return [cache.state for cache in caches if not cache.empty()]  # type: ignore[attr-defined]
