"""The objects that all requests share, and the lease that each request takes on its model.

While a leased model is loaded, a stream of events reports the progress in comments, and a stream of JSON
lines, which has no comments, sends lines without text.
"""

import asyncio
import contextlib
import hashlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from fastapi import Request
from starlette.types import Receive

from reprise.config.model_settings import display_name
from reprise.config.settings import Settings
from reprise.engine.interface.embeddings import Purpose
from reprise.engine.interface.errors import RETRY_AFTER_S, EngineError, UnbrokenTextError
from reprise.engine.interface.models import ModelEntry, ModelUse
from reprise.engine.interface.spans import LoopSpan, SpanClock
from reprise.engine.sandbox.child_process import DOCUMENTS, ChildError
from reprise.server.errors import (
    BadRequestError,
    ClientGoneError,
    ForbiddenError,
    ModelNotFoundError,
    UnavailableError,
    from_engine,
    from_load,
    retry_after,
)
from reprise.server.generation.grammars import GrammarCompiler
from reprise.server.generation.recorder import Recorder
from reprise.server.http.executor import MODEL_FILES, Executor, client_of
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.http.while_loading import end_later, write_early
from reprise.server.logs import LOGGER
from reprise.server.metrics.loop_lag import NOT_HELD, LoopLag
from reprise.server.metrics.registry import Metrics
from reprise.server.output.presenter import LINES
from reprise.server.prompt.documents import DocumentReader, UnreadError
from reprise.server.prompt.images import ImageReader
from reprise.server.prompt.views import ViewMaker
from reprise.server.requests.generation_fields import KeepAlive, keep_alive_s

if TYPE_CHECKING:
    from reprise.engine.engine import Engine
    from reprise.engine.generating.generating_engine import GeneratingEngine

EventT = TypeVar("EventT")
ResultT = TypeVar("ResultT")
LIMIT_S = 60.0
"""Maximum time from a prompt's arrival until it is prepared."""
MAX_VIEW_BYTES = 16 << 20
"""Maximum bytes of a model's views that are cached for later turns: four million tokens."""
ANY_MODEL = "*"
"""The name in --served-model-name that stands for every name."""
QUIET_S = 0.25
"""Seconds for which a stream waits for its model without a word, so that an early error has its status."""
COMMENT_S = 1.0
"""Seconds between comments about the progress of a load."""


async def wait_unless_gone(
    future: asyncio.Future[Any], receive: Receive, timeout_s: float | None = None
) -> None:
    """Wait for a future, at most timeout_s seconds. Raises ClientGoneError if the client leaves first.

    The request's body must have been read before.
    """

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    left = asyncio.ensure_future(disconnected())
    try:
        either: set[asyncio.Future[Any]] = {future, left}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if left.done() and not future.done():
            raise ClientGoneError
    finally:
        left.cancel()


async def _in_time(request: Request, job: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Wait for a job on a thread, which ends if the client leaves or LIMIT_S passes."""
    running = asyncio.ensure_future(job)
    try:
        await wait_unless_gone(running, request.receive, LIMIT_S)
        if running.cancelled():
            raise from_engine(EngineError("draining", "The server is shutting down."))
        if running.done():
            return running.result()
        raise UnavailableError(
            f"The prompt was not encoded within {LIMIT_S:g} s. Try again later, or shorten it.",
            code="prompt_timeout",
            headers=retry_after(LIMIT_S),
        )
    finally:
        running.cancel()


class EventBridge:
    """Carries many small events from the engine's threads to the event loop.

    The threads share the interpreter lock, so time spent here per token is taken from the engine. So at most
    one wake-up of the event loop is pending at a time for all streams. It delivers all events that have
    arrived by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[tuple[Callable[[Any], object], Any]] = deque()
        self._is_wake_scheduled = False

    def post(self, put: Callable[[EventT], object], event: EventT) -> None:
        """Call put(event) on the event loop. Callable from any thread; neither blocks nor raises."""
        self._posted.append((put, event))
        if not self._is_wake_scheduled:
            self._is_wake_scheduled = True
            # A closed loop raises RuntimeError; then no request waits for the event anymore.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Reset the flag first: an event posted after the last check below must schedule another wake.
        self._is_wake_scheduled = False
        while self._posted:
            put, event = self._posted.popleft()
            put(event)


class Service:
    """The shared objects of one app. Create it on the app's event loop.

    models: one or many. recorder: None if nothing is recorded.
    background: tasks whose work no answer waits for: they make views, and render the next prompts.
    num_pending: each client's jobs that prepare requests.
    """

    def __init__(
        self, models: "Engine", settings: Settings, metrics: Metrics, recorder: Recorder | None = None
    ) -> None:
        self.models = models
        self.settings = settings
        self.metrics = metrics
        self.recorder = recorder
        self.executor = Executor()
        self.documents = DocumentReader()
        self.background: set[asyncio.Task[None]] = set()
        self.num_pending: Counter[str] = Counter()
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self.event_bridge = EventBridge(self._loop)
        self._spans = SpanClock(get_args(LoopSpan))
        self._spans.start()
        self._loop_lag = LoopLag(self._loop, self._spans, metrics.observe_lag, self._note_hold)
        self.created = int(time.time())

    def leased(self, engine: "GeneratingEngine", name: str) -> "LeasedModel":
        """Return the LeasedModel of a loaded model, made for its first request."""
        known: LeasedModel | None = engine.attached.get(self)
        if known is None:
            settings = engine.settings if self.models.may_unload else self.settings
            known = engine.attached[self] = LeasedModel(self, engine, settings, name)
        return known

    def call_on_loop(self, action: Callable[[], None]) -> None:
        """Call a function on the event loop: now, or soon if this is another thread."""
        if threading.get_ident() == self._loop_thread:
            action()
        else:
            self._loop.call_soon_threadsafe(action)

    def _note_hold(self, span: str, late_s: float, own_s: float, where: str) -> None:
        """Count and log a time in which the event loop was held. See LoopLag."""
        self.metrics.count_hold(span, own_s)
        where = f", in {where}" if where else ""
        if span == NOT_HELD:
            message = "the event loop waited %.0f ms for the interpreter or the machine%s"
            LOGGER.debug(message, 1000 * late_s, where)
        else:
            message = "the event loop was held for %.0f ms in the span %s (%.0f ms of the processor)%s"
            LOGGER.warning(message, 1000 * late_s, span, 1000 * own_s, where)

    def close(self) -> None:
        """Stop the threads and the measurements. Called on the event loop."""
        self._loop_lag.stop()
        self._spans.stop()
        for task in self.background:
            task.cancel()
        self.executor.close()
        # Its thread would keep the process from ending.
        DOCUMENTS.interrupt()

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """The name of the model that the server started with, and its aliases, without duplicates."""
        names = dict.fromkeys((self.models.info.name, *self.settings.served_model_name))
        return tuple(name for name in names if name != ANY_MODEL)

    def check_ready(self) -> None:
        """Raise UnavailableError unless the engine accepts requests."""
        status = self.models.status()
        if status.state == "ready":
            return
        message, code = {
            "loading": ("The model is still loading.", "loading"),
            "draining": ("The server is shutting down.", "draining"),
            "stalled": (f"The engine has stalled: {status.fault}.", "engine_stalled"),
            "dead": (f"The engine has died: {status.fault}.", "engine_dead"),
        }[status.state]
        headers = None if status.state == "dead" else retry_after(status.retry_after_s)
        raise UnavailableError(message, code=code, headers=headers)


def service_of(request: Request) -> Service:
    """Return the service of the request's app."""
    service: Service = request.app.state.service
    return service


class LeasedModel:
    """A loaded model, with the objects that prepare its requests.

    app: the shared objects. settings: the model's. name: the name by which requests know the model.
    """

    def __init__(self, app: Service, engine: "GeneratingEngine", settings: Settings, name: str) -> None:
        self.app, self.engine, self.settings, self.name = app, engine, settings, name
        self.grammars = GrammarCompiler(engine)
        self.images = ImageReader(settings)
        self.view_maker = ViewMaker(engine, MAX_VIEW_BYTES)

    async def run_in_turn(self, request: Request, job: Callable[[], ResultT], more_bytes: int = 0) -> ResultT:
        """Run a job that prepares a request on a thread, clients in rotation.

        If it raises UnreadError, it runs again once its documents are read on a thread of their own.
        more_bytes: size of the job's input besides the body.
        Raises the job's exception, ClientGoneError if the client disconnects first, TooBusyError if too many
        of its jobs wait, and UnavailableError if the job takes longer than LIMIT_S, its process is killed, or
        the server stops.
        """
        client, num_pending = client_of(request), self.app.num_pending
        if num_pending[client] >= self.settings.capacity:
            raise from_engine(EngineError("queue_full", "Too many prompts are waiting; try again later."))
        num_pending[client] += 1
        num_bytes, executor = len(await request.body()) + more_bytes, self.app.executor
        try:
            while True:
                try:
                    return await _in_time(request, executor.run(client, num_bytes, job))
                except UnreadError as unread:
                    read = partial(self.app.documents.read, unread.documents)
                    await _in_time(request, executor.documents.run(client, read))
        except UnbrokenTextError as fault:
            raise BadRequestError(
                f"A text has more than {fault} characters without a place where this model's texts can be "
                "cut, such as a space between letters or a line break. Break it up, or shorten it.",
                code="unbroken_text",
            ) from None
        except ChildError as fault:
            raise UnavailableError(
                "A process that renders templates, decodes images or tries grammars ended, or had no time. "
                "Try again.",
                code="prompt_timeout",
                headers=retry_after(RETRY_AFTER_S),
            ) from fault
        finally:
            num_pending[client] -= 1
            # The counter keeps no client that has left.
            num_pending += Counter()

    @cached_property
    def fingerprint(self) -> str:
        """The system_fingerprint of responses, which identifies the weights and the kind of device.

        While it stays the same, a request with a seed gives the same output again.
        """
        info = self.engine.info
        known = (info.name, info.fingerprint, info.num_parameters, info.dtype, info.device)
        return "fp_" + hashlib.sha256(repr(known).encode()).hexdigest()[:12]


def resolve(service: Service, requested: str | None, purpose: Purpose | None = None) -> str:
    """Resolve a requested name: aliases give the first model's name, None gives the default model's.

    The name may be unknown. purpose: decides which model is the default; None for generating.
    """
    if requested is None:
        return _default_name(service, purpose)
    is_alias = requested in service.settings.served_model_name
    return service.models.first_name if is_alias else requested


def _default_name(service: Service, purpose: Purpose | None) -> str:
    settings = service.settings
    source = {"embed": settings.embedding_model, "rerank": settings.rerank_model}.get(purpose or "generate")
    return display_name(source) if source else service.models.first_name


async def find_entry(service: Service, name: str, purpose: Purpose | None = None) -> ModelEntry:
    """Return a model's entry, or that of the model that serves unknown names.

    name: see resolve(). purpose: decides which model is the default; None for generating.
    Raises ModelNotFoundError.
    """
    entry = await MODEL_FILES.run(service.models.find, name)
    if entry is None and ANY_MODEL in service.settings.served_model_name:
        entry = await MODEL_FILES.run(service.models.find, _default_name(service, purpose))
    if entry is None:
        raise ModelNotFoundError(name, () if service.models.may_unload else service.model_names)
    return entry


async def find_loadable(service: Service, name: str, purpose: Purpose | None = None) -> str:
    """Return the name of a model that requests may use.

    name: see resolve(). purpose: what the model must be for; None for anything.
    Raises ModelNotFoundError, ForbiddenError or BadRequestError.
    """
    entry, settings = await find_entry(service, name, purpose), service.settings
    _check_purpose(entry.name, entry.purpose, purpose)
    may_load = settings.allow_load or entry.name == settings.model_name or entry.name in settings.beside
    if entry.state == "unloaded" and not may_load:
        raise ForbiddenError(
            f"The model '{entry.name}' is not loaded, and this server loads none for requests. Start it with "
            "--allow-load to allow it.",
            code="loading_not_allowed",
            param="model",
        )
    return entry.name


_WHAT: dict[Purpose, str] = {
    "generate": "generates text",
    "embed": "makes embeddings",
    "rerank": "ranks documents",
}
_WAYS_OUT: dict[Purpose, str] = {
    "generate": "Ask for a model that generates text; GET /v1/models lists what there is.",
    "embed": "Ask for a model that makes embeddings (GET /v1/models), or start the server with "
    "--embedding-model.",
    "rerank": "Ask for a model that ranks (GET /v1/models), or start the server with --rerank-model.",
}


def _check_purpose(name: str, purpose: Purpose, wanted: Purpose | None) -> None:
    """Raise BadRequestError for a model that is for something else."""
    if wanted not in (None, purpose):
        raise BadRequestError(
            f"The model '{name}' {_WHAT[purpose]}, and this endpoint is for a model that {_WHAT[wanted]}. "
            f"{_WAYS_OUT[wanted]}",
            param="model",
            code="wrong_kind_of_model",
        )


async def lease_model(
    request: Request,
    model: str | None,
    *,
    silence: bytes | None = None,
    keep_alive: KeepAlive = None,
    purpose: Purpose | None = "generate",
) -> LeasedModel:
    """Lease the named model, which stays loaded until the response has been sent.

    model: None is the model that the server started with.
    silence: what a stream sends while its model loads; b"" for comments. None if the response is not
        streamed.
    keep_alive: how long to keep the model loaded after the request.
    purpose: what the model must be for; None for anything.
    Raises ApiError if the model does not exist or cannot be loaded.
    """
    service = service_of(request)
    service.check_ready()
    models, keep_s = service.models, None
    if models.may_unload:
        keep_s = keep_alive_s(keep_alive)
    else:
        # There is only one model, whatever the name.
        _check_purpose(models.first_name, models.info.purpose, purpose)
        if keep_alive is not None:
            note_ignored(request, ["keep_alive"])
    name = resolve(service, model, purpose)
    if (use := models.use_loaded(name)) is None:
        name = await find_loadable(service, name, purpose)
        use = models.use_loaded(name) or await _load(request, service, name, silence)
    use.keep_s = keep_s
    end_later(request, use.end)
    _check_purpose(name, use.engine.info.purpose, purpose)
    if models.may_unload:
        record_of(request).model = name
    return service.leased(use.engine, name)


async def lease_for(request: Request, body: Any, purpose: Purpose | None = "generate") -> LeasedModel:
    """Lease the model that a body names. See lease_model()."""
    return await lease_model(
        request,
        body.model,
        silence=b"" if getattr(body, "stream", False) else None,
        keep_alive=getattr(body, "keep_alive", None),
        purpose=purpose,
    )


LOAD_TIMEOUT_S = 300.0
"""Seconds that a request waits for its model to be loaded: longer than large models take from slow disks."""


async def _load(request: Request, service: Service, name: str, silence: bytes | None) -> ModelUse:
    """Load a model. If the response will be a stream, report the progress there.

    Raises ApiError if the model cannot be loaded within LOAD_TIMEOUT_S, and ClientGoneError.
    """
    loop, limit_s = asyncio.get_running_loop(), LOAD_TIMEOUT_S
    acquiring = asyncio.ensure_future(MODEL_FILES.run(service.models.acquire, name))
    use: ModelUse | None = None
    try:
        # Shielded: the thread goes on, and what it acquires must be let go of.
        loading, until = asyncio.wrap_future(await asyncio.shield(acquiring)), loop.time() + limit_s
        await wait_unless_gone(
            loading, request.receive, limit_s if silence is None else min(QUIET_S, limit_s)
        )
        while silence is not None and not loading.done() and (left_s := until - loop.time()) > 0:
            kind = LINES if silence else "text/event-stream; charset=utf-8"
            await write_early(request, silence or _comment(service, name), kind)
            await wait_unless_gone(loading, request.receive, min(COMMENT_S, left_s))
        if not loading.done():
            raise TimeoutError(name)
        use = loading.result()
        return use
    except Exception as fault:
        raise from_load(fault) from fault
    finally:
        # A request that has left must not keep the model.
        if use is None:
            acquiring.add_done_callback(_let_go)


def _comment(service: Service, name: str) -> bytes:
    """Return a stream's comment about a model's loading progress."""
    entries = service.models.loaded_entries()
    progress = next((entry.progress for entry in entries if entry.name == name), None)
    what = "waiting for memory" if progress is None else f"{progress:.0%}"
    return f": loading {name}, {what}\n".encode()


def _let_go(acquired: "asyncio.Future[Future[ModelUse]]") -> None:
    """Cancel a load for a request, or end the request's use once the model is loaded."""
    if acquired.cancelled() or acquired.exception() is not None:
        return
    future = acquired.result()
    if not future.cancel():
        future.add_done_callback(_end_use)


def _end_use(future: "Future[ModelUse]") -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().end()
