"""Commands of rank 0, and what another rank does with them."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import mlx.core as mx
import pytest

from reprise.engine.distributed.follow import Replica
from reprise.engine.distributed.leader import Leader, SharedModel
from reprise.engine.distributed.model_parts import Shard
from reprise.engine.distributed.ranks import RanksLostError
from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.buffers import rebuild, split_slice
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.rows import Rows, Sharing, make_rows
from reprise.engine.speculative.heads.head_drafter import HeadDrafter, NamedHead
from tests.engine.support import make_loaded, make_model

FED = [[5, 6, 7], [8], [9, 10]]


class Sent:
    """In place of a connection: keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def send(self, message: Any) -> None:
        self.messages.append(json.loads(json.dumps(message)))


class Others:
    """The other ranks as the leader sees them: one, which says what it is made to say."""

    def __init__(self) -> None:
        self.sent = Sent()
        self.channels: Any = [self.sent]
        self.num_sent = 0
        self.word: str | None = None
        self.lost: str | None = None

    def gather(self) -> list[str | None]:
        return [self.word]

    def explain(self, wait_s: float) -> str | None:  # noqa: ARG002 - as Peers has it
        return self.lost


def make_shared(asks_first: bool = False) -> tuple[SharedModel, Others]:
    others = Others()
    leader = Leader(others)  # type: ignore[arg-type]
    leader.asks_first = asks_first
    return SharedModel(Shard(make_model("qwen2")), leader), others


def make_replica(tell: Callable[[str | None], bool] = lambda _: True) -> Replica:
    return Replica(Shard(make_model("qwen2")), tell)


def test_a_head_that_reads_keys_of_a_part_is_refused() -> None:
    model, _ = make_shared()
    head, loaded = Mock(reads_target=True, taps=()), replace(make_loaded("qwen2"), model=model)
    with pytest.raises(ModelError, match="reads keys and values of qwen2, and other machines have some of"):
        HeadDrafter(NamedHead(head, "mtp"), loaded)


def repeat(replica: Replica, others: Others) -> None:
    """Let a rank do what has been sent so far."""
    for message in others.sent.messages:
        # What ranks agree on travels between the commands.
        if len(message) > 1:
            replica.do(message)
    others.sent.messages.clear()


def equal(ours: Any, theirs: Any) -> bool:
    assert len(ours) == len(theirs)
    assert len(ours)
    return all(bool(mx.array_equal(a, b)) for a, b in zip(ours, theirs, strict=True))


def add_rows(rows: Rows, model: Any) -> None:
    for _ in FED:
        rows.add(make_caches(model), 0)


@pytest.mark.parametrize("sharing", [Sharing.NOTHING, Sharing.BUFFERS, Sharing.GROUPS])
def test_a_replica_ends_with_the_bytes_of_rank_0(sharing: Sharing) -> None:
    model, others = make_shared()
    rows = make_rows(model, sharing)
    add_rows(rows, model)
    rows.forward_ragged(FED)
    rows.roll_back(0, 2)
    rows.remove(1)
    rows.forward_ragged([[1, 2], [3]])
    whole = rows.kv_slice(0, 0, 4)
    upper = split_slice(whole, 1)
    caches = rebuild(make_caches(model), [upper, whole], [], 4)
    rows.add(caches, 4)
    rows.forward_ragged([[4], [5, 6], [7]])
    held = [rows.kv_slice(row, 0, length) for row, length in enumerate(rows.lengths)]
    replica = make_replica()
    repeat(replica, others)
    for one in held:
        assert equal(one, replica.objects[one.handle.number])  # type: ignore[attr-defined]


def test_a_replica_drops_what_rank_0_has_dropped() -> None:
    model, others = make_shared()
    replica = make_replica()
    kept = make_caches(model)
    for _ in range(5):
        make_caches(model)
    last = make_caches(model)
    repeat(replica, others)
    assert sorted(replica.objects) == [0, kept.handle.number, last.handle.number]  # type: ignore[attr-defined]


def test_a_command_out_of_order_is_refused() -> None:
    model, others = make_shared()
    kept = [make_caches(model) for _ in range(3)]
    del others.sent.messages[1]
    with pytest.raises(RanksLostError, match="command 3 came after command 1"):
        repeat(make_replica(), others)
    assert kept


@pytest.mark.parametrize(
    "command", [[1, "eval", ["1"], None, [], False], [1, "forward", [], None, [], False]]
)
def test_what_is_no_command_is_not_done(command: list[Any]) -> None:
    replica = make_replica()
    with pytest.raises(RanksLostError, match=f"it failed at {command[1]}"):
        replica.do(command)


def test_while_ranks_agree_a_fault_of_one_is_raised_on_all_and_work_goes_on() -> None:
    model, others = make_shared(asks_first=True)
    others.word = "out of memory"
    with pytest.raises(RuntimeError, match="out of memory"):
        make_caches(model)
    asked, agreed = others.sent.messages
    assert agreed == [False]
    # The rank whose fault it is says so, and keeps nothing.
    said: list[str | None] = []

    def tell(fault: str | None) -> bool:
        said.append(fault)
        return False

    replica = make_replica(tell)
    replica.do(asked)
    assert said == [None]
    assert list(replica.objects) == [0]
    others.word = None
    others.sent.messages.clear()
    caches = make_caches(model)
    assert others.sent.messages[-1] == [True]
    replica = make_replica()
    replica.num_done = 1
    repeat(replica, others)
    assert list(replica.objects) == [0, caches.handle.number]  # type: ignore[attr-defined]


def test_a_fault_of_another_rank_is_told_to_rank_0_while_ranks_agree() -> None:
    said: list[str | None] = []

    def tell(fault: str | None) -> bool:
        said.append(fault)
        return False

    replica = make_replica(tell)
    replica.do([1, "make_caches", [{"object": 0}], 1, [], False])
    # Nothing is in the caches yet.
    replica.do([2, "cut_slice", [{"object": 1}, 0, 4], 2, [], True])
    assert said == ["'NoneType' object is not subscriptable"]
    assert list(replica.objects) == [0, 1]
    assert replica.num_done == 2


def test_a_fault_of_rank_0_alone_ends_the_ranks_while_they_serve() -> None:
    model, _ = make_shared()
    rows = make_rows(model, Sharing.BUFFERS)
    rows.add(make_caches(model), 0)
    with pytest.raises(RanksLostError, match="rank 0 failed at roll_back, which the other ranks have done"):
        rows.roll_back(0, 5)


def test_nothing_is_sent_once_a_rank_is_lost() -> None:
    model, others = make_shared()
    others.lost = "rank 1 (mac2) has died or left"
    with pytest.raises(RanksLostError, match=r"rank 1 \(mac2\) has died or left"):
        make_caches(model)
    assert others.sent.messages == []


def test_what_an_operation_calls_itself_is_no_command() -> None:
    model, others = make_shared()
    rows = make_rows(model, Sharing.NOTHING)
    add_rows(rows, model)
    others.sent.messages.clear()
    rows.forward_ragged(FED)
    rows.roll_back(0, 1)
    assert [message[1] for message in others.sent.messages] == ["forward_ragged", "roll_back"]


def test_sampled_tokens_are_not_sent_and_given_ones_are() -> None:
    model, others = make_shared()
    rows = make_rows(model, Sharing.BUFFERS)
    add_rows(rows, model)
    others.sent.messages.clear()
    rows.forward(mx.array([[1], [2], [3]]))
    rows.forward_ragged(FED)
    (_, _, plain, *_), (_, _, ragged, *_) = others.sent.messages
    assert plain[1] == {"tokens": [3, 1]}
    assert ragged[1] == FED
