"""What rank 0 knows of another rank, by what it sends or does not send."""

import queue
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from reprise.engine.distributed.ranks import Channel, Peers, Place, RanksLostError

PLACE = Place(0, ("10.0.0.1", "10.0.0.2"), 32325)
LIMIT_S = 60


class Pair:
    """Rank 0's view of one other rank, and that rank's end of their connection."""

    def __init__(self, stall_s: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.other = Channel(socket.create_connection(server.getsockname()))
            self.peers = Peers(PLACE, [Channel(server.accept()[0])], stall_s)
        self.lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.peers.on_loss = self.lost.put
        self.peers.start()

    def end(self) -> None:
        self.peers.end()
        self.other.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair(LIMIT_S)
    yield made
    made.end()


def nothing() -> None:
    pass


def test_what_a_rank_says_of_itself_is_known(pair: Pair) -> None:
    pair.other.send(["done", [7, 0.25, 4096]])
    part: dict[str, Any] = {"device": "CPU"}
    pair.other.send(["word", part])
    assert pair.peers.wait_for_parts(nothing) == [part]
    assert (pair.peers.num_done, pair.peers.shares, pair.peers.active_bytes) == ([7], [0.25], [4096])
    (silent_s,) = pair.peers.silent_s()
    assert 0 <= silent_s < LIMIT_S


def test_a_rank_that_goes_is_lost_with_a_sentence(pair: Pair) -> None:
    pair.other.close()
    sentence = pair.lost.get(timeout=LIMIT_S)
    assert sentence.startswith("rank 1 (10.0.0.2) has died or left: ")
    with pytest.raises(RanksLostError, match="has died or left"):
        pair.peers.gather()


def test_a_rank_that_cannot_go_on_says_why(pair: Pair) -> None:
    pair.other.send(["lost", "no memory"])
    assert pair.lost.get(timeout=LIMIT_S) == "rank 1 (10.0.0.2) cannot go on: no memory"


def test_a_silent_rank_is_lost() -> None:
    pair = Pair(stall_s=0.6)
    assert pair.lost.get(timeout=LIMIT_S) == (
        "rank 1 (10.0.0.2) has not been heard for 0.6 seconds: it is stopped or cut off"
    )
    pair.end()


def test_what_is_interrupted_does_not_wait_for_parts(pair: Pair) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.peers.wait_for_parts(interrupt)


def test_nothing_is_lost_once_the_work_is_over(pair: Pair) -> None:
    pair.peers.end()
    while pair.other.receive() != "end":
        pass
    pair.other.close()
    assert pair.peers.explain(0.2) is None
