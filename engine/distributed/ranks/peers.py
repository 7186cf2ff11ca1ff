"""The other ranks as rank 0 sees them: their connections, their answers, and whether they make progress."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from reprise.engine.distributed.ranks.channel import Channel
from reprise.engine.distributed.ranks.errors import RanksLostError
from reprise.engine.distributed.ranks.place import Place

BEAT_S = 0.5
"""Seconds between two signs of life, in both directions."""

Tick = Callable[[], None]
"""Called every BEAT_S seconds while something is waited for; what it raises ends the waiting."""


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

    def echo(self, rank: int) -> None:
        """Send a rank a message and wait for its echo, for the caller to time. Raises RanksLostError."""
        self.channels[rank - 1].send("echo")
        self._word(self._words[rank - 1])

    def end(self) -> None:
        """Tell all ranks that the work is over, so that they exit with 0."""
        self._is_over.set()
        for channel in self.channels:
            try:
                channel.send("end")
            except OSError:
                continue

    def refuse(self, reason: str) -> None:
        """Tell all ranks why there will be no work, so that they exit."""
        self._is_over.set()
        for channel in self.channels:
            try:
                channel.send({"refused": reason})
            except OSError:
                continue

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
