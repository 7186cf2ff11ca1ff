"""The objects that all routes share, and those with which the requests for a model are prepared."""

import asyncio
import contextlib
import hashlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from fastapi import Request
from starlette.types import Receive

from reprise.config.settings import Settings
from reprise.engine.interface.errors import EngineError, UnbrokenTextError
from reprise.engine.interface.spans import LoopSpan, SpanClock
from reprise.server.errors import BadRequestError, ClientGoneError, UnavailableError, from_engine, retry_after
from reprise.server.generation.grammars import GrammarCompiler
from reprise.server.generation.recorder import Recorder
from reprise.server.http.executor import Executor, client_of
from reprise.server.logs import LOGGER
from reprise.server.metrics.loop_lag import NOT_HELD, LoopLag
from reprise.server.metrics.registry import Metrics
from reprise.server.prompt.images import ImageReader
from reprise.server.prompt.views import PromptViews

if TYPE_CHECKING:
    from reprise.engine.engine import Engine
    from reprise.engine.generating.generating_engine import GeneratingEngine

EventT = TypeVar("EventT")
ResultT = TypeVar("ResultT")
LIMIT_S = 60.0
"""Maximum time from a prompt's arrival until it is prepared."""
ANY_MODEL = "*"
"""The name in --served-model-name that stands for every name."""


async def disconnected(receive: Receive) -> None:
    """Wait until the client has disconnected. The request's body must have been read before."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def wait_unless_gone(
    future: asyncio.Future[Any], receive: Receive, timeout_s: float | None = None
) -> None:
    """Wait for a future, at most timeout_s seconds. Raises ClientGoneError if the client leaves first."""
    left = asyncio.ensure_future(disconnected(receive))
    try:
        either: set[asyncio.Future[Any]] = {future, left}
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if left.done() and not future.done():
            raise ClientGoneError
    finally:
        left.cancel()


class EventBridge:
    """Carries many small events from the engine's threads to the event loop.

    The threads share the interpreter lock, so time spent here per token is taken from the engine. Therefore
    at most one wake-up of the event loop is pending at any time, for all streams together. It delivers all
    events that have arrived by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._is_wake_scheduled = False

    def post(self, put: Callable[[EventT], None], event: EventT) -> None:
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

    models: one model or many. recorder: None if nothing is recorded.
    making_views: the tasks that are making views of conversations.
    num_pending: the jobs of each client that prepare requests.
    """

    def __init__(
        self, models: "Engine", settings: Settings, metrics: Metrics, recorder: Recorder | None = None
    ) -> None:
        self.models = models
        self.settings = settings
        self.metrics = metrics
        self.recorder = recorder
        self.executor = Executor()
        self.making_views: set[asyncio.Task[None]] = set()
        self.num_pending: Counter[str] = Counter()
        self._loop, self._loop_thread = asyncio.get_running_loop(), threading.get_ident()
        self.event_bridge = EventBridge(self._loop)
        self._spans = SpanClock(get_args(LoopSpan))
        self._spans.start()
        self._loop_lag = LoopLag(self._loop, self._spans, metrics.observe_lag, self._note_hold)
        self.created = int(time.time())

    def leased(self, engine: "GeneratingEngine", name: str) -> "LeasedModel":
        """Return what the requests for a loaded model are prepared with, made at the first one."""
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
        """Count a time in which the event loop served nobody, and say so in the log. See LoopLag."""
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
        for task in self.making_views:
            task.cancel()
        self.executor.close()

    @cached_property
    def model_names(self) -> tuple[str, ...]:
        """The name of the model that the server started with, and its aliases, without duplicates."""
        names = dict.fromkeys((self.models.info.name, *self.settings.served_model_name))
        return tuple(name for name in names if name != ANY_MODEL)

    def check_ready(self) -> None:
        """Raise UnavailableError unless the engine accepts requests."""
        status = self.models.status()
        headers = retry_after(status.retry_after_s)
        match status.state:
            case "loading":
                raise UnavailableError("The model is still loading.", code="loading", headers=headers)
            case "draining":
                raise UnavailableError("The server is shutting down.", code="draining", headers=headers)
            case "stalled":
                message = f"The engine has stalled: {status.fault}."
                raise UnavailableError(message, code="engine_stalled", headers=headers)
            case "dead":
                raise UnavailableError(f"The engine has died: {status.fault}.", code="engine_dead")


class LeasedModel:
    """A loaded model, and what the requests for it are prepared with.

    app: the shared objects. settings: the model's. name: the name by which requests know the model.
    """

    def __init__(self, app: Service, engine: "GeneratingEngine", settings: Settings, name: str) -> None:
        self.app, self.engine, self.settings, self.name = app, engine, settings, name
        self.grammars = GrammarCompiler(engine)
        self.images = ImageReader(settings)
        self.views = PromptViews(
            engine, app.executor, app.making_views, settings.capacity, settings.draft_type
        )

    async def run_in_turn(self, request: Request, job: Callable[[], ResultT], more_bytes: int = 0) -> ResultT:
        """Run a job that makes something of a request on a thread, when its client is next.

        more_bytes: of what the job is about, besides the body.
        Raises the job's exception, ClientGoneError if the client disconnects first, TooBusyError if too many
        of its jobs wait, and UnavailableError if the job takes longer than LIMIT_S or the server stops.
        """
        client, num_pending = client_of(request), self.app.num_pending
        if num_pending[client] >= self.settings.capacity:
            raise from_engine(EngineError("queue_full", "Too many prompts are waiting; try again later."))
        num_pending[client] += 1
        num_bytes = len(await request.body()) + more_bytes
        running = asyncio.ensure_future(self.app.executor.run(client, num_bytes, job))
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
        except UnbrokenTextError as fault:
            raise BadRequestError(
                f"A text has more than {fault} characters without a place where this model's texts can be "
                "cut, such as a space between letters or a line break. Break it up, or shorten it.",
                code="unbroken_text",
            ) from None
        finally:
            running.cancel()
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


def service_of(request: Request) -> Service:
    """Return the service of the request's app."""
    service: Service = request.app.state.service
    return service
