"""The machines that share a model, how they join, and what they send each other."""

import contextlib
import hashlib
import json
import logging
import os
import platform
import queue
import secrets
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from reprise.config.settings import Settings
from reprise.config.version import VERSION
from reprise.engine.interface.errors import ModelError
from reprise.engine.model.files.folder_reader import read_bytes
from reprise.engine.model.files.model_folder import describe_folder
from reprise.engine.model.loading import check_adapter


class RanksLostError(BaseException):
    """The ranks can no longer compute together; the message names the host and says why.

    Not an Exception: no step and no request can go on after it, so only the code that ends the engine may
    catch it.
    """


@dataclass(frozen=True)
class Place:
    """One process among those that share a model.

    rank: its number. hosts: the address of each rank, by which messages to people name the rank.
    port: where rank 0 listens for the others, at its own address. backend: how MLX connects the ranks.
    """

    rank: int
    hosts: tuple[str, ...]
    port: int
    backend: str = "ring"

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.hosts)

    def name(self, rank: int) -> str:
        """Return the name of a rank in messages to people."""
        return f"rank {rank} ({self.hosts[rank]})"


def read_place(environment: Mapping[str, str] = os.environ) -> Place | None:
    """Return this process's place; None if mlx.launch did not start it, or started no other.

    Raises ModelError if what mlx.launch says cannot be used.
    """
    if "MLX_RANK" not in environment:
        return None
    try:
        rank = int(environment["MLX_RANK"])
        if "MLX_HOSTFILE" in environment:
            place = _read_ring(rank, environment["MLX_HOSTFILE"])
        elif "MLX_JACCL_COORDINATOR" in environment:
            place = _read_jaccl(rank, environment["MLX_JACCL_COORDINATOR"], environment["MLX_IBV_DEVICES"])
        else:
            raise ModelError("mlx.launch was started with a backend other than ring and jaccl")
    except (OSError, ValueError, LookupError) as fault:
        raise ModelError(f"the host file of mlx.launch cannot be used: {fault}") from fault
    return place if place and place.size > 1 else None


def _read_ring(rank: int, file: str) -> Place | None:
    text = Path(file).read_text(encoding="utf-8").strip()
    if not text:
        return None
    ends = [[address.rsplit(":", 1) for address in node] for node in json.loads(text)]
    # mlx.launch counts the ports of the ring up, so that the next one is free.
    port = max(int(end[1]) for node in ends for end in node) + 1
    return Place(rank, tuple(node[0][0] for node in ends), port)


def _read_jaccl(rank: int, coordinator: str, devices: str) -> Place:
    host, port = coordinator.rsplit(":", 1)
    num_ranks = len(json.loads(Path(devices).read_text(encoding="utf-8")))
    # mlx.launch says no other address.
    others = (f"host {number} of the host file" for number in range(2, num_ranks + 1))
    return Place(rank, (host, *others), int(port) + 1, "jaccl")


HEADER = struct.Struct("<I")
"""A message's length in bytes, before its JSON."""
MAX_MESSAGE_BYTES = 64 << 20
"""A longer message is refused: no command is that long."""


class Channel:
    """A connection between two ranks. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._lock = threading.Lock()
        self._reader = connection.makefile("rb")

    def send(self, message: Any) -> None:
        """Send a message of numbers, strings, lists and dictionaries. Raises OSError."""
        body = json.dumps(message, separators=(",", ":")).encode()
        with self._lock:
            self._connection.sendall(HEADER.pack(len(body)) + body)

    def receive(self) -> Any:
        """Wait for a message. Raises EOFError if the other side is gone, OSError, or ValueError."""
        (size,) = HEADER.unpack(self._read(HEADER.size))
        if size > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {size} bytes is no command")
        return json.loads(self._read(size))

    def limit_wait(self, seconds: float | None) -> None:
        """Set the timeout of receive() and send(), which then raise TimeoutError; None for no limit."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self, size: int) -> bytes:
        data = self._reader.read(size)
        if len(data) < size:
            raise EOFError("the connection was closed")
        return data


COMPARED = ("split", "kv_bits", "max_context_tokens", "trust_remote_code")
"""Settings that must be equal. The others matter on rank 0 only."""

SAMPLES, SAMPLE_BYTES = 64, 4096
"""How much of each file of weights goes into the digest. All of it would take minutes for a large model."""

Facts = Mapping[str, str]


def find_facts(settings: Settings) -> dict[str, str]:
    """Return the facts of this rank to compare with other ranks', by names for people.

    Raises ModelError if the model cannot be spread over several machines.
    """
    return {
        "version of Reprise": VERSION,
        "version of MLX": version("mlx"),
        "version of mlx-lm": version("mlx-lm"),
        "version of Python": ".".join(platform.python_version_tuple()[:2]),
        **{f"setting {name}": str(getattr(settings, name)) for name in COMPARED},
        "setting prefix_cache_dir": "none" if settings.prefix_folder is None else "a folder",
        "adapter": _digest_adapter(settings.adapter_path),
        "model": digest_files(Path(settings.model_source)),
    }


def compare(ours: Facts, theirs: Facts, name: str) -> str | None:
    """Describe the first difference in a sentence; None if there is none. name: the other rank's."""
    for fact, value in ours.items():
        if theirs.get(fact) != value:
            other = theirs.get(fact)
            if fact == "model":
                return f"{name} has other files of the model than rank 0; copy the same folder to both"
            return f"{name} has another {fact} than rank 0: {other}, not {value}"
    return None


def digest_files(folder: Path) -> str:
    """Return a digest of a model's configuration and of samples of its weights. Raises ModelError."""
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"a model on several machines must be a folder, the same on each of them; {folder} is none"
        )
    files = sorted(folder.glob("model*.safetensors"))
    if len(files) > 1 and not (folder / "model.safetensors.index.json").is_file():
        raise ModelError(f"{folder} has {len(files)} files of weights, but no model.safetensors.index.json")
    return _digest(folder / "config.json", files)


def _digest_adapter(path: str | None) -> str:
    if path is None:
        return "none"
    check_adapter(path)
    folder = Path(path)
    return _digest(folder / "adapter_config.json", sorted(folder.glob("*.safetensors")))


def _digest(config: Path, files: Sequence[Path]) -> str:
    digest = hashlib.sha256(read_bytes(config))
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as weights:
            for sample in range(SAMPLES):
                weights.seek(max(0, size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
                digest.update(weights.read(SAMPLE_BYTES))
    return digest.hexdigest()[:32]


REFUSED: Mapping[str, str] = {
    "wire_weights": "weights cannot be wired yet",
}


def refuse_settings(settings: Settings) -> None:
    """Raise ModelError for settings that do not work where a model is on several machines."""
    for name, reason in REFUSED.items():
        if getattr(settings, name):
            flag = "--" + name.replace("_", "-")
            raise ModelError(f"{flag}: with a model on several machines {reason}; start without it")
    if settings.adapter_path is not None and settings.split == "tensor":
        raise ModelError("--adapter-path: an adapter cannot be split within layers; use --split pipeline")
    folder = describe_folder(Path(settings.model_source))
    if folder.purpose != "generate":
        raise ModelError(f"{settings.model_name} generates no text; serve it on one machine")
    if settings.max_images and folder.vision:
        raise ModelError(
            f"{settings.model_name} sees images, which a model on several machines cannot; start with "
            "--max-images 0 to serve it as a model that reads text, or serve it on one machine"
        )
    if settings.wedlm_decoding != "off":
        raise ModelError("--wedlm-decoding: WeDLM models cannot be split over several machines")


JOIN_TIMEOUT_S = 60.0
"""Seconds in which all machines that share a model must have joined: mlx.launch starts them at once."""

BEAT_S = 0.5
"""Seconds between two signs of life, in both directions."""

ROUND_TRIPS = 20
Tick = Callable[[], None]
"""Called every BEAT_S seconds during a wait; an exception ends the wait."""


class Peers:
    """Reads the other ranks' messages, on a thread for each rank, and watches for lost ranks.

    channels: connections to ranks 1, 2 and so on.
    num_sent: commands sent so far; the leader counts them. num_done: commands that each rank has done.
    shares: the share of its part that each rank has loaded. active_bytes: what MLX's arrays take on each.
    on_loss: called once, on a thread of its own, with the sentence that says which rank was lost and why.
    """

    def __init__(self, place: Place, channels: Sequence[Channel], stall_s: float) -> None:
        self.channels = channels
        self.num_sent = 0
        self.num_done = [0 for _ in channels]
        self.on_loss: Callable[[str], None] = lambda _: None
        self.shares = [0.0 for _ in channels]
        self.active_bytes = [0 for _ in channels]
        self._place = place
        self._stall_s = stall_s
        self._words: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in channels]
        self._changed_at = [time.monotonic() for _ in channels]
        self._heard_at = [time.monotonic() for _ in channels]
        self._is_lost = threading.Event()
        self._reason: str | None = None
        self._lock = threading.Lock()
        self._is_over = threading.Event()

    def start(self) -> None:
        """Start the threads that read messages and watch for lost ranks."""
        for at, channel in enumerate(self.channels):
            channel.limit_wait(None)
            name = f"rank-{at + 1}"
            threading.Thread(target=self._read, args=(at, channel), name=name, daemon=True).start()
        threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def gather(self) -> list[str | None]:
        """Wait for every rank's answer to a command: a fault in words, or None. Raises RanksLostError."""
        return [self._word(words)[0] for words in self._words]

    def wait_for_parts(self, tick: Tick) -> list[dict[str, Any]]:
        """Wait until every rank has loaded its part or failed; return their messages. Raises RanksLostError.

        A message has the fields of PartFacts, or "failed" with the reason.
        """
        return [self._word(words, tick) for words in self._words]

    def silent_s(self) -> list[float]:
        """Return the seconds since each rank was last heard of."""
        now = time.monotonic()
        return [now - heard_at for heard_at in self._heard_at]

    def explain(self, wait_s: float) -> str | None:
        """Return the sentence that says which rank was lost, None if none is lost within wait_s seconds."""
        if wait_s:
            self._is_lost.wait(wait_s)
        return self._reason

    def round_trip_s(self, rank: int) -> float:
        """Return the least seconds that a message to a rank and its echo take. Raises RanksLostError."""
        found = []
        for _ in range(ROUND_TRIPS):
            start = time.perf_counter()
            self.channels[rank - 1].send("echo")
            self._word(self._words[rank - 1])
            found.append(time.perf_counter() - start)
        return min(found)

    def end(self) -> None:
        """Tell all ranks that the work is over, so that they exit with 0."""
        self._end("end")

    def refuse(self, reason: str) -> None:
        """Tell all ranks why there will be no work, so that they exit."""
        self._end({"refused": reason})

    def _end(self, message: Any) -> None:
        self._is_over.set()
        for channel in self.channels:
            with contextlib.suppress(OSError):
                channel.send(message)

    def lose(self, reason: str) -> None:
        """Note that a rank is lost. Only the first reason counts."""
        with self._lock:
            if self._is_over.is_set() or self._reason is not None:
                return
            self._reason = reason
        self._is_lost.set()
        threading.Thread(target=self.on_loss, args=(reason,), name="loss", daemon=True).start()

    def _word(self, words: "queue.SimpleQueue[Any]", tick: Tick = lambda: None) -> Any:
        while True:
            try:
                return words.get(timeout=BEAT_S)
            except queue.Empty:
                tick()
                if self._reason is not None:
                    raise RanksLostError(self._reason) from None

    def _read(self, at: int, channel: Channel) -> None:
        name = self._place.name(at + 1)
        try:
            while True:
                kind, content = channel.receive()
                self._heard_at[at] = time.monotonic()
                if kind == "done":
                    num_done, self.shares[at], self.active_bytes[at] = content
                    if num_done != self.num_done[at]:
                        self.num_done[at], self._changed_at[at] = num_done, time.monotonic()
                elif kind == "lost":
                    self.lose(f"{name} cannot go on: {content}")
                else:
                    self._words[at].put(content)
        except (OSError, EOFError, ValueError) as fault:
            self.lose(f"{name} has died or left: {fault}")

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._is_over.wait(BEAT_S):
            now = time.monotonic()
            if now - last > self._stall_s:
                # This process was stopped itself, and has not heard the others meanwhile.
                self._heard_at = [now for _ in self.channels]
                self._changed_at = [now for _ in self.channels]
            last = now
            for at, channel in enumerate(self.channels):
                name = self._place.name(at + 1)
                if self.num_done[at] == self.num_sent:
                    self._changed_at[at] = now
                if now - self._heard_at[at] > self._stall_s:
                    self.lose(
                        f"{name} has not been heard for {self._stall_s:g} seconds: it is stopped or cut off"
                    )
                elif now - self._changed_at[at] > self._stall_s:
                    self.lose(f"{name} has made no progress for {self._stall_s:g} seconds")
                try:
                    channel.send("beat")
                except OSError as fault:
                    self.lose(f"{name} has died or left: {fault}")


log = logging.getLogger("reprise.engine")

RETRY_S = 0.1
TICK_S = 0.5
FIRST_WORD_S = 10.0
"""Seconds for a new connection to identify itself."""

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
                refused = f"{missing} did not join within {timeout_s:g} seconds"
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
    refuse_all(channels, refused)
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
                    f"{place.name(0)} did not answer within {timeout_s:g} seconds: {fault}"
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


def share_token(*, is_ours: bool) -> str:
    """Share a random secret through MLX's group, and return it: who knows it is a rank.

    is_ours: whether this is rank 0, which makes the secret.
    """
    token = secrets.token_bytes(TOKEN_BYTES) if is_ours else bytes(TOKEN_BYTES)
    summed = np.array(mx.distributed.all_sum(mx.array(np.frombuffer(token, np.uint8).astype(np.int32))))
    return summed.astype(np.uint8).tobytes().hex()


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


def refuse_all(channels: Sequence[Channel], reason: str) -> None:
    """Tell the ranks at these connections why the model will not be served."""
    for channel in channels:
        try:
            channel.send({"refused": reason})
        except OSError:
            log.info("a rank left before it was told why")
