"""Messages of other threads to a model's engine, in an inbox that wakes the thread that owns MLX."""

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from reprise.engine.interface.embeddings import EmbeddingRequest
from reprise.engine.interface.errors import SharedTableError
from reprise.engine.interface.events import EmbeddingSink, Failed, Sink
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.interface.stations import station

STOPPING = Failed("draining", "the server is stopping")


@dataclass(frozen=True)
class Submit:
    """Queue a request."""

    request: GenerationRequest
    sink: Sink


@dataclass(frozen=True)
class Embed:
    """Queue a request for embeddings, of an engine that makes them."""

    request: EmbeddingRequest
    sink: EmbeddingSink


@dataclass(frozen=True)
class Cancel:
    """End a request."""

    request_id: str


@dataclass(frozen=True)
class Stop:
    """End all waiting requests; running ones may finish while the engine drains."""


@dataclass(frozen=True)
class Call:
    """Call a function between two steps; its outcome goes to a future that the caller waits for."""

    action: Callable[[], Any]
    outcome: Future[Any]

    def perform(self) -> None:
        """Call the function and set the outcome."""
        try:
            self.outcome.set_result(self.action())
        except Exception as fault:
            self.outcome.set_exception(fault)


Message = Submit | Embed | Cancel | Stop | Call


class Inbox(queue.SimpleQueue[Message]):
    """Messages from other threads, in the order in which they were sent. wake: called after each."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._handled: Message | None = None

    def put(self, item: Message, block: bool = True, timeout: float | None = None) -> None:
        """Add a message, and wake the thread that owns MLX."""
        super().put(item, block, timeout)
        self._wake()

    @station("messages")
    def take_all(self, handle: Callable[[Message], None]) -> None:
        """Handle all messages, on the thread that owns MLX."""
        while not self.empty():
            # Kept until it is handled, so that refuse_all() finds it if that is what the thread dies of.
            self._handled = self.get()
            handle(self._handled)
            # While the loop waits, this would keep the last request alive.
            self._handled = None

    def refuse_all(self, failed: Failed) -> None:
        """Drop all messages, and send `failed` to the senders that wait for an outcome."""
        refused: list[Message] = [self._handled] if self._handled else []
        self._handled = None
        while not self.empty():
            refused.append(self.get())
        for message in refused:
            if isinstance(message, Submit | Embed):
                message.sink(failed)
            elif isinstance(message, Call):
                message.outcome.set_exception(SharedTableError(failed.message))
