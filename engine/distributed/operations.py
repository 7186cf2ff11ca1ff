"""The operations that rank 0 commands the other ranks to do, by name: calls on a model's caches and rows."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import mlx.core as mx

from reprise.engine.distributed.parts.part_files import ReadParts
from reprise.engine.distributed.parts.shard import Shard, share_tokens
from reprise.engine.kv_cache.per_row import Caches, make_caches
from reprise.engine.kv_cache.rows import Rows, Sharing, make_batched_rows, make_rows
from reprise.engine.kv_cache.slices import cut_slice, leading, rebuild, split_slice, take_state


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
