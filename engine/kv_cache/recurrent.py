"""Store the recurrent state of all rows of a batch, and roll each row back to its own length.

A state depends on every token before it, so it cannot be trimmed. Instead, a forward that may be rolled back
records the inputs of its recurrences and convolutions (patches.py). Rolling back starts from the state before
that forward and computes only the recurrence again, over the accepted tokens: a few hundredths of a forward.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from reprise.engine.kv_cache.columns import RowLengths
from reprise.engine.kv_cache.patches import LayerTrace, Tracer, where_rows

MAX_LATER_STATES = 4
"""Forwards of one token after a traced one whose states are kept. Each keeps a whole state in memory."""


class RaggedStateCache(ArraysCache):
    """One layer's recurrent state: arrays of (rows, ...), in mlx-lm's protocol.

    cache: None for an array that no row has set yet.
    """

    cache: Any

    def __init__(self, shared: RowLengths, size: int) -> None:
        # Not super(): the lengths are a property here.
        self.cache = [None] * size
        self.left_padding = None
        self.shared = shared
        self.trace: LayerTrace | None = None
        self.tracer: Tracer | None = None

    @property
    def lengths(self) -> mx.array | None:  # type: ignore[override]
        """(rows,) tokens that the current forward adds to each row; None if no row is padded."""
        if self.trace:
            self.trace.knows_lengths = True
        return self.shared.fed

    def make_mask(self, N: int) -> mx.array | None:
        """Return booleans (rows, N), False where a row is padded; None if no row is."""
        return None if self.shared.fed is None else mx.arange(N) < self.shared.fed[:, None]

    def advance(self, N: int) -> None:
        """Do nothing: the lengths hold for the whole forward."""

    def __getitem__(self, at: int) -> mx.array | None:
        if self.tracer:
            self.tracer.current = self.trace
        array: mx.array | None = self.cache[at]
        return array

    def __setitem__(self, at: int, value: mx.array) -> None:
        self.cache[at] = value

    def add(self, row: int) -> None:
        """Append an empty row, with zeros for its state."""
        if row:
            self.cache = [
                None if array is None else mx.concatenate([array, mx.zeros_like(array[:1])])
                for array in self.cache
            ]

    def fill(self, row: int, given: ArraysCache) -> None:
        """Set the state of a row. A state that is not set yet counts as zeros everywhere in mlx-lm."""
        num_rows = len(self.shared.lengths)
        for idx, (held, new) in enumerate(zip(self.cache, list[Any](given.cache), strict=True)):
            example = held if new is None else new
            if example is None:
                continue
            zeros = mx.zeros((num_rows, *example.shape[1:]), example.dtype)
            rows, one = (zeros if array is None else array for array in (held, new))
            self.cache[idx] = mx.concatenate([rows[:row], one[:1], rows[row + 1 :]])

    def leave(self, row: int, last: int) -> None:
        """Remove a row; the last row takes its index."""
        kept = list(range(last))
        if row != last:
            kept[row] = last
        self.cache = [None if array is None or not last else array[mx.array(kept)] for array in self.cache]

    def row_state(self, row: int) -> list[mx.array | None]:
        """Copy the state of a row: arrays of (1, ...)."""
        return [None if array is None else mx.contiguous(array[row : row + 1]) for array in self.cache]


class StateHistory:
    """The trace of the last ragged forward, with which each row's state can go back into it, at most once.

    References to the states after each of up to MAX_LATER_STATES later forwards may be kept too.

    caches: those of all layers that keep recurrent state.
    """

    def __init__(self, caches: Sequence[RaggedStateCache], shared: RowLengths) -> None:
        """Begin with the forward that shared describes; its graph must be built in the block of trace()."""
        self._caches = caches
        self._shared = shared
        self._traces = [LayerTrace(list(cache.cache)) for cache in caches]
        self._starts, self._widths = list(shared.lengths), list(shared.widths)
        # By row: its place in the traces; None if it joined later, or has gone back already.
        self._places: list[int | None] = list(range(len(self._starts)))
        self._kept: dict[int, int] = {}
        # After each forward that followed: the arrays of each cache.
        self._later: list[list[list[mx.array | None]]] = []
        self._is_followed = True

    def follow(self, keeps_state: bool) -> None:
        """Note a later forward of one token per row. keeps_state: whether rows may go back to its end."""
        if not keeps_state or len(self._later) == MAX_LATER_STATES:
            self._is_followed = False
        # Rows that joined or moved have other places in the arrays than in the traces.
        elif self._is_followed and self._places == list(range(len(self._starts))):
            self._later.append([list(cache.cache) for cache in self._caches])
        else:
            self._is_followed = False

    @contextmanager
    def trace(self) -> Iterator[None]:
        """Trace the forward whose graph is built in the block."""
        tracer = Tracer(self._shared.fed)
        for cache, trace in zip(self._caches, self._traces, strict=True):
            cache.trace, cache.tracer = trace, tracer
        try:
            # A row of one token goes back to the state before or after it, which are at hand.
            if self._shared.width == 1:
                yield
            else:
                with tracer.tracing():
                    yield
            for cache, trace in zip(self._caches, self._traces, strict=True):
                trace.end(cache.cache, self._shared.width)
                # A layer that does not ask keeps the last columns, padding or not.
                if self._shared.fed is not None and not trace.knows_lengths:
                    cache.cache = trace.drop_padding(self._shared.fed, self._shared.width)
        finally:
            for cache in self._caches:
                cache.trace = cache.tracer = None

    def min_length(self, row: int) -> int | None:
        """Return the shortest length that a row can go back to; None if it cannot go back."""
        place = self._places[row]
        return None if place is None else self._starts[place]

    def go_back(self, row: int, length: int) -> int:
        """Roll a row back to a length, at least min_length(); return the length that it then has.

        That is less than length if length is past the traced forward and the later kept ones.
        """
        place = self._place(row)
        self._kept[row] = min(length - self._starts[place], self._widths[place] + len(self._later))
        return self._starts[place] + self._kept[row]

    def stay(self, row: int) -> None:
        """Drop a row's trace: the row will not go back."""
        if row not in self._kept:
            self._places[row] = None

    def add(self) -> None:
        """Append a row, which cannot go back."""
        self._places.append(None)

    def remove(self, row: int) -> None:
        """Remove a row, after apply(); the last row takes its index."""
        self._places[row] = self._places[-1]
        self._places.pop()

    @property
    def is_over(self) -> bool:
        """Whether no row can go back any more."""
        return all(place is None for place in self._places)

    def apply(self) -> None:
        """Compute the states of the rows that went back, all at once."""
        if not self._kept:
            return
        kept = [0] * len(self._starts)
        for row, num in self._kept.items():
            kept[self._place(row)] = num
        places = mx.array([place or 0 for place in self._places])
        goes_back = mx.array([row in self._kept for row in range(len(self._places))])
        is_same = self._places == list(range(len(self._starts)))
        beyond = [max(0, num - width) for num, width in zip(kept, self._widths, strict=True)]
        within = [num - more for num, more in zip(kept, beyond, strict=True)]
        for at, (cache, trace) in enumerate(zip(self._caches, self._traces, strict=True)):
            for idx, now in enumerate(cache.cache):
                if now is None or trace.after[idx] is None:
                    continue
                then = trace.at(idx, within, self._widths)
                for more in set(beyond) - {0}:
                    later = self._later[more - 1][at][idx]
                    assert later is not None
                    then = where_rows(mx.array(beyond) == more, later, then)
                cache.cache[idx] = where_rows(goes_back, then if is_same else then[places], now)
        for row in self._kept:
            self._places[row] = None
        self._kept = {}

    def _place(self, row: int) -> int:
        place = self._places[row]
        assert place is not None
        return place
