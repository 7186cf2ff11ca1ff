"""Rank 0's side: number the commands, send them to the other ranks, and do the same here.

    0  7, "forward", [rows 3, tokens (2, 1)]  ->  the other ranks
    |                                             |
    rows.forward(all_sum(tokens))                 rows.forward(all_sum(zeros))

An object of which every rank has a part, such as a row's caches, has a number, which its Handle holds. When
rank 0 no longer needs the object, the other ranks drop their parts with the next command.

The engine's functions on caches dispatch on the type of their argument (functools.singledispatch). For a
SharedModel, its caches and its slices they end up here.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from reprise.engine.distributed.model_parts import Agreement, Reading, Shard, share_tokens
from reprise.engine.distributed.ranks import Peers, RanksLostError
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
from reprise.engine.kv_cache.prefix_cache.disk import (
    Contents,
    Loading,
    PrefixFile,
    PrefixStore,
    join_contents,
    make_store,
)
from reprise.engine.kv_cache.prefix_cache.text_key import Tokens
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice
from reprise.engine.kv_cache.rows import Rows, SeparateRows, Sharing, make_batched_rows, make_rows
from reprise.engine.speculative.heads.head import owner_of_body


def _feed(shard: Shard, tokens: mx.array, caches: Caches | None) -> mx.array:
    return shard(share_tokens(tokens), cache=caches)


def _call(name: str) -> Callable[..., Any]:
    return lambda rows, *given: getattr(rows, name)(*given)


def _files(name: str) -> Callable[..., Any]:
    def call(shard: Shard, *given: Any) -> Any:
        if shard.files is None:
            raise ValueError("no prefixes are kept in files here")
        return getattr(shard.files, name)(*given)

    return call


def _await_parts(reading: Reading, timeout_s: float) -> None:
    if not wait([reading], timeout_s).done:
        raise TimeoutError("files are still being read")


def _join_parts(reading: Reading, starts: Sequence[int], ends: Sequence[int]) -> tuple[CutSlice, State]:
    return join_contents(reading.result(), starts, ends)


ON_ROWS = ("add", "fill", "remove", "roll_back", "forward_ragged", "limit_growth", "start_copies")

OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "make_caches": make_caches,
    "make_rows": lambda shard, sharing: make_rows(shard, Sharing(sharing)),
    "make_batched_rows": make_batched_rows,
    "feed": _feed,
    "forward": lambda rows, tokens, keeps_state: rows.forward(share_tokens(tokens), keeps_state),
    **{name: _call(name) for name in (*ON_ROWS, "kv_slice", "state")},
    "cut_slice": cut_slice,
    "leading": leading,
    "split_slice": split_slice,
    "take_state": take_state,
    "rebuild": rebuild,
    "keep_parts": _files("keep"),
    "save_part": _files("save"),
    "drop_part": _files("drop"),
    "begin_parts": _files("begin_read"),
    "await_parts": _await_parts,
    # Its results, a cutting function and a state, are parts for the next two.
    "join_parts": _join_parts,
    "cut_parts": lambda parts, start, end: parts[0](start, end),
    "state_of_parts": lambda parts: parts[1],
}
"""The operations that a rank may be asked for. A follower does nothing else, whatever it is sent."""


class Handle:
    """The number under which the other ranks keep an object; they drop it once the handle is deleted."""

    def __init__(self, number: int, dropped: deque[int]) -> None:
        self.number = number
        self._dropped = dropped

    def __del__(self) -> None:
        self._dropped.append(self.number)


class Leader:
    """Sends commands to the other ranks. For the engine's thread only: ranks exchange arrays on one thread.

    asks_first: whether the ranks agree on each operation before they run it, as it may fail on some. True
        while the engine probes what the model can do.
    is_commanding: whether an operation is under way.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.asks_first = True
        self.agree = Agreement(self._exchange)
        self.is_commanding = False
        self._num_objects = 0
        self._dropped: deque[int] = deque()

    def do(
        self,
        name: str,
        on: Any,
        local: Callable[..., Any],
        *given: Any,
        makes: bool = False,
        asks: bool = False,
    ) -> Any:
        """Let all ranks do one operation; return the result of local(*given), which does it on rank 0.

        on: the object on which the other ranks do it, each on its part.
        makes: whether the other ranks keep their results, under the number of the next new_handle().
        asks: whether the ranks first agree that they can do it, even when asks_first is not set.
        An operation called within another one is a part of that, not a command of its own.
        Raises the exception of local if the ranks were asked to agree, else RanksLostError.
        """
        if self.is_commanding:
            return local(*given)
        self.agree.begin(asks=asks or self.asks_first)
        dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
        self._peers.num_sent += 1
        made = self._num_objects + 1 if makes else None
        arguments = [_encoded(one) for one in (on, *given)]
        self._send([self._peers.num_sent, name, arguments, made, dropped, self.agree.asks])
        self.is_commanding = True
        try:
            result = local(*given)
            self.agree(None)
        except Exception as fault:
            if not self.agree.asks:
                raise self._lost(
                    f"rank 0 failed at {name}, which the other ranks have done: {fault}"
                ) from fault
            self.agree.fail(fault)
            raise
        finally:
            self.is_commanding = False
        return result

    def _exchange(self, fault: Exception | None) -> str | None:
        faults = [one for one in self._peers.gather() if one is not None]
        self._send([not faults and fault is None])
        return faults[0] if faults else None

    def new_handle(self) -> Handle:
        """Return a handle for the object that the last command made on the other ranks."""
        self._num_objects += 1
        return Handle(self._num_objects, self._dropped)

    def _send(self, message: Any) -> None:
        if reason := self._peers.explain(0.0):
            raise RanksLostError(reason)
        for channel in self._peers.channels:
            try:
                channel.send(message)
            except OSError as fault:
                raise self._lost(f"a command did not reach a rank: {fault}") from fault

    def _lost(self, reason: str) -> RanksLostError:
        return RanksLostError(self._peers.explain(1.0) or reason)


def _encoded(given: Any) -> Any:
    """Return an argument as the other ranks get it: see Replica.decode."""
    handle = getattr(given, "handle", given)
    if isinstance(handle, Handle):
        return {"object": handle.number}
    if isinstance(given, mx.array):
        return {"tokens": given.shape}
    if isinstance(given, list | tuple):
        return [_encoded(one) for one in given]
    return given


class SharedModel:
    """A model of which every rank has a part. shard: this rank's part. leader: sends the commands."""

    def __init__(self, shard: Shard, leader: Leader) -> None:
        self.shard = shard
        self.leader = leader
        shard.agree = leader.agree
        # The other ranks have theirs as object 0, and are never told to drop it.
        self.handle = Handle(0, deque())

    def __call__(self, tokens: mx.array, cache: Caches | None = None) -> mx.array:
        """Run one forward pass on all ranks; return its logits, not yet evaluated."""
        logits: mx.array = self.leader.do("feed", self, partial(_feed, self.shard), tokens, cache)
        return logits

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shard, name)


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

    def _do(self, local: Any, *given: Any) -> Any:
        """Let all ranks do what a method of rank 0's rows does, local."""
        return self.leader.do(local.__name__, self, local, *given)

    def add(self, caches: Caches, length: int) -> None:
        self._do(super().add, caches, length)  # type: ignore[misc]

    def fill(self, row: int, caches: Caches, length: int) -> None:
        self._do(super().fill, row, caches, length)  # type: ignore[misc]

    def remove(self, row: int) -> None:
        self._do(super().remove, row)  # type: ignore[misc]

    def forward(self, tokens: mx.array, keeps_state: bool = False) -> mx.array:
        local = super().forward  # type: ignore[misc]

        def feed(given: mx.array, keeps: bool) -> Any:
            return local(share_tokens(given), keeps)

        logits: mx.array = self.leader.do("forward", self, feed, tokens, keeps_state)
        return logits

    def forward_ragged(self, fed: Sequence[Sequence[int]], ranks: Sequence[Ranks | None] = ()) -> mx.array:
        if any(one is not None for one in ranks):
            raise ValueError("rows over several machines are not decoded in windows")
        given = [list(map(int, tokens)) for tokens in fed]
        logits: mx.array = self._do(super().forward_ragged, given)  # type: ignore[misc]
        return logits

    def roll_back(self, row: int, length: int) -> int:
        held: int = self._do(super().roll_back, row, length)  # type: ignore[misc]
        return held

    def kv_slice(self, row: int, start: int, end: int) -> KVSlice:
        cut = super().kv_slice  # type: ignore[misc]
        return make_shared(self.leader, "kv_slice", self, cut, row, start, end)

    def state(self, row: int) -> State:
        return make_shared(self.leader, "state", self, super().state, row)  # type: ignore[misc]


class SharedBatchedRows(_SharedRows, BatchedRows):
    """Rows that share a forward pass, on all ranks."""

    def __init__(self, model: SharedModel, first_limit: int | None, by_layer: bool) -> None:
        self.leader = model.leader
        make = partial(BatchedRows.__init__, self, model.shard)
        self.leader.do("make_batched_rows", model, make, first_limit, by_layer, makes=True, asks=True)
        self.handle = self.leader.new_handle()

    def limit_growth(self, max_cells: int) -> None:
        """Keep the buffers of full attention of all ranks within max_cells slots times columns."""
        self._do(super().limit_growth, max_cells)

    def start_copies(self) -> None:
        """Start the copies on all ranks for rows that joining or leaving rows moved."""
        self._do(super().start_copies)


class SharedSeparateRows(_SharedRows, SeparateRows):
    """Rows with a forward pass each, on all ranks."""

    def __init__(self, model: SharedModel) -> None:
        self.leader = model.leader

        def make(_: int) -> None:
            SeparateRows.__init__(self, model.shard)

        self.leader.do("make_rows", model, make, int(Sharing.NOTHING), makes=True, asks=True)
        self.handle = self.leader.new_handle()


def make_shared(leader: Leader, name: str, on: Any, local: Callable[..., Any], *given: Any) -> list[Any]:
    """Let all ranks do an operation and keep its result. Within another operation, only do it here."""
    if leader.is_commanding:
        held: list[Any] = local(*given)
        return held
    return SharedList(leader.do(name, on, local, *given, makes=True), leader)


@make_caches.register
def _make_caches(model: SharedModel, kv_bits: int | None = None) -> Caches:
    return make_shared(model.leader, "make_caches", model, partial(make_caches, model.shard), kv_bits)


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
    # Rank 0 alone computes heads.
    return owner_of_body(model.shard.model)


def _share(function: Any) -> None:
    """Let all ranks do a function of caches or of a slice, and keep its result."""
    local = function.dispatch(list)

    def shared(held: SharedList, *given: Any) -> list[Any]:
        return make_shared(held.leader, function.__name__, held, partial(local, held), *given)

    function.register(SharedList, shared)


for _function in (cut_slice, leading, split_slice, take_state):
    _share(_function)


@rebuild.register
def _rebuild(empty: SharedList, kv_slices: Sequence[KVSlice], state: State, length: int) -> Caches:
    fill = partial(rebuild.dispatch(list), empty)
    filled: Caches = empty.leader.do("rebuild", empty, fill, list(kv_slices), state, length)
    return filled


log = logging.getLogger("reprise.engine")


@dataclass(frozen=True, kw_only=True)
class SharedLoading(Loading):
    """A load in progress on all ranks. others: that of the other ranks."""

    leader: Leader
    others: Handle

    def wait(self, timeout_s: float = 0.0) -> bool:
        """Wait until every rank has read all of its files, at most for so long; return whether they have."""
        if not super().wait(timeout_s):
            return False
        try:
            self.leader.do("await_parts", self.others, _nothing, timeout_s, asks=True)
        except RuntimeError:
            return False
        return True


class SharedPrefixStore(PrefixStore):
    """The prefix files of rank 0, which tells the other ranks what to do with theirs."""

    def __init__(
        self, model: SharedModel, folder: Path, budget_bytes: int | None, fingerprint: str, needs_state: bool
    ) -> None:
        self._model, self._is_open, self._is_shared = model, False, True
        # Another split has other parts.
        whole = hashlib.sha256(f"{fingerprint} {model.shard.place}".encode()).hexdigest()
        super().__init__(folder, budget_bytes, whole, needs_state)
        names = list(self._index.files)
        try:
            self._tell("keep_parts", names, asks=True)
        except RuntimeError as fault:
            raise OSError(str(fault)) from fault
        self._is_open = True

    def sibling(self, part: str, needs_state: bool) -> "SharedPrefixStore":
        """Return the store of a head, which is on rank 0 only: other ranks keep no files of it."""
        other = super().sibling(part, needs_state)
        assert isinstance(other, SharedPrefixStore)
        other._is_shared = False
        return other

    def start_load(self, prompt: Tokens) -> Loading:
        """Start reading, on all ranks, the files of the prefix that match() finds."""
        loading = super().start_load(prompt)
        if not self._is_shared:
            return loading
        self._tell("begin_parts", [file.path.name for file in loading.files], makes=True)
        leader = self._model.leader
        return SharedLoading(
            loading.files, loading.ends, loading.reads, leader=leader, others=leader.new_handle()
        )

    def finish_load(self, loading: Loading) -> tuple[CutSlice, State] | None:
        """Wait for a load on all ranks; see PrefixStore.finish_load()."""
        if not isinstance(loading, SharedLoading):
            return super().finish_load(loading)
        contents = self._contents(loading)
        if contents is None:
            return None
        cut, state = join_contents(contents, loading.starts, loading.ends)
        leader = self._model.leader
        try:
            leader.do(
                "join_parts", loading.others, _nothing, loading.starts, loading.ends, makes=True, asks=True
            )
        except RuntimeError as fault:
            log.warning("dropped a saved prefix that another rank cannot read: %s", fault)
            self._forget(loading.files[0])
            return None
        parts = leader.new_handle()
        shared_cut = partial(make_shared, leader, "cut_parts", parts, cut)
        if not self._needs_state:
            return shared_cut, []
        return shared_cut, make_shared(leader, "state_of_parts", parts, lambda: state)

    def _contents_of(self, name: str, kv_slice: KVSlice, state: State) -> Contents:
        contents_of = super()._contents_of
        if not self._is_shared:
            return contents_of(name, kv_slice, state)
        leader = self._model.leader
        contents: Contents = leader.do("save_part", self._model, contents_of, name, kv_slice, state)
        return contents

    def _delete(self, file: PrefixFile) -> None:
        super()._delete(file)
        if self._is_open:
            self._tell("drop_part", file.path.name)

    def _tell(self, name: str, *given: object, makes: bool = False, asks: bool = False) -> None:
        self._model.leader.do(name, self._model, _nothing, *given, makes=makes, asks=asks)


def _nothing(*_: object) -> None:
    """Do nothing here: rank 0 has files of its own."""


make_store.register(SharedModel, SharedPrefixStore)
