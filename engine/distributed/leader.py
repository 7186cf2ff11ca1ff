"""Rank 0's side: number the commands, send them to the other ranks, and do the same here.

    0  7, "forward", [rows 3, tokens (2, 1)]  ->  the other ranks
    |                                             |
    rows.forward(all_sum(tokens))                 rows.forward(all_sum(zeros))

An object of which every rank has a part, such as a row's caches, has a number, which its Handle holds. When
rank 0 no longer needs the object, the other ranks drop their parts with the next command.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import mlx.core as mx

from reprise.engine.distributed.model_parts import ReadParts, Shard, share_tokens
from reprise.engine.distributed.ranks import Peers, RanksLostError, encode
from reprise.engine.kv_cache.buffers import cut_slice, leading, rebuild, split_slice, take_state
from reprise.engine.kv_cache.per_row import Caches, make_caches
from reprise.engine.kv_cache.rows import Rows, Sharing, make_batched_rows, make_rows


def _make_rows(shard: Shard, sharing: int) -> Rows:
    return make_rows(shard, Sharing(sharing))


def _feed(shard: Shard, tokens: mx.array, caches: Caches | None) -> None:
    shard(share_tokens(tokens), cache=caches)


def _forward(rows: Rows, tokens: mx.array, keeps_state: bool) -> None:
    rows.forward(share_tokens(tokens), keeps_state)


def _ragged(rows: Rows, fed: Sequence[Sequence[int]]) -> None:
    rows.forward_ragged(fed)


def _call(name: str) -> Callable[..., Any]:
    return lambda rows, *given: getattr(rows, name)(*given)


def _files(name: str) -> Callable[..., Any]:
    def call(shard: Shard, *given: Any) -> Any:
        if shard.files is None:
            raise ValueError("no prefixes are kept in files here")
        return getattr(shard.files, name)(*given)

    return call


OPERATIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "make_caches": make_caches,
        "make_rows": _make_rows,
        "make_batched_rows": make_batched_rows,
        "feed": _feed,
        "forward": _forward,
        "forward_ragged": _ragged,
        **{
            name: _call(name)
            for name in (
                "add",
                "fill",
                "remove",
                "roll_back",
                "kv_slice",
                "state",
                "limit_growth",
                "start_copies",
            )
        },
        "cut_slice": cut_slice,
        "leading": leading,
        "split_slice": split_slice,
        "take_state": take_state,
        "rebuild": rebuild,
        "keep_parts": _files("keep"),
        "save_part": _files("save"),
        "drop_part": _files("drop"),
        "begin_parts": _files("begin_read"),
        "join_parts": ReadParts,
        "cut_parts": _call("cut"),
        "state_of_parts": _call("state"),
    }
)
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

    asks_first: whether the ranks agree on each operation before they run it, as it may fail on some ranks. So
        it is while the engine finds out what the model allows.
    is_commanding: whether an operation is being done.
    """

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self.asks_first = True
        self._num_objects = 0
        self._dropped: deque[int] = deque()
        self.is_commanding = self._has_disagreed = self._asks = False

    def do(
        self, name: str, local: Callable[..., Any], *given: Any, makes: bool = False, asks: bool = False
    ) -> Any:
        """Let all ranks do one operation; return the result of local(*given), which does it on rank 0.

        makes: whether the other ranks keep their results, under the number of the next new_handle().
        asks: whether the ranks first agree that they can do it, even when asks_first is not set.
        An operation called within another one is a part of that, not a command of its own.
        Raises the exception of local if the ranks were asked to agree, else RanksLostError.
        """
        if self.is_commanding:
            return local(*given)
        self._asks = asks or self.asks_first
        dropped = [self._dropped.popleft() for _ in range(len(self._dropped))]
        self._peers.num_sent += 1
        made = self._num_objects + 1 if makes else None
        arguments = [_encoded(one) for one in given]
        self._send([self._peers.num_sent, name, arguments, made, dropped, self._asks])
        self.is_commanding, self._has_disagreed = True, False
        try:
            result = local(*given)
            self.agree(None)
        except Exception as fault:
            if not self._asks:
                raise self._lost(
                    f"rank 0 failed at {name}, which the other ranks have done: {fault}"
                ) from fault
            if not self._has_disagreed:
                # It raises the same fault.
                self.agree(fault)
            raise
        finally:
            self.is_commanding = False
        return result

    def agree(self, fault: Exception | None) -> None:
        """Wait until every rank has built its part of the present command. See parts.py.

        fault: the exception that building raised on rank 0, if any; it is raised again.
        Raises RuntimeError with the fault of another rank.
        """
        if not self._asks:
            if fault is not None:
                raise fault
            return
        if self._has_disagreed:
            return
        faults = [one for one in self._peers.gather() if one is not None]
        self._has_disagreed = bool(faults) or fault is not None
        self._send([not self._has_disagreed])
        if fault is not None:
            raise fault
        if faults:
            raise RuntimeError(faults[0])

    def new_handle(self) -> Handle:
        """Return a handle for the object that the last command made on the other ranks."""
        self._num_objects += 1
        return Handle(self._num_objects, self._dropped)

    def check(self) -> None:
        """Raise RanksLostError if a rank is lost."""
        if reason := self._peers.explain(0.0):
            raise RanksLostError(reason)

    def _send(self, message: Any) -> None:
        self.check()
        data = encode(message)
        for channel in self._peers.channels:
            try:
                channel.send_encoded(data)
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
