"""Store all rows' keys and values in one buffer per layer; columns.py describes the layout."""

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import KVCache

from reprise.engine.kv_cache.columns import Columns, Extent, Move, grow_extent, grow_slots, round_columns
from reprise.engine.kv_cache.groups import Group, Groups, PerGroup
from reprise.engine.kv_cache.per_row import (
    Caches,
    FittedQuantizedKVCache,
    fitting_group_size,
    is_recurrent,
    leaves,
)
from reprise.engine.kv_cache.sliding_window import WindowKVCache


class RaggedKVCache:
    """One layer's keys and values. It has mlx-lm's cache protocol, so mlx-lm's models run unchanged.

    arrays: the buffers, those of the keys first, (slots, heads, columns, any) each; empty until first used.
    """

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.arrays: list[mx.array] = []

    @property
    def offset(self) -> int | mx.array:
        """The number of tokens before this forward: an int if all rows agree, else (rows,)."""
        return self.columns.shared.offset

    @property
    def keys(self) -> mx.array:
        """The keys' buffer; not for quantized caches. Settable: mlx-lm's DeepSeek V3.2 assigns it."""
        return self.arrays[0]

    @keys.setter
    def keys(self, buffer: mx.array) -> None:
        self.arrays[0] = buffer

    @property
    def values(self) -> mx.array:
        """The values' buffer; not for quantized caches. Settable: DeepSeek V3.2 zeroes unused values."""
        return self.arrays[1]

    @values.setter
    def values(self, buffer: mx.array) -> None:
        self.arrays[1] = buffer

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Write the new keys and values and return all keys and values that this forward reads.

        keys, values: (rows, heads, width, head_dim).
        Returns keys and values of (rows, heads, columns, head_dim) each, or three arrays each if quantized.
        The caller masks the columns that a row must not see.
        """
        padding = self.columns.shared.padding
        # A masked value is still multiplied by a weight of zero, and zero times NaN is NaN. Keys may be
        # values too: with latent attention they are.
        if padding is not None:
            keys, values = (mx.where(padding, mx.zeros((), one.dtype), one) for one in (keys, values))
        encoded = self._encode(keys, values)
        self._reserve(keys.shape[0], self.columns.num_used, encoded)
        self._write(encoded)
        return self.keys_and_values()

    def _write(self, encoded: Sequence[mx.array]) -> None:
        """Write new columns, and erase leftovers after them."""
        columns = self.columns
        for buffer, new in zip(self.arrays, encoded, strict=True):
            if columns.uniform:
                buffer[: new.shape[0], :, columns.write_slice] = new
                continue
            slots, at = columns.write_indices
            if columns.num_cleared:
                new = mx.pad(new, [(0, 0), (0, 0), (0, columns.num_cleared), (0, 0)])
            # Indexing with two arrays moves the indexed axes to the front: (rows, width, heads, head_dim).
            buffer[slots, :, at] = new.transpose(0, 2, 1, 3)

    def keys_and_values(self) -> tuple[Any, Any]:
        """Return the keys and values of the last update, for layers that share this cache."""
        num_rows, read = len(self.columns.bases), self.columns.read_slice
        return self._decode([array[:num_rows, :, read] for array in self.arrays])

    def make_mask(
        self, N: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the mask for mlx-lm's attention; see Columns.make_mask."""
        return self.columns.make_mask(N, return_array, window_size)

    def _encode(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        return [keys, values]

    def _decode(self, arrays: list[mx.array]) -> tuple[Any, Any]:
        return arrays[0], arrays[1]

    def _reserve(self, num_slots: int, num_columns: int, examples: Sequence[mx.array]) -> None:
        """Ensure that the buffers have at least that many slots and columns.

        examples: set the shapes and types of buffers that do not exist yet.
        """
        is_window, extent = self.columns.window is not None, self.extent
        needed = num_slots, max(num_columns, self.columns.num_reserved) if is_window else num_columns
        if self.arrays and needed[0] <= extent[0] and needed[1] <= extent[1]:
            return
        if is_window:
            grown = grow_slots(extent[0], num_slots), max(extent[1], needed[1])
        elif not self.arrays:
            grown = num_slots, round_columns(num_columns)
        else:
            held = self.columns.held
            most = max(num_slots, held[0]), max(num_columns, held[1])
            grown = grow_extent(extent, most, self.columns.max_cells)
        if not self.arrays:
            self.arrays = [
                mx.zeros((grown[0], one.shape[1], grown[1], one.shape[3]), one.dtype) for one in examples
            ]
        else:
            self.resize(*grown)

    @property
    def extent(self) -> Extent:
        """The slots and columns of the buffers; (0, 0) before the first use."""
        if not self.arrays:
            return 0, 0
        slots, _, columns, _ = self.arrays[0].shape
        return slots, columns

    def resize(self, num_slots: int, num_columns: int) -> None:
        """Resize the buffers to this many slots and columns: add zeros, or drop the cells beyond."""
        self.arrays = [_resized(array, num_slots, num_columns) for array in self.arrays]

    def move(self, moves: Sequence[Move]) -> None:
        """Move the rows into new buffers of Columns.num_reserved columns; all other cells are zero."""
        num_columns = self.columns.num_reserved
        self.arrays = [_moved(array, moves, num_columns) for array in self.arrays]

    def fill(self, row: int, given: Any) -> None:
        """Write a row's keys and values from its own cache. A row that is alone gives its buffers instead."""
        length, first = self.columns.shared.lengths[row], self.columns.first_live(row)
        if length == 0:
            self._clear_row(row)
            return
        arrays = row_arrays(given)
        if isinstance(given, WindowKVCache):
            arrays = list(given.live_columns())
        elif len(self.columns.bases) == 1:
            self.arrays = arrays
            self.resize(1, min(self.extent[1], round_columns(length + 1)))
            return
        self.put(row, [array[:, :, : length - first] for array in arrays])

    def leave(self, row: int, last: int) -> None:
        """Copy the last row into the slot of a leaving row, before the Columns forget the leaving row."""
        if row != last:
            start, end = self.columns.start_of(last), self.columns.end_of(last)
            if end > start:
                self._put_at(row, start, [array[last : last + 1, :, start:end] for array in self.arrays])
            else:
                self._clear_row(row)

    def row_slice(self, row: int, start: int, end: int) -> list[mx.array]:
        """Copy positions [start, end) of a row: arrays of (1, heads, end - start, any), keys first."""
        base = self.columns.bases[row]
        # A view would hold a reference to the buffer, which could then not be updated in place.
        return [mx.contiguous(array[row : row + 1, :, start - base : end - base]) for array in self.arrays]

    def live_columns(self, row: int) -> list[mx.array]:
        """Copy a row's keys and values that later forwards can read; see WindowKVCache.live_columns."""
        return self.row_slice(row, self.columns.first_live(row), self.columns.shared.lengths[row])

    def put(self, row: int, arrays: Sequence[mx.array]) -> None:
        """Write copies of the keys and values of all the row's tokens into its slot."""
        start = self.columns.start_of(row)
        self._reserve(row + 1, start + arrays[0].shape[2], arrays)
        self._put_at(row, start, arrays)

    def _put_at(self, row: int, start: int, arrays: Sequence[mx.array]) -> None:
        """Write a whole row from a column on, and zeros around it."""
        end = start + arrays[0].shape[2]
        for buffer, new in zip(self.arrays, arrays, strict=True):
            buffer[row : row + 1, :, :start] = 0
            buffer[row : row + 1, :, end:] = 0
            buffer[row : row + 1, :, start:end] = new

    def _clear_row(self, row: int) -> None:
        """Zero what an earlier row left in this slot."""
        for buffer in self.arrays:
            if row < buffer.shape[0]:
                buffer[row : row + 1] = 0


class RaggedChunkedKVCache(RaggedKVCache):
    """One layer's keys and values where a token sees only its own chunk up to itself, as in Llama 4."""

    def maybe_trim_front(self) -> None:
        """Do nothing: unreachable columns are dropped when rows are moved to the front."""


class RaggedQuantizedKVCache(RaggedKVCache):
    """One layer's quantized keys and values: for each, arrays of packed numbers, scales and biases."""

    def __init__(self, columns: Columns, bits: int) -> None:
        super().__init__(columns)
        self.bits = bits

    @property
    def group_size(self) -> int:
        """How many numbers share a scale."""
        packed, scales = self.arrays[:2]
        return packed.shape[-1] * 32 // self.bits // scales.shape[-1]

    def _encode(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        size = fitting_group_size(keys.shape[-1], values.shape[-1])
        return [
            part for array in (keys, values) for part in mx.quantize(array, group_size=size, bits=self.bits)
        ]

    def _decode(self, arrays: list[mx.array]) -> tuple[Any, Any]:
        return tuple(arrays[:3]), tuple(arrays[3:])


class GroupedKVCache:
    """One layer's keys and values of full attention, with buffers for each group of rows. See groups.py.

    parts: the buffers of each group that has any.
    """

    def __init__(self, groups: Groups, bits: int | None) -> None:
        self.groups = groups
        self.parts: dict[Group, RaggedKVCache] = {}
        # Without quantization there must be no such attribute: mlx-lm looks for it.
        if bits is not None:
            self.bits = bits

    @property
    def offset(self) -> int | mx.array:
        """The number of tokens before this forward: an int if all rows agree, else (rows,)."""
        return self.groups.shared.offset

    @property
    def group_size(self) -> int:
        """How many numbers share a scale, if quantized."""
        part = next(iter(self.parts.values()))
        assert isinstance(part, RaggedQuantizedKVCache)
        return part.group_size

    @property
    def keys(self) -> Any:
        """The buffer of the keys, or PerGroup of buffers. Settable, as pipelines assign the same value."""
        parts = [self.part(group).keys for group in self.groups]
        return parts[0] if len(parts) == 1 else PerGroup(parts)

    @keys.setter
    def keys(self, buffer: Any) -> None:
        parts = buffer.parts if isinstance(buffer, PerGroup) else [buffer]
        for group, one in zip(self.groups, parts, strict=True):
            self.part(group).keys = one

    @property
    def values(self) -> mx.array:
        """The buffer of the values, if there is one group."""
        return self.part(*self.groups).values

    @values.setter
    def values(self, buffer: mx.array) -> None:
        self.part(*self.groups).values = buffer

    def part(self, group: Group) -> RaggedKVCache:
        """Return the buffers of one group."""
        if (found := self.parts.get(group)) is None:
            bits, columns = getattr(self, "bits", None), group.columns
            found = RaggedKVCache(columns) if bits is None else RaggedQuantizedKVCache(columns, bits)
            self.parts[group] = found
        return found

    def drop(self, group: Group) -> None:
        """Free the buffers of a group."""
        self.parts.pop(group, None)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Write the new keys and values and return all that this forward reads: arrays, or PerGroup of them.

        keys, values: (rows, heads, width, head_dim).
        """
        if only := self.groups.only:
            return self.part(only).update_and_fetch(keys, values)
        split = zip(self.groups, self.groups.split(keys), self.groups.split(values), strict=True)
        return _per_group([self.part(group).update_and_fetch(k, v) for group, k, v in split])

    def keys_and_values(self) -> tuple[Any, Any]:
        """Return the keys and values of the last update, for layers that share this cache."""
        if only := self.groups.only:
            return self.part(only).keys_and_values()
        return _per_group([self.part(group).keys_and_values() for group in self.groups])

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> Any:
        """Return the mask for mlx-lm's attention; see Columns.make_mask."""
        if only := self.groups.only:
            return only.columns.make_mask(N, return_array, window_size)
        return PerGroup([group.columns.make_mask(N, return_array, window_size) for group in self.groups])

    def fill(self, row: int, given: Any) -> None:
        """Write a row's keys and values from its own cache. A row that is alone gives its buffers instead."""
        group, slot = self.groups.place_of(row)
        self.part(group).fill(slot, given)

    def put(self, row: int, arrays: Sequence[mx.array]) -> None:
        """Write copies of the keys and values of all the row's tokens into its slot."""
        group, slot = self.groups.place_of(row)
        self.part(group).put(slot, arrays)

    def row_slice(self, row: int, start: int, end: int) -> list[mx.array]:
        """Copy positions [start, end) of a row: arrays of (1, heads, end - start, any), keys first."""
        group, slot = self.groups.place_of(row)
        return self.part(group).row_slice(slot, start, end)


def _per_group(keys_and_values: Sequence[tuple[Any, Any]]) -> tuple[PerGroup, PerGroup]:
    return PerGroup([keys for keys, _ in keys_and_values]), PerGroup(
        [values for _, values in keys_and_values]
    )


def row_arrays(cache: Any) -> list[mx.array]:
    """Return the keys and values that one row's own cache holds: two arrays, or six if quantized."""
    both = (cache.keys, cache.values)
    # Quantized keys are three arrays, and so are the values.
    return [*both] if type(cache) is KVCache else [array for three in both for array in three]


def _resized(buffer: mx.array, num_slots: int, num_columns: int) -> mx.array:
    is_cut = num_slots < buffer.shape[0] or num_columns < buffer.shape[2]
    buffer = buffer[:num_slots, :, :num_columns]
    slots, heads, columns, dim = buffer.shape
    if is_cut and (slots, columns) == (num_slots, num_columns):
        # A view would keep the whole old buffer alive.
        return mx.contiguous(buffer)
    if num_columns > columns:
        more = mx.zeros((slots, heads, num_columns - columns, dim), buffer.dtype)
        buffer = mx.concatenate([buffer, more], axis=2)
    if num_slots > slots:
        more = mx.zeros((num_slots - slots, *buffer.shape[1:]), buffer.dtype)
        buffer = mx.concatenate([buffer, more], axis=0)
    return buffer


def _moved(buffer: mx.array, moves: Sequence[Move], num_columns: int) -> mx.array:
    rows = []
    for row, move in enumerate(moves):
        held = buffer[row : row + 1, :, move.start : move.end]
        after = num_columns - move.to - held.shape[2]
        rows.append(mx.pad(held, [(0, 0), (0, 0), (move.to, after), (0, 0)]))
    num_spare = buffer.shape[0] - len(rows)
    if num_spare:
        rows.append(mx.zeros((num_spare, buffer.shape[1], num_columns, buffer.shape[3]), buffer.dtype))
    return mx.concatenate(rows)


KVSlice = list[mx.array]
"""Keys and values of consecutive tokens, of each layer that keeps every token; axis 2 is the tokens.

In the order of the layers: two arrays per layer, or six if quantized (packed, scales and biases of each).
"""

State = list[mx.array | None]
"""All arrays of the layers that KV slices do not cover, at one length; None for an array not yet set."""


def has_state(caches: Caches) -> bool:
    """Return whether these caches hold anything that KV slices do not cover."""
    return any(not can_slice(cache) for cache in leaves(caches))


@singledispatch
def cut_slice(caches: Caches, start: int, end: int) -> KVSlice:
    """Copy the keys and values of tokens [start, end), not yet evaluated."""
    kept = [cache for cache in leaves(caches) if can_slice(cache)]
    # A view would keep the whole buffer alive.
    return [mx.contiguous(array[:, :, start:end]) for cache in kept for array in row_arrays(cache)]


def sub_slice(kv_slice: KVSlice, start: int, end: int) -> KVSlice:
    """Copy tokens [start, end) of a KV slice, counted from the slice's first token."""
    return [mx.contiguous(array[:, :, start:end]) for array in kv_slice]


@singledispatch
def leading(kv_slice: KVSlice, num_tokens: int) -> KVSlice:
    """Return the first num_tokens tokens of a KV slice, as views of its arrays."""
    return [array[:, :, :num_tokens] for array in kv_slice]


@singledispatch
def split_slice(kv_slice: KVSlice, at: int) -> KVSlice:
    """Remove the tokens before index `at` from a KV slice; return them as another slice, evaluated.

    If this raises, only some arrays may have been shortened, so the slice cannot be used any more.
    """
    upper: KVSlice = []
    # One array after the other, as each is in memory twice while it is split.
    for place, array in enumerate(kv_slice):
        halves = sub_slice([array], 0, at) + sub_slice([array], at, array.shape[2])
        mx.eval(halves)
        upper.append(halves[0])
        kv_slice[place] = halves[1]
    return upper


@singledispatch
def take_state(caches: Caches, length: int | None = None) -> State:
    """Copy the state as it is now; later updates of the caches do not change the copy.

    length: an earlier length at which to take the state, at least that before the last update; only if all
        caches can be trimmed.
    """
    taken: State = []
    for cache in leaves(caches):
        if isinstance(cache, WindowKVCache):
            taken += map(mx.contiguous, cache.live_columns(length))
        elif is_recurrent(cache):
            taken += [None if array is None else mx.contiguous(array) for array in cache.cache]
    return taken


def start_copies(*copies: Sequence[mx.array | None]) -> None:
    """Start computing arrays one after the other, without waiting.

    Their sources may be lazy too, such as buffers that have just shrunk. Computed all at once, the old and
    the new buffers of every layer might be in memory together.
    """
    for arrays in copies:
        for array in arrays:
            if array is not None:
                mx.async_eval(array)


def num_bytes(arrays: Sequence[mx.array | None]) -> int:
    """Return the bytes of a KV slice or a state."""
    return sum(array.nbytes for array in arrays if array is not None)


@singledispatch
def rebuild(empty: Caches, kv_slices: Sequence[KVSlice], state: State, length: int) -> Caches:
    """Fill empty caches with length tokens and return them.

    kv_slices: KV slices of consecutive runs of tokens, length tokens in all; may be empty if no layer keeps
        every token.
    state: the state at that length; empty if there is none.
    """
    joined = iter([_concatenate(arrays) for arrays in zip(*kv_slices, strict=True)])
    states = iter(state)
    for cache in leaves(empty):
        if isinstance(cache, WindowKVCache):
            window = [array for array in (next(states), next(states)) if array is not None]
            cache.restore(window[0], window[1], length)
        elif is_recurrent(cache):
            cache.cache = [next(states) for _ in cache.cache]
        elif isinstance(cache, FittedQuantizedKVCache):
            keys, values = ([next(joined) for _ in range(3)] for _ in "kv")
            cache.restore(keys, values, length)
        else:
            cache.keys, cache.values, cache.offset = next(joined), next(joined), length
    return empty


def can_slice(cache: Any) -> bool:
    """Return whether a cache keeps every token's keys and values, so that runs of tokens can be copied."""
    return type(cache) in (KVCache, FittedQuantizedKVCache)


def _concatenate(arrays: Sequence[mx.array]) -> mx.array:
    # Slicing makes a new array, so that later writes by the cache do not reach the stored KV slice.
    return arrays[0][:] if len(arrays) == 1 else mx.concatenate(list(arrays), axis=2)
