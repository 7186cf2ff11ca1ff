"""Store a sliding window's keys and values in temporal order, so that rolling back is a subtraction."""

import mlx.core as mx

BLOCK_TOKENS = 64
"""A forward's first column read is at a multiple of this position."""

SLACK_TOKENS = 256
"""Spare columns of a new buffer, so that it need not be replaced at every update."""

ROLLBACK_TOKENS = 256
"""Maximum tokens to forget over several updates: a draft model feeds up to 255 drafted tokens one by one."""


def window_columns(num_tokens: int, window: int, max_width: int) -> int:
    """Return the maximum columns of a window's buffer if no update adds more than max_width tokens.

    num_tokens: the longest text's length plus SLACK_TOKENS. Rows that share buffers need up to three blocks
        more than the window, as they begin and end in different columns of a block.
    """
    seen = window + 2 * BLOCK_TOKENS + max(ROLLBACK_TOKENS, max_width) + max_width + SLACK_TOKENS
    return min(num_tokens, seen) + 2 * BLOCK_TOKENS


def first_needed(position: int, window: int) -> int:
    """Return the first position that a forward starting at position reads: a multiple of BLOCK_TOKENS."""
    return max(0, position - window + 1) // BLOCK_TOKENS * BLOCK_TOKENS


class WindowKVCache:
    """One row's keys and values in a layer where a token sees the last `window` tokens, itself included.

    It replaces mlx-lm's RotatingKVCache and has as much of its protocol as models use. A buffer of shape
    (1, heads, columns, head_dim) holds the positions [_base, offset) in order. When the buffer is full,
    positions that no window can reach any more are dropped from its front.

    What a forward reads starts at a multiple of BLOCK_TOKENS and is masked down to each token's window. So a
    key always falls into the same lane of a vectorized sum, and rounding does not depend on how many tokens
    are fed at once.
    """

    def __init__(self, window: int) -> None:
        self.window = window
        self.offset = 0
        self.keys: mx.array | None = None
        self.values: mx.array | None = None
        self._base = 0
        self._read_start = 0

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append keys and values of (1, heads, width, head_dim); return all that this forward reads.

        Returns keys and values of shape (1, heads, columns, head_dim). make_mask() masks them.
        """
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
        """Return the keys and values of the last update, for layers that share this cache."""
        assert self.keys is not None and self.values is not None
        start, end = self._read_start - self._base, self.offset - self._base
        return self.keys[:, :, start:end], self.values[:, :, start:end]

    def live_columns(self, length: int | None = None) -> tuple[mx.array, mx.array]:
        """Return the keys and values that later forwards can read: (1, heads, columns, head_dim) each.

        length: where the text ends, at least its length before the last update; None for offset.
        """
        assert self.keys is not None and self.values is not None
        length = self.offset if length is None else length
        start, end = self._first_needed(length) - self._base, length - self._base
        return self.keys[:, :, start:end], self.values[:, :, start:end]

    def view(self, start: int, end: int) -> list[mx.array]:
        """Return views of the keys and the values of positions [start, end)."""
        assert self.keys is not None and self.values is not None
        return [array[:, :, start - self._base : end - self._base] for array in (self.keys, self.values)]

    def restore(self, keys: mx.array, values: mx.array, offset: int) -> None:
        """Set the keys and values that live_columns() returned when offset tokens had been fed."""
        self.keys, self.values, self.offset = keys, values, offset
        self._base = self._read_start = self._first_needed(offset)

    def columns_after(self, width: int) -> int:
        """Return the most columns that the buffer has once width more tokens have been fed."""
        columns, held = 0 if self.keys is None else self.keys.shape[2], self.offset - self._base
        if held + width <= columns:
            return columns
        return max(columns, self.offset - self._first_kept() + width + SLACK_TOKENS)

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the mask for mlx-lm's attention: None, "causal" or booleans, True where a token attends.

        Call it before the update of N tokens. The booleans have shape (N, columns).
        return_array: never return None or "causal".
        window_size: a narrower window than the cache's own; None for the cache's own.
        """
        window = min(window_size or self.window, self.window)
        end = self.offset + N
        if end <= window and not return_array:
            return None if N == 1 else "causal"
        reads = mx.arange(self._first_needed(self.offset), end)
        writes = mx.arange(self.offset, end)[:, None]
        return (reads <= writes) & (writes - reads < window)

    def trim(self, n: int) -> int:
        """Forget the last n tokens and return n. An n above offset counts as offset.

        The tokens of the last update can always be forgotten, and so can ROLLBACK_TOKENS over any number of
        updates, but none from before the last restore().
        Raises ValueError if the window of the remaining tokens has already been dropped.
        """
        n = min(n, self.offset)
        if self._first_needed(self.offset - n) < self._base:
            raise ValueError(f"a window of {self.window} tokens at {self.offset} cannot be trimmed by {n}")
        self.offset -= n
        return n

    def empty(self) -> bool:
        """Return whether the cache has never been used."""
        return self.keys is None

    @property
    def state(self) -> tuple[mx.array | None, mx.array | None]:
        """The keys and values; None before the first use."""
        return self.keys, self.values

    def _first_needed(self, position: int) -> int:
        return first_needed(position, self.window)

    def _first_kept(self) -> int:
        """Return the first position that a new buffer keeps."""
        # After a restore() the buffer may start later than what rolling back needs.
        return max(self._base, self._first_needed(max(0, self.offset - ROLLBACK_TOKENS)))

    def _reserve(self, width: int, keys: mx.array, values: mx.array) -> None:
        held = self.offset - self._base
        if self.keys is not None and held + width <= self.keys.shape[2]:
            return
        kept = self._first_kept()
        dropped, self._base = kept - self._base, kept
        self.keys = _copy_with_room(self.keys, dropped, held, width, keys)
        self.values = _copy_with_room(self.values, dropped, held, width, values)


class ChunkedWindowKVCache(WindowKVCache):
    """One row's keys and values where a token sees its own chunk of `window` tokens up to itself.

    It replaces mlx-lm's ChunkedKVCache. The model makes the mask itself, from start_position and offset.
    """

    @property
    def start_position(self) -> int:
        """The position of the first key that the next forward reads."""
        return self._first_needed(self.offset)

    def maybe_trim_front(self) -> None:
        """Do nothing: update_and_fetch() drops what no window can reach."""


def _copy_with_room(buffer: mx.array | None, start: int, end: int, width: int, like: mx.array) -> mx.array:
    """Copy columns [start, end) of a buffer to the front of a new one with room for width and slack.

    buffer: None if there is none yet. like: sets the heads, head_dim and dtype.
    """
    _, heads, _, dim = like.shape
    spare = mx.zeros((1, heads, width + SLACK_TOKENS, dim), like.dtype)
    return spare if buffer is None else mx.concatenate([buffer[:, :, start:end], spare], axis=2)
