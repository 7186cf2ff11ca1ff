"""The common part of all models' engines, whether they generate, embed or rank."""

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import mean
from time import perf_counter
from typing import Any, Literal, Protocol

from reprise.config.settings import Settings
from reprise.engine.interface.embeddings import Embedded, EmbeddingRequest
from reprise.engine.interface.errors import RETRY_AFTER_S, EngineError, SharedTableError
from reprise.engine.interface.events import EmbeddingSink, Failed, Finished, Sink
from reprise.engine.interface.models import ModelInfo, StartProgress
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.interface.spans import span
from reprise.engine.interface.status import EngineCounts, EngineStatus
from reprise.engine.memory.budget import Holder
from reprise.engine.text.tokenizer import Tokenizer

NUM_KEPT = 64
"""Number of recent answers that count."""
MIN_WAIT_S = 1.0
"""Seconds to which the wait is rounded up: a client that asks more often gains nothing."""
MAX_WAIT_S = 60.0
"""A longer wait would be a guess, and OpenAI's clients ignore longer ones."""


class AnswerTimes:
    """The seconds that recent answers took from admission to end. Idle time does not count."""

    def __init__(self) -> None:
        self._taken_s: deque[float] = deque(maxlen=NUM_KEPT)
        self._changed_at: float | None = None

    def begin(self) -> None:
        """Note that a request came while no other ran."""
        self._changed_at = perf_counter()

    def end(self, taken_s: float | None, is_last: bool) -> None:
        """Note a request's end, after taken_s; None if it was not answered. is_last: whether none is left."""
        self._changed_at = None if is_last else perf_counter()
        if taken_s is not None:
            self._taken_s.append(taken_s)

    def wait_s(self) -> float:
        """Estimate the seconds until a running request ends: the mean of earlier ones.

        If no request has ended for longer than that, the estimate is that time.
        """
        usual_s = mean(self._taken_s) if self._taken_s else 0.0
        since_s = 0.0 if self._changed_at is None else perf_counter() - self._changed_at
        return min(MAX_WAIT_S, max(MIN_WAIT_S, usual_s, since_s))


log = logging.getLogger("reprise.engine")

State = Literal["loading", "ready", "draining", "dead"]


class Lifecycle:
    """Decides whether a request is accepted, and counts those that were.

    max_live: the most requests that may run or wait. num_live: those that do. num_ended: those that ended.
    fault: why the engine is dead.
    """

    def __init__(self, max_live: int) -> None:
        self.state: State = "loading"
        self.fault: str | None = None
        self.num_live = self.num_ended = 0
        self._max_live = max_live
        self._answer_times = AnswerTimes()
        self._drained_at: float | None = None
        self._lock = threading.Lock()

    def begin_ready(self) -> None:
        """Accept requests from now on, unless draining has begun."""
        with self._lock:
            if self.state == "loading":
                self.state = "ready"

    def begin_draining(self, drain_s: float) -> None:
        """Accept no more requests; running ones have drain_s seconds to finish."""
        with self._lock:
            if self.state != "dead":
                self.state = "draining"
            self._drained_at = perf_counter() + drain_s

    def die(self, fault: str) -> None:
        """Accept no more requests, because of an error."""
        with self._lock:
            self.state, self.fault = "dead", fault

    @property
    def is_dead(self) -> bool:
        """Whether an error has ended the engine."""
        return self.state == "dead"

    @property
    def is_out_of_time(self) -> bool:
        """Whether the time for draining is over."""
        return self._drained_at is not None and perf_counter() >= self._drained_at

    @contextmanager
    def accepting(self) -> Iterator[None]:
        """Count one more live request, which the caller puts into the inbox within this context.

        The state cannot change within it, so no request arrives after the inbox was read for the last time.
        Raises EngineError if the engine takes no requests or the queue is full.
        """
        with self._lock:
            if self.state == "dead":
                raise EngineError("engine_dead", f"the engine has stopped: {self.fault}")
            if self.state != "ready":
                raise EngineError("draining", "the server is not taking requests now", self._retry_after_s())
            if self.num_live >= self._max_live:
                told = f"{self.num_live} requests are running or waiting; try again later"
                raise EngineError("queue_full", told, self._answer_times.wait_s())
            if not self.num_live:
                self._answer_times.begin()
            self.num_live += 1
            yield

    @contextmanager
    def held(self) -> Iterator[State]:
        """Keep the state unchanged within this context; yields the state."""
        with self._lock:
            yield self.state

    def counting(self, request_id: str, sink: Callable[[Any], None]) -> Callable[[Any], None]:
        """Wrap an accepted request's sink in one that counts the request's end, and never raises."""

        def counted(event: Any) -> None:
            if isinstance(event, Finished | Failed | Embedded):
                taken_s = event.usage.total_s - event.usage.queue_s if isinstance(event, Finished) else None
                with self._lock:
                    self.num_live -= 1
                    self.num_ended += 1
                    self._answer_times.end(taken_s, is_last=not self.num_live)
            try:
                sink(event)
            # A sink must not raise; if it does, only its own request is affected.
            except Exception:
                log.error("the sink of request %s raised", request_id, exc_info=True)

        return counted

    def status(self, num_running: int) -> EngineStatus:
        """Return the engine's status for /health. num_running: requests that have been admitted."""
        with self._lock:
            num_waiting = max(0, self.num_live - num_running)
            return EngineStatus(self.state, num_running, num_waiting, self.fault, self._retry_after_s())

    def _retry_after_s(self) -> float:
        """Seconds until the running requests will have ended or, while draining, until the server is gone."""
        if self.state == "draining" and self._drained_at is not None:
            return max(RETRY_AFTER_S, self._drained_at - perf_counter())
        return self._answer_times.wait_s()


STOPPING = Failed("draining", "the server is stopping")


@dataclass(frozen=True)
class Submit:
    """Queue a request."""

    request: GenerationRequest
    sink: Sink


@dataclass(frozen=True)
class Embed:
    """Queue a request for embeddings."""

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
    """Call a function between two steps, and set a future to its outcome."""

    action: Callable[[], Any]
    outcome: Future[Any]

    def perform(self) -> None:
        """Call the function and set the outcome, unless Engine.abort() has set it meanwhile."""
        with suppress(InvalidStateError):
            try:
                self.outcome.set_result(self.action())
            except Exception as fault:
                self.outcome.set_exception(fault)

    def refuse(self, fault: str) -> None:
        """Set the outcome to an error, unless the call was performed meanwhile."""
        with suppress(InvalidStateError):
            self.outcome.set_exception(SharedTableError(fault))


@dataclass(frozen=True)
class Expect:
    """Read these prompts ahead, the first one first."""

    requests: Sequence[GenerationRequest]


Message = Submit | Embed | Cancel | Stop | Call | Expect


class Inbox:
    """Messages from other threads, in order. wake: called after each."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._messages: deque[Message] = deque()
        self._handled: Message | None = None

    @property
    def is_empty(self) -> bool:
        """Whether all messages have been taken."""
        return not self._messages

    def put(self, message: Message) -> None:
        """Add a message, and wake the thread that owns MLX."""
        self._messages.append(message)
        self._wake()

    @span("messages")
    def take_all(self, handle: Callable[[Message], None]) -> None:
        """Handle all messages, on the thread that owns MLX."""
        while message := self._take():
            # Kept until it is handled, for refuse_all(), if that is what the thread dies of.
            self._handled = message
            handle(message)
            self._handled = None

    def refuse_all(self, failed: Failed) -> None:
        """Drop all messages, and send `failed` to the senders that wait for an outcome. On any thread."""
        message, self._handled = self._handled, None
        while message := message or self._take():
            if isinstance(message, Submit | Embed):
                message.sink(failed)
            elif isinstance(message, Call):
                message.refuse(failed.message)
            message = None

    def _take(self) -> Message | None:
        try:
            return self._messages.popleft()
        # Not looked at before: another thread may take the last one, see Engine.abort().
        except IndexError:
            return None


IsOver = Callable[[], bool]
"""Returns whether the thread that owns MLX has other work than this model's next step."""


class ModelWorker(Protocol):
    """Computes the requests for a model, step by step."""

    @property
    def running(self) -> Sequence[Any]:
        """The requests that have been admitted. On any thread."""

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""

    @property
    def is_blocked(self) -> bool:
        """Whether requests wait for memory that other models hold."""

    @property
    def num_progressed(self) -> int:
        """A number that grows with every piece of progress on requests. On any thread."""


class ModelEngine(ABC):
    """Takes the requests for one model, and runs them when the loop says so.

    attached: objects that the engine's users keep with it, until it ends.
    worker: replaced at a load or an unload, or once all trials are done. on_remade: called after that, if the
        model stayed loaded.
    passes_on: whether another model runs next after each of this engine's steps.

    Any thread may call the methods before load(); the others are for the thread that owns MLX.
    """

    worker: ModelWorker
    passes_on = False

    def __init__(self, settings: Settings, inbox: Inbox) -> None:
        self.settings = settings
        self.inbox = inbox
        self.lifecycle = Lifecycle(settings.capacity)
        self.attached: dict[Any, Any] = {}
        self.on_remade: Callable[[], None] = lambda: None
        self._about: tuple[ModelInfo, Tokenizer] | None = None

    @property
    def info(self) -> ModelInfo:
        """The model, once it was loaded. Raises RuntimeError before that."""
        return self._require_loaded()[0]

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, once it was loaded. Raises RuntimeError before that."""
        return self._require_loaded()[1]

    def cancel(self, request_id: str) -> None:
        """End a request early; its sink gets Failed("cancelled"), unless it has ended or is unknown."""
        self.inbox.put(Cancel(request_id))

    def status(self) -> EngineStatus:
        """Return the engine's state and its number of live requests."""
        return self.lifecycle.status(len(self.worker.running))

    @abstractmethod
    def counts(self) -> EngineCounts:
        """Return the engine's counts since it started."""

    def prefix_status(self) -> dict[str, dict[str, int]]:
        """Return the prefix caches' counts, by "target" and "draft" and the names of PrefixStatus."""
        return {}

    def begin_stop(self, drain_s: float) -> None:
        """Refuse new requests, and give running ones drain_s seconds to finish.

        Requests that wait for a row, and those that do not finish in time, get Failed("draining").
        """
        self.lifecycle.begin_draining(drain_s)
        self.inbox.put(Stop())

    @abstractmethod
    def load(self, on_progress: StartProgress) -> None:
        """Load the model. Requests that came before an unload() go on. Raises ModelError.

        on_progress: called with the name and the completed share of each slow stage; may raise.
        """

    @abstractmethod
    def unload(self) -> None:
        """Free the model. Requests that wait go on after the next load()."""

    @property
    @abstractmethod
    def memory_budget(self) -> Holder | None:
        """The memory that the engine holds; None while the model is not loaded."""

    @property
    def has_work(self) -> bool:
        """Whether run() would do anything."""
        return self.worker.has_work or not self.inbox.is_empty

    @property
    def is_blocked(self) -> bool:
        """Whether requests wait for memory that other models hold."""
        return self.worker.has_work and self.worker.is_blocked

    @property
    def is_running(self) -> bool:
        """Whether requests are being computed."""
        return self.worker.has_work and bool(self.worker.running) and not self.worker.is_blocked

    @property
    def is_done(self) -> bool:
        """Whether the engine has stopped, or died."""
        is_over = not self.has_work or self.lifecycle.is_out_of_time
        return self.lifecycle.is_dead or (self.lifecycle.state == "draining" and is_over)

    def run(self, is_over: IsOver) -> None:
        """Handle the waiting messages, and run steps while there is work; on an exception, die."""
        try:
            self.inbox.take_all(self._handle)
            worker, step = self.worker, self._step
            while worker.has_work:
                step()
                if is_over():
                    break
        # Whatever was raised, every live request must get its terminal event.
        except BaseException as fault:
            self.die(fault)

    @property
    @abstractmethod
    def _step(self) -> Callable[[], None]:
        """Advance the requests by one step."""

    @abstractmethod
    def _handle(self, message: Message) -> None:
        """Handle a message."""

    @abstractmethod
    def pause(self) -> None:
        """Wait for all steps in flight, before another model computes."""

    def read_next(self) -> bool:
        """Compute a part of a prompt that is expected; return whether more may be left."""
        return False

    def stop_reading(self) -> None:  # noqa: B027
        """Free what read_next() computes with, and keep what it computed."""

    def prepare(self, is_over: IsOver) -> bool:  # noqa: ARG002
        """Do a part of the work put off until idle; return whether more may be left.

        is_over: called within long parts; True ends them.
        """
        return False

    def end(self, failed: Failed) -> None:
        """End all requests and free the model. An exception meanwhile is logged: other models go on."""
        self.end_all(failed)
        try:
            self.unload()
        except Exception:
            log.error("while a model was unloaded", exc_info=True)

    def die(self, fault: BaseException) -> None:
        """End all requests as failed, because of an error that no single request caused."""
        log.critical("the engine's thread died", exc_info=fault)
        self.abandon(f"{type(fault).__name__}: {fault}")

    def abandon(self, fault: str) -> None:
        """End all requests as failed, because the thread that owns MLX has died."""
        self.lifecycle.die(fault)
        self.end_all(Failed("engine", f"the engine has stopped: {fault}"))

    @abstractmethod
    def end_all(self, failed: Failed) -> None:
        """Send every live request its terminal event, including those still in the inbox."""

    def _require_loaded(self) -> tuple[ModelInfo, Tokenizer]:
        if self._about is None:
            raise RuntimeError("the engine has not been started")
        return self._about
