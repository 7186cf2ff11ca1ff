"""Submit a request's sequences to the engine and carry their events to the event loop."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from starlette.types import Receive

from reprise.engine.interface.errors import EngineError
from reprise.engine.interface.events import Delta, Event, Failed, Finished, Usage
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.interface.spans import span
from reprise.server.errors import ClientGoneError, from_engine, from_failure
from reprise.server.generation.service import LeasedModel, disconnected
from reprise.server.logs import is_logging_prompts

SETTLE_S = 5.0
"""How long a cancelled request waits for its sequences to end: a step and a chunk if a step takes a second.
The log line lacks the usage of later ones."""


ChoiceEvent = tuple[int, Event]
"""(index of the choice, event)."""


class EventQueue:
    """Events of one HTTP request, in order of arrival. Use it on the event loop only."""

    def __init__(self, silence_s: float) -> None:
        """Create an empty queue.

        silence_s: receive() returns an empty list after this many seconds without an event.
        """
        self._loop = asyncio.get_running_loop()
        self._silence_s = silence_s
        self._events: list[ChoiceEvent] = []
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_received_s = self._loop.time()

    def put(self, event: ChoiceEvent) -> None:
        """Add an event."""
        self._events.append(event)
        self.wake()

    def wake(self) -> None:
        """Make a waiting receive() return, even without an event."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> list[ChoiceEvent]:
        """Wait for an event and return all that have arrived; none after silence_s, or after wake()."""
        if not self._events:
            self._waiter = self._loop.create_future()
            if self._timer is None:
                self._timer = self._loop.call_later(self._silence_s, self._check_silence)
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._last_received_s = self._loop.time()
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_silence(self) -> None:
        # The timer restarts itself for the time that is left: a new timer for each token costs too much.
        left_s = self._last_received_s + self._silence_s - self._loop.time()
        if left_s <= 0:
            self.wake()
            left_s = self._silence_s
        self._timer = self._loop.call_later(left_s, self._check_silence)


class ClientWatch:
    """Whether a request's client has disconnected. on_left: called on the event loop when it has."""

    def __init__(self, on_left: Callable[[], None]) -> None:
        self._left = asyncio.get_running_loop().create_future()
        self._on_left = on_left

    @property
    def has_left(self) -> bool:
        """Whether the client has disconnected."""
        return self._left.done()

    async def wait_for(self, task: asyncio.Future[Any], deadline: float | None) -> bool:
        """Wait for a task; return whether it is done. Raises ClientGoneError if the client has left.

        deadline: time.monotonic() at which to stop waiting.
        """
        timeout_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        await asyncio.wait({task, self._left}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self.has_left:
            raise ClientGoneError
        return task.done()

    @contextlib.asynccontextmanager
    async def watching(self, receive: Receive) -> AsyncIterator[None]:
        """Notice within this context when the client disconnects."""

        async def watch() -> None:
            await disconnected(receive)
            if not self.has_left:
                self._left.set_result(None)
            self._on_left()

        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()


class Submission:
    """The sequences of one HTTP request: submits them, receives their events, cancels those still running.

    engine_requests: one for each choice, by index. num_choices: choices of each prompt.
    grammar_param: the request's field with the grammar, if there is one.
    on_first: called on the event loop when the first token of any sequence has come.
    client: tells whether the client has disconnected; after that nothing waits for the sequences.
    ended: usage of the sequences that have ended, normally or not, by index.
    finished: the final events of the sequences that ended normally, by index.
    deltas: the deltas of each choice; a stream keeps them only if prompts are logged.
    """

    def __init__(
        self,
        leased: LeasedModel,
        engine_requests: Sequence[GenerationRequest],
        num_choices: int,
        grammar_param: str,
        on_first: Callable[[], None] | None = None,
    ) -> None:
        self.engine_requests = engine_requests
        self.num_choices = num_choices
        self._grammar_param = grammar_param
        self.ended: dict[int, Usage] = {}
        self.finished: dict[int, Finished] = {}
        self.deltas: list[list[Delta]] = [[] for _ in engine_requests]
        self._engine = leased.engine
        self._metrics = leased.app.metrics
        self._model = leased.name
        self._event_bridge = leased.app.event_bridge
        self._event_queue = EventQueue(leased.settings.keep_alive_s)
        self._num_submitted = 0
        self._failure: Failed | None = None
        self.client = ClientWatch(self._event_queue.wake)
        self._on_first = on_first

    @property
    def is_complete(self) -> bool:
        """Whether every sequence has ended normally."""
        return len(self.finished) == len(self.engine_requests)

    @property
    def has_failed(self) -> bool:
        """Whether a sequence failed before the client disconnected."""
        return self._failure is not None

    @span("submission")
    def start(self, is_streaming: bool) -> None:
        """Submit all sequences to the engine, or none. Raises ApiError if the engine refuses one.

        is_streaming: receive() returns the deltas as they arrive; otherwise they are collected in deltas.
        """
        try:
            for index, engine_request in enumerate(self.engine_requests):
                self._engine.submit(engine_request, partial(self._take, index, is_streaming))
                self._num_submitted += 1
        except Exception as fault:
            self._cancel()
            if isinstance(fault, EngineError):
                raise from_engine(fault) from fault
            raise

    async def receive(self) -> list[tuple[int, Delta | Finished]]:
        """Wait for an event and return all that have arrived; none after keep_alive_s without an event.

        Raises ApiError if a sequence failed, once all earlier events have been returned, and ClientGoneError
        if the client has disconnected.
        """
        events: list[tuple[int, Delta | Finished]] = []
        if self._failure is None and not self.client.has_left:
            events = await self._take_events()
        if self.client.has_left:
            raise ClientGoneError
        if self._failure is not None and not events:
            raise from_failure(self._failure, self._grammar_param)
        return events

    async def close(self) -> None:
        """Cancel the sequences that have not ended, and wait up to SETTLE_S for them to end."""
        self._cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while len(self.ended) < self._num_submitted:
                    await self._take_events()
        self._event_queue.close()

    def _cancel(self) -> None:
        for index, engine_request in enumerate(self.engine_requests[: self._num_submitted]):
            if index not in self.ended:
                self._engine.cancel(engine_request.id)

    async def _take_events(self) -> list[tuple[int, Delta | Finished]]:
        """Wait for events, note which sequences ended, and return the events up to the first failure."""
        events: list[tuple[int, Delta | Finished]] = []
        for index, event in await self._event_queue.receive():
            if not isinstance(event, Delta):
                self.ended[index] = event.usage
            if isinstance(event, Failed):
                self._failure = self._failure or event
            elif self._failure is None:
                events.append((index, event))
                if isinstance(event, Finished):
                    self.finished[index] = event
                elif is_logging_prompts():
                    self.deltas[index].append(event)
        return events

    def _take(self, index: int, is_streaming: bool, event: Event) -> None:
        """Post an event; collect a delta of a whole response, without waking the event loop for each token.

        Runs on the engine's thread.
        """
        if isinstance(event, Delta):
            self._note_first(event)
            if not is_streaming:
                self.deltas[index].append(event)
                return
        else:
            # In the metrics, once, even if its client has left.
            is_first = index % self.num_choices == 0
            self._metrics.count_sequence(event, is_first=is_first, model=self._model)
        self._event_bridge.post(self._event_queue.put, (index, event))

    def _note_first(self, delta: Delta) -> None:
        """Tell the event loop if this is the first token. Runs on the engine's thread."""
        if self._on_first is not None and not delta.is_prompt and delta.progress is None:
            on_first, self._on_first = self._on_first, None
            self._event_bridge.post(lambda _: on_first(), None)
