"""Keys and values of many rows of different lengths, in one right-padded buffer a layer.

Row r of a buffer holds its tokens at 0 .. lengths[r]; what lies beyond is leftover and masked. So
rolling back is an integer subtraction, and a row joins or leaves by copying that row alone.
"""

from collections.abc import Sequence

import mlx.core as mx

GROWTH_TOKENS = 256


class RowLengths:
    """How many tokens each row holds, and this forward's shape; shared by the caches of all layers.

    lengths: (rows,) tokens in the cache before this forward.
    width: tokens that this forward adds to every row.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.width = 0
        self.uniform = True
        self.offset: int | mx.array = 0
        self._rows = self._columns = mx.array(0)

    def begin(self, width: int) -> None:
        """Fix the arrays that every layer of the coming forward uses."""
        self.width = width
        self.uniform = len(set(self.lengths)) == 1
        if self.uniform:
            self.offset = self.lengths[0]
            return
        self.offset = mx.array(self.lengths)
        self._rows = mx.arange(len(self.lengths))[:, None]
        self._columns = self.offset[:, None] + mx.arange(width)

    def end(self) -> None:
        """The forward is built: every row now holds width tokens more."""
        self.lengths = [length + self.width for length in self.lengths]

    @property
    def total(self) -> int:
        """Columns that this forward reads: the longest row, its new tokens included."""
        return max(self.lengths) + self.width

    @property
    def places(self) -> tuple[mx.array, mx.array]:
        """Where the new tokens go: rows (rows, 1) and columns (rows, width). Ragged forwards only."""
        return self._rows, self._columns


class RaggedKVCache:
    """One layer's keys and values, speaking mlx-lm's cache protocol, so its models run unchanged.

    keys, values: (slots, heads, capacity, head_dim); rows are the first len(lengths) slots.
    """

    def __init__(self, rows: RowLengths) -> None:
        self.rows = rows
        self.keys: mx.array | None = None
        self.values: mx.array | None = None

    @property
    def offset(self) -> int | mx.array:
        """Tokens before this forward: one int when all rows agree, else (rows,)."""
        return self.rows.offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Write (rows, heads, width, head_dim) and return all that this forward attends to.

        Returns (rows, heads, total, head_dim) twice; columns past a row's own end must be masked.
        """
        num_rows, total = keys.shape[0], self.rows.total
        self.reserve(num_rows, total, keys, values)
        assert self.keys is not None and self.values is not None
        if self.rows.uniform:
            start = self.rows.lengths[0]
            self.keys[:num_rows, :, start:total] = keys
            self.values[:num_rows, :, start:total] = values
        else:
            at, columns = self.rows.places
            # Indexing puts the indexed axes first: (rows, width, heads, head_dim).
            self.keys[at, :, columns] = keys.transpose(0, 2, 1, 3)
            self.values[at, :, columns] = values.transpose(0, 2, 1, 3)
        return self.keys[:num_rows, :, :total], self.values[:num_rows, :, :total]

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """What mlx-lm's attention takes: None, "causal", or a boolean array, True where attended."""
        total = self.rows.total
        if self.rows.uniform and not return_array and (window_size is None or total <= window_size):
            return None if N == 1 else "causal"
        reads = mx.arange(total)
        writes = mx.array(self.rows.lengths)[:, None] + mx.arange(N)
        mask = reads <= writes[..., None]
        if window_size is not None:
            mask = mask & (writes[..., None] - reads < window_size)
        return mask[:, None]

    def reserve(self, num_slots: int, num_columns: int, keys: mx.array, values: mx.array) -> None:
        """Make room for that many slots and columns of what is shaped like keys and values."""
        self.keys = _grown(self.keys, num_slots, num_columns, keys)
        self.values = _grown(self.values, num_slots, num_columns, values)

    def put_row(self, row: int, keys: mx.array, values: mx.array) -> None:
        """Write a whole row: (1, heads, n, head_dim) twice, n >= 1."""
        length = keys.shape[2]
        self.reserve(row + 1, length, keys, values)
        assert self.keys is not None and self.values is not None
        self.keys[row : row + 1, :, :length] = keys
        self.values[row : row + 1, :, :length] = values
        # Masked values still meet a weight of zero, and zero times a leftover NaN is NaN.
        self.values[row : row + 1, :, length:] = 0

    def get_row(self, row: int, length: int) -> tuple[mx.array, mx.array]:
        """Copies of the first length columns of a row: (1, heads, length, head_dim) twice."""
        assert self.keys is not None and self.values is not None
        # Views would keep the buffer from being updated in place.
        keys, values = self.keys[row : row + 1, :, :length], self.values[row : row + 1, :, :length]
        return mx.contiguous(keys), mx.contiguous(values)


def _grown(buffer: mx.array | None, num_slots: int, num_columns: int, like: mx.array) -> mx.array:
    _, heads, _, dim = like.shape
    if buffer is None:
        return mx.zeros((num_slots, heads, _rounded(num_columns), dim), like.dtype)
    slots, _, capacity, _ = buffer.shape
    if num_columns > capacity:
        # A quarter at a time: growth copies everything, so it must become rare as rows get long.
        more = _rounded(max(num_columns, capacity + capacity // 4)) - capacity
        buffer = mx.concatenate([buffer, mx.zeros((slots, heads, more, dim), like.dtype)], axis=2)
    if num_slots > slots:
        more = max(num_slots, 2 * slots) - slots
        buffer = mx.concatenate([buffer, mx.zeros((more, *buffer.shape[1:]), like.dtype)], axis=0)
    return buffer


def _rounded(num_columns: int) -> int:
    return -(-num_columns // GROWTH_TOKENS) * GROWTH_TOKENS


def states(caches: Sequence[object]) -> list[object]:
    """Everything that must be evaluated for these caches to hold no lazy array."""
    return [cache.state for cache in caches if not cache.empty()]  # type: ignore[attr-defined]
