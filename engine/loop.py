"""The loop on the engine's thread: take other threads' messages, run a step, and repeat until stopped."""

import logging
import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.interface.embeddings import EmbeddingRequest
from engine.interface.errors import SharedTableError
from engine.interface.events import EmbeddingSink, Failed, Sink
from engine.interface.request import GenerationRequest
from engine.lifecycle import Lifecycle
from engine.parked import ParkedWorker
from engine.sampling.grammar import Grammars
from engine.sequence.sequence import Sequence
from engine.stations import station
from engine.text.tokenizer import Tokenizer
from engine.worker import Worker

log = logging.getLogger("reprise.engine")


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
    """End the loop once the running requests have ended, or the time for draining is over."""


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

Inbox = queue.SimpleQueue[Message]
"""Messages from other threads, in the order in which they were sent."""


class WakingInbox(Inbox):
    """One of the inboxes of a thread that waits for all of them at once. wake: called for each message."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def put(self, item: Message, block: bool = True, timeout: float | None = None) -> None:
        """Add a message."""
        super().put(item, block, timeout)
        self._wake()


CALM_S = 0.5
"""Seconds without work after which the vocabulary for grammars is made and the costs of steps are measured. A
request may wait for one part of that."""

STOPPING = Failed("draining", "the server is stopping")


class Loop:
    """Runs a worker. Used only by the thread that owns MLX.

    worker: a ParkedWorker while the model's weights are not in memory.
    lifecycle: knows how long draining may take.
    """

    def __init__(
        self,
        worker: Worker | ParkedWorker,
        inbox: Inbox,
        lifecycle: Lifecycle,
        tokenizer: Tokenizer,
        grammars: Grammars,
    ) -> None:
        self.worker = worker
        self._inbox = inbox
        self._lifecycle = lifecycle
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._is_stopping = False
        self._has_idle_work = True
        self._message: Message | None = None

    def run(self) -> None:
        """Run steps until a Stop arrives, then drain: until all running requests have ended or time is up."""
        while not self.is_done:
            if not self.worker.has_work:
                mx.clear_cache()
            self._take_messages()
            self.worker.step()
        self.end_all(STOPPING)

    @property
    def is_done(self) -> bool:
        """Whether a Stop arrived, and all running requests have ended or time is up."""
        return self._is_stopping and not (self.worker.has_work and not self._lifecycle.is_out_of_time)

    @property
    def has_work(self) -> bool:
        """Whether turn() would do anything."""
        return self.worker.has_work or not self._inbox.empty()

    def turn(self) -> None:
        """Take all messages in the inbox, and run a step, on a thread that has several loops."""
        while not self._inbox.empty():
            self._take_message()
        self.worker.step()

    def prepare(self) -> bool:
        """Do a part of what can be done in advance; returns whether there may be more."""
        self._has_idle_work = self._prepare_grammars() or self.worker.measure_costs()
        return self._has_idle_work

    def end_all(self, failed: Failed) -> None:
        """Send every live request its terminal event, including those still in the inbox."""
        for sequence in self.worker.live:
            sequence.fail(failed)
        if self._message is not None:
            _refuse(self._message, failed)
        refuse_all(self._inbox, failed)

    @station("messages")
    def _take_messages(self) -> None:
        """Take all messages in the inbox; while there is no work, wait for a message that brings some."""
        while not self.worker.has_work or not self._inbox.empty():
            self._take_message()
            if self._is_stopping:
                break

    def _take_message(self) -> None:
        # Kept until it is handled, so that end_all() finds it if that is what the thread dies of.
        self._message = self._next_message()
        self._handle(self._message)
        # While the loop waits, this would keep the last request alive.
        self._message = None

    def _next_message(self) -> Message:
        """Wait for a message. Once it is calm, do meanwhile what can be done in advance, a part at a time."""
        if self._has_idle_work and not self.worker.has_work:
            try:
                with station("idle"):
                    return self._inbox.get(timeout=CALM_S)
            except queue.Empty:
                while self._inbox.empty() and self._has_idle_work:
                    self.prepare()
        with station("idle"):
            return self._inbox.get()

    @station("grammars")
    def _prepare_grammars(self) -> bool:
        return self._grammars.prepare()

    def _handle(self, message: Message) -> None:
        if isinstance(message, Submit):
            self._submit(message)
        elif isinstance(message, Cancel):
            self.worker.cancel(message.request_id)
        elif isinstance(message, Call):
            message.perform()
        else:
            self._stop()

    def _submit(self, submitted: Submit) -> None:
        try:
            self._grammars.plain_s = self.worker.plain_s
            sequence = Sequence.of(submitted.request, submitted.sink, self._tokenizer, self._grammars)
            self.worker.submit(sequence)
        except Exception as fault:
            log.error("request %s cannot be queued", submitted.request.id, exc_info=True)
            submitted.sink(Failed("request", f"the request cannot be queued: {fault}"))

    def _stop(self) -> None:
        self._is_stopping = True
        for sequence in self.worker.queue.waiting:
            sequence.fail(STOPPING)


def refuse_all(inbox: Inbox, failed: Failed) -> None:
    """Tell the senders of all messages in the inbox that they will not be handled."""
    while not inbox.empty():
        _refuse(inbox.get(), failed)


def _refuse(message: Message, failed: Failed) -> None:
    """Tell the sender of a message that was not handled, if it waits for an outcome."""
    if isinstance(message, Submit | Embed):
        message.sink(failed)
    elif isinstance(message, Call):
        message.outcome.set_exception(SharedTableError(failed.message))
