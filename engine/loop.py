"""The loop on the engine's thread: what came in since the last turn, then the next turn, until the end."""

import logging
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from engine.model.tokenizer import Tokenizer
from engine.request import Failed, GenerationRequest, SharedTableError, Sink
from engine.sampling.grammar import Grammars
from engine.sequence import Sequence
from engine.worker import Worker

log = logging.getLogger("reprise.engine")


@dataclass(frozen=True)
class Submit:
    """A request to queue."""

    request: GenerationRequest
    sink: Sink


@dataclass(frozen=True)
class Cancel:
    """A request to end."""

    request_id: str


@dataclass(frozen=True)
class Stop:
    """End the loop, after so many seconds at most."""

    drain_s: float


@dataclass(frozen=True)
class Call:
    """Something to do between two turns; its outcome goes where the caller waits for it."""

    action: Callable[[], Any]
    outcome: Future[Any]

    def perform(self) -> None:
        """Do it."""
        try:
            self.outcome.set_result(self.action())
        except Exception as fault:
            self.outcome.set_exception(fault)


Inbox = queue.SimpleQueue[Submit | Cancel | Stop | Call]
"""What other threads ask for, in their order."""

STOPPING = Failed("draining", "the server is stopping")


class Loop:
    """Runs a worker. Used by the thread that owns MLX alone."""

    def __init__(self, worker: Worker, inbox: Inbox, tokenizer: Tokenizer, grammars: Grammars) -> None:
        self._worker = worker
        self._inbox = inbox
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._deadline: float | None = None

    def run(self) -> None:
        """Go on until told to stop, and until what then runs has ended or has no more time."""
        worker = self._worker
        while self._deadline is None or (worker.has_work and time.perf_counter() < self._deadline):
            if not worker.has_work:
                mx.clear_cache()
            self._take_messages()
            worker.step()
        self.end_all(STOPPING)

    def end_all(self, failed: Failed) -> None:
        """Tell everyone who still waits, those in the inbox too."""
        for sequence in self._worker.live:
            sequence.fail(failed)
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Submit):
                message.sink(failed)
            elif isinstance(message, Call):
                message.outcome.set_exception(SharedTableError(failed.message))

    def _take_messages(self) -> None:
        """All that there are; without work wait for one that brings some, or for a stop."""
        while not self._worker.has_work or not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Submit):
                self._take(message)
            elif isinstance(message, Cancel):
                self._worker.cancel(message.request_id)
            elif isinstance(message, Call):
                message.perform()
            else:
                self._stop(message.drain_s)
            # An idle engine must not keep the last request alive.
            del message
            if self._deadline is not None:
                break

    def _take(self, submitted: Submit) -> None:
        try:
            sequence = Sequence.of(submitted.request, submitted.sink, self._tokenizer, self._grammars)
            self._worker.submit(sequence)
        except Exception as fault:
            log.error("request %s cannot be taken", submitted.request.id, exc_info=True)
            submitted.sink(Failed("request", f"the request cannot be taken: {fault}"))

    def _stop(self, drain_s: float) -> None:
        self._deadline = time.perf_counter() + drain_s
        for sequence in self._worker.request_queue.waiting:
            sequence.fail(STOPPING)
