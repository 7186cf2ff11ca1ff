"""Keys and values of a sliding window, in temporal order, so that going back is a subtraction."""

import mlx.core as mx

BLOCK_TOKENS = 64
SLACK_TOKENS = 256
ROLLBACK_TOKENS = 256
"""Most tokens to forget over several updates: a draft model feeds its drafts, up to 255, one by one."""


def max_columns(window: int, max_width: int) -> int:
    """Columns that a buffer ever has, where no update brings more than most_fed tokens."""
    return window + BLOCK_TOKENS + max(ROLLBACK_TOKENS, max_width) + max_width + SLACK_TOKENS


class WindowKVCache:
    """One row's keys and values in a layer whose tokens see the last `window` tokens, themselves included.

    It stands in for mlx-lm's RotatingKVCache and answers the same protocol. A buffer, (1, heads, capacity,
    head_dim), holds positions base .. offset one after another; now and then what no window reaches any more
    is dropped from its front. What a forward attends to starts at a multiple of BLOCK_TOKENS and is masked
    down to each token's window: so a key stays in the same lane of a vectorised sum however many tokens are
    fed at once.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.offset = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._base = 0
        self._read_start = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append (1, heads, width, head_dim) and return all that this forward attends to, to be masked."""
        width = keys.shape[2]
        self._read_start = self._first_needed(self.offset)
        self._reserve(width, keys, values)
        assert self.keys is not None and self.values is not None
        at = self.offset - self._base
        self.keys[:, :, at : at + width] = keys
        self.values[:, :, at : at + width] = values
        self.offset += width
        return self.keys_and_values()

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """What the last update returned, for layers that share it."""
        assert self.keys is not None and self.values is not None
        start, end = self._read_start - self._base, self.offset - self._base
        return self.keys[:, :, start:end], self.values[:, :, start:end]

    def live_columns(self) -> tuple[mx.array, mx.array]:
        """What later forwards can read: (1, heads, columns, head_dim) twice, up to the newest token."""
        assert self.keys is not None and self.values is not None
        start, end = self._first_needed(self.offset) - self._base, self.offset - self._base
        return self.keys[:, :, start:end], self.values[:, :, start:end]

    def restore(self, keys: mx.array, values: mx.array, offset: int) -> None:
        """Hold what live_columns() gave when offset tokens had been fed."""
        self.keys, self.values, self.offset = keys, values, offset
        self._base = self._read_start = self._first_needed(offset)

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """What mlx-lm's attention takes: None, "causal", or (N, columns) booleans, True where attended.

        window_size: a narrower window than the cache's own.
        """
        window = min(window_size or self.window, self.window)
        end = self.offset + N
        if end <= window and not return_array:
            return None if N == 1 else "causal"
        reads = mx.arange(self._first_needed(self.offset), end)
        writes = mx.arange(self.offset, end)[:, None]
        return (reads <= writes) & (writes - reads < window)

    def trim(self, n: int) -> int:
        """Forget the last n tokens and return n.

        Always possible for those of the last update, and for ROLLBACK_TOKENS over any number of them, but
        not back beyond restore().

        Raises ValueError if the window of what is left has been dropped already.
        """
        n = min(n, self.offset)
        if self._first_needed(self.offset - n) < self._base:
            raise ValueError(f"a window of {self.window} tokens at {self.offset} cannot go back by {n}")
        self.offset -= n
        return n

    def is_trimmable(self) -> bool:
        """Whether the tokens of the last update can be forgotten: always."""
        return True

    def size(self) -> int:
        """Tokens that the next one attends to, itself included."""
        return min(self.offset, self.window)

    def empty(self) -> bool:
        """Whether it never held anything."""
        return self.keys is None

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None]:
        """The arrays that it holds."""
        return self.keys, self.values

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays that it holds."""
        return sum(array.nbytes for array in self.state if array is not None)

    def _first_needed(self, position: int) -> int:
        """Where a forward that starts at position begins to read."""
        return max(0, position - self.window + 1) // BLOCK_TOKENS * BLOCK_TOKENS

    def _reserve(self, width: int, keys: mx.array, values: mx.array) -> None:
        held = self.offset - self._base
        if self.keys is not None and held + width <= self.keys.shape[2]:
            return
        needed = min(self._read_start, self._first_needed(max(0, self.offset - ROLLBACK_TOKENS)))
        # What restore() was not given cannot be kept.
        needed = max(needed, self._base)
        dropped, self._base = needed - self._base, needed
        self.keys = _copy_with_room(self.keys, dropped, held, width, keys)
        self.values = _copy_with_room(self.values, dropped, held, width, values)


def _copy_with_room(buffer: mx.array | None, start: int, end: int, width: int, like: mx.array) -> mx.array:
    """Columns start .. end of a buffer at the front of a new one, with room for width and some slack."""
    _, heads, _, dim = like.shape
    room = mx.zeros((1, heads, width + SLACK_TOKENS, dim), like.dtype)
    return room if buffer is None else mx.concatenate([buffer[:, :, start:end], room], axis=2)
