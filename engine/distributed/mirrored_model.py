"""Rank 0's stand-in for a model, given to the engine: all ranks repeat every operation on it.

The engine's functions on caches choose by the type of what they are given (functools.singledispatch), so they
come here for a SharedModel, its caches and its slices, and nowhere else.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from reprise.engine.distributed.leader import Handle, Leader
from reprise.engine.distributed.model_parts import Shard, share_tokens
from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.buffers import (
    KVSlice,
    State,
    cut_slice,
    leading,
    rebuild,
    split_slice,
    take_state,
)
from reprise.engine.kv_cache.columns import Ranks
from reprise.engine.kv_cache.per_row import Caches, make_caches
from reprise.engine.kv_cache.rows import Rows, SeparateRows, Sharing, make_batched_rows, make_rows
from reprise.engine.speculative.heads.head import owner_of_body


class SharedModel:
    """A model of which every rank has a part. shard: this rank's part. leader: sends the commands."""

    def __init__(self, shard: Shard, leader: Leader) -> None:
        self.shard = shard
        self.leader = leader
        shard.agree = leader.agree
        # The other ranks have theirs as object 0, and never drop it.
        self.handle = _Root()

    def __call__(self, tokens: mx.array, cache: Caches | None = None) -> mx.array:
        """Run one forward pass on all ranks; return its logits, not yet evaluated."""

        def feed(_: object, given: mx.array, caches: Caches | None) -> mx.array:
            return self.shard(share_tokens(given), cache=caches)

        logits: mx.array = self.leader.do("feed", feed, self, tokens, cache)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shard, name)


class _Root(Handle):
    def __init__(self) -> None:
        self.number = 0

    def __del__(self) -> None:
        pass


class SharedList(list[Any]):
    """A row's caches, a KV slice or a state, of which every rank holds its part."""

    def __init__(self, held: Sequence[Any], leader: Leader) -> None:
        super().__init__(held)
        self.leader = leader
        self.handle = leader.new_handle()


class _SharedRows:
    """Rows of a shared model: each call is a command. Comes before the class of the rows of one rank."""

    leader: Leader
    handle: Handle

    def add(self, caches: Caches, length: int) -> None:
        self.leader.do("add", as_operation(super().add), self, caches, length)  # type: ignore[misc]

    def fill(self, row: int, caches: Caches, length: int) -> None:
        self.leader.do("fill", as_operation(super().fill), self, row, caches, length)  # type: ignore[misc]

    def remove(self, row: int) -> None:
        self.leader.do("remove", as_operation(super().remove), self, row)  # type: ignore[misc]

    def forward(self, tokens: mx.array, keeps_state: bool = False) -> mx.array:
        local = super().forward  # type: ignore[misc]

        def feed(_: object, given: mx.array, keeps: bool) -> Any:
            return local(share_tokens(given), keeps)

        logits: mx.array = self.leader.do("forward", feed, self, tokens, keeps_state)
        return logits

    def forward_ragged(self, fed: Sequence[Sequence[int]], ranks: Sequence[Ranks | None] = ()) -> mx.array:
        if any(one is not None for one in ranks):
            raise ValueError("rows over several machines are not decoded in windows")
        given = [list(map(int, tokens)) for tokens in fed]
        local = as_operation(super().forward_ragged)  # type: ignore[misc]
        logits: mx.array = self.leader.do("forward_ragged", local, self, given)
        return logits

    def roll_back(self, row: int, length: int) -> int:
        held: int = self.leader.do("roll_back", as_operation(super().roll_back), self, row, length)  # type: ignore[misc]
        return held

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        cut = as_operation(super().kv_slice)  # type: ignore[misc]
        return make_shared(self.leader, "kv_slice", cut, self, row, start, end)

    def state(self, row: int) -> State:
        take = as_operation(super().state)  # type: ignore[misc]
        return make_shared(self.leader, "state", take, self, row)


class SharedBatchedRows(_SharedRows, BatchedRows):
    """Rows that share a forward pass, on all ranks."""

    def __init__(self, model: SharedModel, first_limit: int | None, by_layer: bool) -> None:
        self.leader = model.leader
        make = as_operation(partial(BatchedRows.__init__, self, model.shard))
        self.leader.do("make_batched_rows", make, model, first_limit, by_layer, makes=True, asks=True)
        self.handle = self.leader.new_handle()

    def limit_growth(self, max_cells: int) -> None:
        """Keep the buffers of full attention of all ranks within max_cells slots times columns."""
        self.leader.do("limit_growth", as_operation(super().limit_growth), self, max_cells)

    def start_copies(self) -> None:
        """Start the copies on all ranks for rows that joining or leaving rows moved."""
        self.leader.do("start_copies", as_operation(super().start_copies), self)


class SharedSeparateRows(_SharedRows, SeparateRows):
    """Rows with a forward pass each, on all ranks."""

    def __init__(self, model: SharedModel) -> None:
        self.leader = model.leader
        make = lambda *_: SeparateRows.__init__(self, model.shard)  # noqa: E731
        self.leader.do("make_rows", make, model, int(Sharing.NOTHING), makes=True, asks=True)
        self.handle = self.leader.new_handle()


def make_shared(leader: Leader, name: str, local: Callable[..., Any], *given: Any) -> list[Any]:
    """Let all ranks do an operation and keep its result. Within another operation, only do it here."""
    if leader.is_commanding:
        held: list[Any] = local(*given)
        return held
    return SharedList(leader.do(name, local, *given, makes=True), leader)


def as_operation(local: Any) -> Any:
    """Turn a bound method into an operation, which ignores its first argument, the object."""
    return lambda _, *given: local(*given)


@make_caches.register
def _make_caches(model: SharedModel, kv_bits: int | None = None) -> Caches:
    return make_shared(
        model.leader, "make_caches", as_operation(partial(make_caches, model.shard)), model, kv_bits
    )


@make_batched_rows.register
def _make_batched_rows(
    model: SharedModel, first_limit: int | None = None, by_layer: bool = False
) -> BatchedRows:
    return SharedBatchedRows(model, first_limit, by_layer)


@make_rows.register
def _make_rows(model: SharedModel, sharing: Sharing) -> Rows:
    if not sharing:
        return SharedSeparateRows(model)
    return SharedBatchedRows(model, sharing.first_limit, sharing is Sharing.LAYERS)


@owner_of_body.register
def _owner_of_body(model: SharedModel) -> Any:
    # What a head computes, rank 0 computes alone.
    return owner_of_body(model.shard.model)


@cut_slice.register
def _cut_slice(caches: SharedList, start: int, end: int) -> KVSlice:
    return make_shared(caches.leader, "cut_slice", cut_slice.dispatch(list), caches, start, end)


@leading.register
def _leading(kv_slice: SharedList, num_tokens: int) -> KVSlice:
    return make_shared(kv_slice.leader, "leading", leading.dispatch(list), kv_slice, num_tokens)


@split_slice.register
def _split_slice(kv_slice: SharedList, at: int) -> KVSlice:
    return make_shared(kv_slice.leader, "split_slice", split_slice.dispatch(list), kv_slice, at)


@take_state.register
def _take_state(caches: SharedList, length: int | None = None) -> State:
    return make_shared(caches.leader, "take_state", take_state.dispatch(list), caches, length)


@rebuild.register
def _rebuild(empty: SharedList, kv_slices: Sequence[KVSlice], state: State, length: int) -> Caches:
    fill = rebuild.dispatch(list)
    filled: Caches = empty.leader.do("rebuild", fill, empty, list(kv_slices), state, length)
    return filled
