"""Define the methods of a batch's rows, however much they share.

BatchedRows runs one forward for all rows. SeparateRows runs one forward per row, over that row's own caches,
and serves the models that cannot share a forward (probes.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import singledispatch
from typing import Any, Protocol

import mlx.core as mx

from reprise.engine.kv_cache.batched_rows import BatchedRows, check_length
from reprise.engine.kv_cache.buffers import KVSlice, State, cut_slice, take_state
from reprise.engine.kv_cache.columns import Ranks
from reprise.engine.kv_cache.groups import FIRST_LIMIT
from reprise.engine.kv_cache.per_row import Caches, Snapshot, cache_arrays


@dataclass
class _Verified:
    """The last forward_ragged of one row: its tokens, and what the caches held before and after it."""

    tokens: Sequence[int]
    before: Snapshot
    after: Snapshot


class SeparateRows:
    """Rows that each have their own caches and their own forward."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.caches: list[Caches] = []
        self._lengths: list[int] = []
        self._verified: list[_Verified | None] = []

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens in each row's caches: (rows,)."""
        return self._lengths

    def add(self, caches: Caches, length: int) -> None:
        """Append a prefilled row."""
        self.caches.append(caches)
        self._lengths.append(length)
        self._verified.append(None)

    def fill(self, row: int, caches: Caches, length: int) -> None:
        """Fill an empty row with its own caches."""
        self.caches[row], self._lengths[row], self._verified[row] = caches, length, None

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its index."""
        self.caches[row], self._lengths[row] = self.caches[-1], self._lengths[-1]
        self._verified[row] = self._verified[-1]
        self.caches.pop()
        self._lengths.pop()
        self._verified.pop()

    def forward(self, tokens: mx.array, keeps_state: bool = False) -> mx.array:  # noqa: ARG002
        """Run one forward per row, in order. No state is kept."""
        logits = [self.model(tokens[row : row + 1], cache=caches) for row, caches in enumerate(self.caches)]
        self._lengths = [length + tokens.shape[1] for length in self._lengths]
        return mx.concatenate(logits, axis=0)

    def forward_ragged(self, fed: Sequence[Sequence[int]], ranks: Sequence[Ranks | None] = ()) -> mx.array:
        """Run one forward per row, each of its own width."""
        if any(one is not None for one in ranks):
            raise ValueError("rows with a forward pass each have no ranks")
        width = max(map(len, fed))
        padded = []
        for row, tokens in enumerate(fed):
            before = Snapshot(self.caches[row], self._lengths[row])
            logits = self.model(mx.array([tokens]), cache=self.caches[row])
            self._lengths[row] += len(tokens)
            after = Snapshot(self.caches[row], self._lengths[row])
            self._verified[row] = _Verified(tokens, before, after)
            padded.append(mx.pad(logits, [(0, 0), (0, width - len(tokens)), (0, 0)]))
        return mx.concatenate(padded, axis=0)

    def roll_back(self, row: int, length: int) -> int:
        """Trim the row's caches to length; restore recurrent state, and feed the kept tokens again."""
        held, verified, caches = self._lengths[row], self._verified[row], self.caches[row]
        check_length(row, length, verified.before.length if verified else held, held)
        self._verified[row] = None
        if verified is None or length == held:
            return held
        is_past = length >= verified.after.length
        snapshot = verified.after if is_past else verified.before
        self._lengths[row] = snapshot.restore(held, length)
        if again := [] if is_past else verified.tokens[: length - self._lengths[row]]:
            self.model(mx.array([again]), cache=caches)
            # Waited for now, so that the time counts as this step's.
            mx.eval(cache_arrays(caches))
            self._lengths[row] = length
        return self._lengths[row]

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        """Copy tokens [start, end) from the row's caches that keep every token."""
        return cut_slice(self.caches[row], start, end)

    def state(self, row: int) -> State:
        """Copy the state in the row's caches that do not keep every token."""
        return take_state(self.caches[row])


class Sharing(IntEnum):
    """How much the rows of a batch can share."""

    NOTHING = 0
    """Each row has a forward pass of its own, and buffers of its own."""

    BUFFERS = 1
    """All rows share a forward pass and each layer's buffers."""

    LAYERS = 2
    """As GROUPS, but attention layers run once per group, and not only attention itself."""

    GROUPS = 3
    """All rows share a forward pass, and those of similar length each layer's buffers."""

    @property
    def first_limit(self) -> int | None:
        """The most tokens of rows in the first group; None if there are no groups."""
        return FIRST_LIMIT if self >= Sharing.LAYERS else None

    def describe(self) -> str:
        """Describe in words what the rows of a batch share."""
        if self is Sharing.NOTHING:
            return "a forward pass for each row"
        more = "; short rows take as much memory as the longest" if self is Sharing.BUFFERS else ""
        return f"one forward pass for all rows{more}"


class Rows(Protocol):
    """The rows of one batch, in the order of joining; the last row takes the index of a removed row."""

    @property
    def lengths(self) -> Sequence[int]:
        """The number of tokens in each row's caches: (rows,)."""

    def add(self, caches: Caches, length: int) -> None:
        """Append a prefilled row. Its caches hold length tokens; the caller must not use them any more."""

    def fill(self, row: int, caches: Caches, length: int) -> None:
        """Fill an empty row from its caches, as add() does. Tokens that it was fed before are forgotten."""

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its index."""

    def forward(self, tokens: mx.array, keeps_state: bool = False) -> mx.array:
        """Feed (rows, width) tokens; return logits (rows, width, vocabulary), not yet evaluated.

        keeps_state: a wish, for a forward of width 1 after a ragged one: to keep recurrent state, so that
            rows can be rolled back to the end of this forward. See roll_back().
        """

    def forward_ragged(self, fed: Sequence[Sequence[int]], ranks: Sequence[Ranks | None] = ()) -> mx.array:
        """Feed row r the tokens fed[r], at least one; the widths may differ.

        ranks: (rows,) if a row has ranks, each new token sees all tokens that the row held before, and those
            new tokens whose rank is no higher, wherever they stand; if None, the new tokens before it. Empty
            if no row has ranks.
        Returns logits (rows, largest width, vocabulary), not yet evaluated. Row r's are valid at
            [0, len(fed[r])). The row then holds len(fed[r]) more tokens.
        Raises ValueError if a row has ranks and rows do not share a forward pass.
        """

    def roll_back(self, row: int, length: int) -> int:
        """Forget a row's tokens past the first length tokens; return how many its caches still hold.

        length: at least the row's length before the last forward_ragged. Rolling back to the present length
            is free.
        Returns length itself, unless the row has recurrent state and length is past the end of the last
            forward_ragged: then the row's length at the end of that forward, or of a later one that kept its
            state. State goes back only once.
        Raises ValueError if the row holds fewer than length tokens or cannot be rolled back that far.
        """

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        """Copy the keys and values of a row's tokens [start, end), not yet evaluated. See buffers.py."""

    def state(self, row: int) -> State:
        """Copy the part of a row's caches that KV slices do not cover, as it is now. See buffers.py."""


@singledispatch
def make_batched_rows(model: Any, first_limit: int | None = None, by_layer: bool = False) -> BatchedRows:
    """Make an empty batch whose rows share a forward pass. Arguments: see BatchedRows."""
    return BatchedRows(model, first_limit, by_layer)


@singledispatch
def make_rows(model: Any, sharing: Sharing) -> Rows:
    """Make an empty batch."""
    if not sharing:
        return SeparateRows(model)
    return make_batched_rows(model, sharing.first_limit, sharing is Sharing.LAYERS)


def evaluate(caches: Caches) -> None:
    """Evaluate the arrays of the caches, and wait for them."""
    mx.eval(cache_arrays(caches))
