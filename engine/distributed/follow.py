"""Every rank but rank 0: join rank 0, load a part of the model, and repeat commands until told to end."""

import logging
import queue
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NoReturn

import mlx.core as mx
from mlx.utils import tree_flatten

from reprise.config.settings import Settings
from reprise.engine.distributed.leader import OPERATIONS
from reprise.engine.distributed.model_parts import Agreement, Shard, load_part
from reprise.engine.distributed.rank_0 import LOST_STATUS, leave
from reprise.engine.distributed.ranks import (
    BEAT_S,
    JOIN_TIMEOUT_S,
    Channel,
    Place,
    RanksLostError,
    begin_group,
    find_facts,
    join_rank_0,
    refuse_settings,
    share_token,
)
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.status import STALL_S

RETURNS_COPIES = frozenset(
    ("cut_slice", "leading", "split_slice", "take_state", "kv_slice", "state", "cut_parts")
)
"""Operations whose results are copies that must not wait for a later forward pass."""

Tell = Callable[[str | None], bool]
"""Tells rank 0 whether the command can be done, and returns whether all ranks can."""


class Replica:
    """Keeps this rank's part of rank 0's caches, rows and slices, under the same numbers.

    tell: sends rank 0 this rank's error, or None, and returns whether all ranks agree.
    num_done: the number of the last command done. objects: this rank's parts of rank 0's objects, by number.
    """

    def __init__(self, shard: Shard, tell: Tell) -> None:
        self._tell = tell
        self._shard = shard
        self._agree = shard.agree = Agreement(self._exchange)
        self.num_done = 0
        # Rank 0's shard is object 0.
        self.objects: dict[int, Any] = {0: shard}

    def do(self, command: Any) -> None:
        """Do one command of rank 0. Raises RanksLostError if it is out of order, or fails only here."""
        number, name, arguments, made, dropped, asks = command
        if number != self.num_done + 1:
            raise RanksLostError(f"command {number} came after command {self.num_done}")
        for one in dropped:
            del self.objects[one]
        self._agree.begin(asks=asks)
        try:
            result = OPERATIONS[name](*map(self._decode, arguments))
            self._agree(None)
        except Exception as fault:
            if not asks:
                raise RanksLostError(f"it failed at {name}: {fault}") from fault
            self._agree.fail(fault)
            result = None
        if made is not None and not self._agree.has_failed:
            self.objects[made] = result
        if name in RETURNS_COPIES and result:
            flat: Any = tree_flatten(result)
            mx.async_eval([array for _, array in flat if isinstance(array, mx.array)])
        self.num_done = number

    def close(self) -> None:
        """Wait until all prefix files are written."""
        if self._shard.files:
            self._shard.files.close()

    def _exchange(self, fault: Exception | None) -> str | None:
        agreed = self._tell(None if fault is None else str(fault) or type(fault).__name__)
        return None if agreed else "another rank cannot do it"

    def _decode(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self._decode(one) for one in given]
        if isinstance(given, dict):
            if "object" in given:
                return self.objects[given["object"]]
            return mx.zeros(given["tokens"], mx.int32)
        return given


log = logging.getLogger("reprise.engine")


class Follower:
    """A rank other than rank 0, from its start to its end."""

    def __init__(self, place: Place, settings: Settings) -> None:
        self._place = place
        self._settings = settings
        self._channel: Channel
        self._messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._replica: Replica | None = None
        self._heard_at = time.monotonic()
        self._share = 0.0

    def run(self) -> int:
        """Follow rank 0 until the work is over; return the exit status. Raises ModelError."""
        # Ctrl-C at the terminal, and its end, reach every process of mlx.launch: rank 0 drains, and says so.
        for sig in (signal.SIGINT, signal.SIGHUP):
            signal.signal(sig, signal.SIG_IGN)
        settings = self._settings
        refuse_settings(settings)
        self._channel = join_rank_0(self._place, find_facts(settings), JOIN_TIMEOUT_S)
        if (said := self._channel.receive()) != "join":
            raise ModelError(said["refused"])
        group = begin_group(self._place)
        self._channel.send(share_token(is_ours=False))
        self._heard_at = time.monotonic()
        threading.Thread(target=self._read, name="rank-0", daemon=True).start()
        threading.Thread(target=self._beat, name="beat", daemon=True).start()
        try:
            loaded, facts = load_part(settings, group, self._note_share)
        except ModelError as fault:
            self._channel.send(["word", {"failed": str(fault)}])
            raise
        self._channel.send(["word", asdict(facts)])
        self._replica = Replica(loaded.model, self._tell)
        try:
            return self._repeat(self._replica)
        except ModelError:
            raise
        except Exception as fault:
            raise RanksLostError(str(fault)) from fault

    def fail(self, reason: str) -> None:
        """Tell rank 0 that this rank cannot go on."""
        try:
            self._channel.send(["lost", reason])
        except (OSError, AttributeError):
            log.info("rank 0 is gone already")

    def _repeat(self, replica: Replica) -> int:
        while True:
            message = self._messages.get()
            if message == "end":
                replica.close()
                return 0
            if message == "echo":
                self._channel.send(["word", None])
            elif isinstance(message, dict):
                raise ModelError(message["refused"])
            else:
                replica.do(message)

    def _note_share(self, share: float) -> None:
        self._share = share

    def _tell(self, fault: str | None) -> bool:
        self._channel.send(["word", [fault]])
        (agreed,) = self._messages.get()
        return bool(agreed)

    def _read(self) -> None:
        try:
            while True:
                message = self._channel.receive()
                self._heard_at = time.monotonic()
                if message != "beat":
                    self._messages.put(message)
                if message == "end" or isinstance(message, dict):
                    return
        except (OSError, EOFError, ValueError) as fault:
            leave(LOST_STATUS, f"{self._place.name(0)} has died or left: {fault}")

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            if time.monotonic() - self._heard_at > STALL_S:
                name = self._place.name(0)
                leave(
                    LOST_STATUS,
                    f"{name} has not been heard for {STALL_S:g} seconds: it is stopped or cut off",
                )
            try:
                num_done = self._replica.num_done if self._replica else 0
                self._channel.send(["done", [num_done, self._share, mx.get_active_memory()]])
            except OSError:
                return


def run(place: Place, settings: Settings) -> NoReturn:
    """Follow rank 0, then end the process: with status 0 if all is well, else after printing the reason."""
    follower = Follower(place, settings)
    try:
        leave(follower.run())
    except ModelError as fault:
        leave(1, str(fault))
    except RanksLostError as fault:
        follower.fail(str(fault))
        leave(LOST_STATUS, str(fault))
    # Whatever was raised, rank 0 must not wait for this rank.
    except BaseException as fault:
        log.critical("this rank cannot go on", exc_info=fault)
        follower.fail(f"{type(fault).__name__}: {fault}")
        leave(LOST_STATUS)
