"""Run one forward pass per row, over that row's own caches, where a model's rows cannot share one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from reprise.engine.kv_cache.columns import Ranks
from reprise.engine.kv_cache.per_row import Caches, Snapshot, cache_arrays, check_length
from reprise.engine.kv_cache.slices import KVSlice, State, cut_slice, take_state


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
