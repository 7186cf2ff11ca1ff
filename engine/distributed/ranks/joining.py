"""Bring the ranks together: connect, compare facts, begin MLX's group, and prove membership of it."""

import hmac
import logging
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from reprise.engine.distributed.ranks.channel import Channel
from reprise.engine.distributed.ranks.facts import Facts, compare
from reprise.engine.distributed.ranks.place import Place
from reprise.engine.interface.errors import ModelError

log = logging.getLogger("reprise.engine")

RETRY_S = 0.1
TICK_S = 0.5
FIRST_WORD_S = 10.0
"""Seconds in which whoever connects must say what it is."""

TOKEN_BYTES = 32
GROUP_S = 60
"""Seconds after which a process ends whose group does not form, though all ranks are there.

MLX holds Python's lock meanwhile, so only a signal can end it."""


def await_ranks(
    place: Place, facts: Facts, timeout_s: float, tick: Callable[[], None] = lambda: None
) -> list[Channel]:
    """Wait on rank 0 for all other ranks, and compare their facts with ours; return their connections.

    tick: called every TICK_S seconds.
    Raises ModelError if a rank does not come in time, or its facts differ; the ranks that came are told why.
    """
    found: dict[int, Channel] = {}
    refused: str | None = None
    with socket.create_server((place.hosts[0], place.port), reuse_port=False) as server:
        deadline = time.monotonic() + timeout_s
        while len(found) < place.size - 1 and refused is None:
            missing = ", ".join(place.name(rank) for rank in range(1, place.size) if rank not in found)
            log.info("waiting for %s, up to %.0f s", missing, max(0.0, deadline - time.monotonic()))
            channel = _accept(server, deadline, tick)
            if channel is None:
                refused = f"{missing} did not join within {timeout_s:g} seconds (--join-timeout-s)"
                break
            said = _first_word(channel)
            if said is None:
                continue
            rank = said["rank"]
            found[rank] = channel
            refused = compare(facts, said["facts"], place.name(rank))
    channels = [found[rank] for rank in sorted(found)]
    if refused is None:
        return channels
    for channel in channels:
        _try_send(channel, {"refused": refused})
    raise ModelError(refused)


def join_rank_0(place: Place, facts: Facts, timeout_s: float) -> Channel:
    """Connect to rank 0, and send this rank's facts. Raises ModelError if rank 0 does not answer in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            channel = Channel(socket.create_connection((place.hosts[0], place.port), timeout=timeout_s))
            break
        except OSError as fault:
            if time.monotonic() > deadline:
                raise ModelError(
                    f"{place.name(0)} did not answer within {timeout_s:g} seconds (--join-timeout-s): {fault}"
                ) from fault
            time.sleep(RETRY_S)
    channel.limit_wait(None)
    channel.send({"rank": place.rank, "facts": dict(facts)})
    return channel


def begin_group(place: Place) -> mx.distributed.Group:
    """Make MLX's group of all ranks; the process ends if that takes longer than GROUP_S.

    Raises ModelError if MLX cannot make the group, or gives this process another rank.
    """
    log.info("connecting %d ranks by %s, for at most %d s", place.size, place.backend, GROUP_S)
    signal.alarm(GROUP_S)
    try:
        group = mx.distributed.init(strict=True, backend=place.backend)
    except (RuntimeError, ValueError) as fault:
        raise ModelError(f"MLX cannot connect the machines by {place.backend}: {fault}") from fault
    finally:
        signal.alarm(0)
    if (group.rank(), group.size()) != (place.rank, place.size):
        raise ModelError(
            f"MLX says that this is rank {group.rank()} of {group.size()}, and mlx.launch that it is rank "
            f"{place.rank} of {place.size}"
        )
    return group


def make_token() -> str:
    """Return a random secret that proves membership of the group."""
    return secrets.token_hex(TOKEN_BYTES)


def share_token(token: str | None) -> str:
    """Send rank 0's token to every rank through MLX's group, and return it. token: None on other ranks."""
    size = 2 * TOKEN_BYTES
    ours = np.frombuffer((token or "\0" * size).encode(), np.uint8).astype(np.int32)
    summed = np.array(mx.distributed.all_sum(mx.array(ours)))
    return bytes(summed.astype(np.uint8)).decode()


def check_token(said: object, token: str) -> bool:
    """Whether the other side of a connection said the token, and so is a member of the group."""
    return isinstance(said, str) and hmac.compare_digest(said, token)


def _accept(server: socket.socket, deadline: float, tick: Callable[[], None]) -> Channel | None:
    """Return the next connection; None if there is none by the deadline."""
    while (left_s := deadline - time.monotonic()) > 0:
        tick()
        server.settimeout(min(TICK_S, left_s))
        try:
            return Channel(server.accept()[0])
        except TimeoutError:
            continue
    return None


def _first_word(channel: Channel) -> dict[str, Any] | None:
    """Return the first word of a connection; None if no rank sent it, and the connection is closed."""
    try:
        channel.limit_wait(FIRST_WORD_S)
        said = channel.receive()
        if (
            isinstance(said, dict)
            and isinstance(said.get("rank"), int)
            and isinstance(said.get("facts"), dict)
        ):
            return said
    except (OSError, EOFError, ValueError):
        pass
    log.warning("something that is no rank connected, and was refused")
    channel.close()
    return None


def _try_send(channel: Channel, message: Any) -> None:
    try:
        channel.send(message)
    except OSError:
        log.info("a rank left before it was told why")


def refuse_all(channels: Sequence[Channel], reason: str) -> None:
    """Tell the ranks at these connections why the model will not be served."""
    for channel in channels:
        _try_send(channel, {"refused": reason})
