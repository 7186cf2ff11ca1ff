"""Rank 0: bring the ranks together, load the model on all of them, and hand it to the engine."""

import gc
import hashlib
import hmac
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from select import POLLHUP, poll, select
from typing import Any, NoReturn

import mlx.core as mx
from mlx._distributed_utils import launch

from reprise.config.settings import Settings
from reprise.engine.distributed.leader import Leader, SharedModel
from reprise.engine.distributed.model_parts import PartFacts, find_room, load_part
from reprise.engine.distributed.ranks import (
    JOIN_TIMEOUT_S,
    Peers,
    Place,
    RanksLostError,
    await_ranks,
    begin_group,
    find_facts,
    refuse_all,
    refuse_settings,
    share_token,
)
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import Progress
from reprise.engine.interface.status import STALL_S
from reprise.engine.model.loading import LoadedModel

CTRL_C = b"\x03"
MAX_WAIT_S = 0.1
"""Maximum delay of typed input to the processes, in seconds."""


def select_readable(
    readers: Sequence[int], writers: Sequence[int], others: Sequence[int], timeout_s: float
) -> tuple[list[int], list[int], list[int]]:
    """Wait until a file is readable, in place of select.select(), which would return for writable ones too.

    Calls stop_processes() if standard input has ended, as the command that wrote to it is then gone.
    """
    if (stdin := sys.stdin.fileno()) in readers and has_ended(stdin):
        stop_processes()
    readable, _, other = select(readers, [], others, min(timeout_s, MAX_WAIT_S))
    return readable, select([], writers, [], 0)[1], other


def has_ended(pipe: int) -> bool:
    """Return whether a pipe has no writer left."""
    poller = poll()
    poller.register(pipe, 0)
    return any(event & POLLHUP for _, event in poller.poll(0))


def stop_processes() -> None:
    """Stop the processes here and on other machines, in place of reprise.cli.launch, which has ended."""
    # A standard input that does not end takes the place of the one that has ended.
    reader, writer = os.pipe()
    os.write(writer, CTRL_C)
    os.dup2(reader, sys.stdin.fileno())
    os.killpg(0, signal.SIGINT)


if __name__ == "__main__":
    sys.argv[0] = "mlx.launch"
    library: Any = launch
    library.select = select_readable
    launch.main()


log = logging.getLogger("reprise.engine")

LOST_STATUS = 3
"""The exit status after another rank was lost."""

LAST_WRITES_S = 2.0
"""Seconds for clients to read the final error after a rank was lost."""

REPORT_S = 10.0
"""Seconds between two messages that say how far the other ranks have loaded."""


class Ranks:
    """The ranks of one model, seen from rank 0. load() takes the place of the engine's own loading.

    To be made on the main thread: Ctrl-C raises KeyboardInterrupt from then on.
    abort: set by the engine; takes a sentence, and ends all requests with it. Any thread may call it.
    """

    def __init__(self, place: Place, settings: Settings) -> None:
        # reprise.cli.launch starts processes that ignore it, for the sake of mlx.launch.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # It comes when mlx.launch ends its ssh, shortly before SIGTERM does, which counts.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self.abort: Callable[[str], None] = lambda _: None
        self._place = place
        self._settings = settings
        self._peers: Peers | None = None
        self._leader: Leader | None = None
        self._is_loaded = False

    def load(self, progress: Progress | None) -> LoadedModel:
        """Wait for the other ranks and load rank 0's part, on the engine's thread. Raises ModelError."""
        place, settings = self._place, self._settings
        refuse_settings(settings)
        show = progress or (lambda _: None)
        channels = await_ranks(place, find_facts(settings), JOIN_TIMEOUT_S, lambda: show(0.0))
        for channel in channels:
            channel.send("join")
        group = begin_group(place)
        token = share_token(is_ours=True)
        for rank, channel in enumerate(channels, 1):
            said = channel.receive()
            if not (isinstance(said, str) and hmac.compare_digest(said, token)):
                reason = f"what says it is {place.name(rank)} is not the process that is in MLX's group"
                refuse_all(channels, reason)
                raise ModelError(reason)
        peers = self._peers = Peers(place, channels, STALL_S)
        peers.on_loss = self._lose
        peers.start()

        def show_share(ours: float) -> None:
            show((ours + sum(peers.shares)) / place.size)

        try:
            loaded, ours = load_part(settings, group, show_share)
            parts = [ours, *_wait_for_parts(place, peers, show_share)]
            room_bytes = find_room(place, parts)
        except ModelError as fault:
            peers.refuse(str(fault))
            raise
        except RanksLostError as fault:
            raise ModelError(str(fault)) from fault
        leader = self._leader = Leader(peers)
        loaded.model = SharedModel(loaded.model, leader)
        loaded.room_bytes = room_bytes
        loaded.info = replace(
            loaded.info,
            num_layers=sum(ours.layers) if ours.layers else loaded.info.num_layers,
            fingerprint=_fingerprint(loaded.info.fingerprint, settings.split_kind, parts),
            ranks=tuple(_describe(place, peers, rank, part) for rank, part in enumerate(parts)),
        )
        return loaded

    def begin_serving(self) -> None:
        """From now on, let ranks run commands without agreeing on each first."""
        # Exceptions from trials hold caches in cycles, and so the other ranks' caches too.
        gc.collect()
        self._is_loaded = True
        if self._leader:
            self._leader.asks_first = False

    def explain(self) -> str | None:
        """Return why a rank was lost; None if none is lost within 0.2 s. Called after a failed request."""
        return self._peers.explain(0.2) if self._peers else None

    def release(self, status: int) -> int:
        """Let the other ranks exit, with 0 if status is 0; return rank 0's own exit status.

        That is LOST_STATUS if a rank was lost, else status. The process ends within seconds in any case, as a
        stopped rank may never receive the message.
        """
        _end_within(LAST_WRITES_S, LOST_STATUS)
        if self._peers:
            if self._peers.explain(0.0) is not None:
                return LOST_STATUS
            if status == 0:
                self._peers.end()
            else:
                self._peers.refuse("rank 0 has ended")
        return status

    def count(self) -> dict[str, dict[str, float]]:
        """Return the metrics of each rank: name -> rank -> value. May be called on any thread."""
        if not (peers := self._peers) or not self._leader:
            return {}
        active_bytes = [mx.get_active_memory(), *peers.active_bytes]
        return {
            "active_bytes": {str(rank): num_bytes for rank, num_bytes in enumerate(active_bytes)},
            "silent_seconds": {str(rank): silent_s for rank, silent_s in enumerate(peers.silent_s(), 1)},
        }

    def _lose(self, reason: str) -> None:
        """End every request with the reason, then the process: the engine's thread may never return."""
        _end_within(3 * LAST_WRITES_S, LOST_STATUS)
        log.critical("%s", reason)
        if self._is_loaded:
            aborting = threading.Thread(target=self.abort, args=(reason,), daemon=True)
            aborting.start()
            aborting.join(LAST_WRITES_S)
            time.sleep(LAST_WRITES_S)
        leave(LOST_STATUS)


def _wait_for_parts(place: Place, peers: Peers, show_share: Progress) -> list[PartFacts]:
    reported_at = 0.0

    def tick() -> None:
        nonlocal reported_at
        show_share(1.0)
        if time.monotonic() - reported_at > REPORT_S:
            reported_at = time.monotonic()
            shares = ", ".join(
                f"{place.name(rank)} {share:.0%}" for rank, share in enumerate(peers.shares, 1)
            )
            log.info("loaded so far of the other parts: %s", shares)

    parts = []
    for rank, said in enumerate(peers.wait_for_parts(tick), 1):
        if "failed" in said:
            raise ModelError(f"{place.name(rank)}: {said['failed']}")
        parts.append(PartFacts(**said))
    return parts


def _describe(place: Place, peers: Peers, rank: int, part: PartFacts) -> str:
    """Describe a rank for the banner."""
    if part.layers:
        first = sum(part.layers[rank + 1 :])
        held = f"layers {first + 1} to {first + part.layers[rank]}"
    else:
        held = f"a shard of 1/{place.size}"
    memory = f"{part.weight_bytes / 2**20:,.1f} MiB of weights, {part.room_bytes / 2**20:,.0f} MiB left"
    described = f"{place.hosts[rank]}, {part.device}: {held}, {memory}"
    return f"{described}, round trip {peers.round_trip_s(rank) * 1e6:.0f} µs" if rank else described


def leave(status: int, reason: str | None = None) -> NoReturn:
    """End the process at once, even if MLX's group, or threads that wait for other ranks, would block it."""
    _end_within(LAST_WRITES_S, status)
    if reason:
        print(f"reprise: {reason}", file=sys.stderr)  # noqa: T201 - for the person at the terminal
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    logging.shutdown()
    os._exit(status)


def _end_within(limit_s: float, status: int) -> None:
    """End the process after that time at the latest: whoever reads its output may be gone or stuck."""
    timer = threading.Timer(limit_s, os._exit, (status,))
    timer.daemon = True
    timer.start()


def _fingerprint(ours: str, split: str, parts: list[PartFacts]) -> str:
    """Return a digest of the model and its split: costs and findings depend on both."""
    layers = [part.layers for part in parts]
    return hashlib.sha256(repr((ours, split, layers)).encode()).hexdigest()[:32]
