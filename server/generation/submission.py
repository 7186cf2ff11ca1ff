"""One HTTP request's sequences, from the engine's taking them to the last one's end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial

from starlette.types import Receive

from engine.request import Delta, EngineError, Event, Failed, Finished, GenerationRequest, Usage
from server.errors import ClientGoneError, from_engine, from_failure
from server.generation.event_queue import EventQueue
from server.generation.service import Service
from server.logs import is_logging_prompts

SETTLE_S = 1.0
"""How long a cancelled request waits to hear how far it got; only its line in the log depends on it."""


class Submission:
    """What the engine was asked for, and what came of it.

    engine_requests: one for each choice, by index. num_choices: choices of each prompt.
    ended: usage of the sequences that came to an end, good or bad, by index.
    finished: the ends of those that came to a good one.
    deltas: text of each choice; of a stream only if prompts are logged.
    """

    def __init__(
        self, service: Service, engine_requests: Sequence[GenerationRequest], num_choices: int
    ) -> None:
        self.engine_requests = engine_requests
        self.num_choices = num_choices
        self.ended: dict[int, Usage] = {}
        self.finished: dict[int, Finished] = {}
        self.deltas: list[list[Delta]] = [[] for _ in engine_requests]
        self._engine = service.engine
        self._metrics = service.metrics
        self._event_bridge = service.event_bridge
        self._event_queue = EventQueue(service.settings.keep_alive_s)
        self._num_taken = 0
        self._failure: Failed | None = None
        self._has_client_left = False

    @property
    def is_complete(self) -> bool:
        """Whether every sequence came to a good end."""
        return len(self.finished) == len(self.engine_requests)

    @property
    def has_failed(self) -> bool:
        """Whether a sequence came to a bad end before the client had left."""
        return self._failure is not None

    def start(self, is_streaming: bool) -> None:
        """Hand all orders to the engine, or none. Raises ApiError if it does not take them.

        is_streaming: hear of every piece of text at once, in receive(); otherwise see deltas.
        """
        deliver = self._send if is_streaming else self._keep
        try:
            for index, order in enumerate(self.engine_requests):
                self._engine.submit(order, partial(deliver, index))
                self._num_taken += 1
        except Exception as fault:
            self._cancel()
            if isinstance(fault, EngineError):
                raise from_engine(fault) from fault
            raise

    async def receive(self) -> list[tuple[int, Delta | Finished]]:
        """Wait for events and return all there are; none after silence_s of silence.

        Raises ApiError when a sequence failed, after what came before that was returned, and
        ClientGoneError when the client has left.
        """
        events: list[tuple[int, Delta | Finished]] = []
        if self._failure is None and not self._has_client_left:
            events = await self._take()
        if self._has_client_left:
            raise ClientGoneError
        if self._failure is not None and not events:
            raise from_failure(self._failure)
        return events

    async def wait_until_complete(self) -> None:
        """Wait for all sequences to finish. Raises as receive() does."""
        while not self.is_complete:
            await self.receive()

    @contextlib.asynccontextmanager
    async def watching(self, receive: Receive) -> AsyncIterator[None]:
        """While inside, a client that leaves makes receive() raise ClientGoneError."""
        watch = asyncio.create_task(self._watch(receive))
        try:
            yield
        finally:
            watch.cancel()

    async def close(self) -> None:
        """Cancel what has not ended, and wait a moment for its end."""
        self._cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                while len(self.ended) < self._num_taken:
                    await self._take()
        self._event_queue.close()

    def _cancel(self) -> None:
        for index, order in enumerate(self.engine_requests[: self._num_taken]):
            if index not in self.ended:
                self._engine.cancel(order.id)

    async def _take(self) -> list[tuple[int, Delta | Finished]]:
        """Wait for events, note the ends, and return those up to the first failure."""
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

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._has_client_left = True
        self._event_queue.wake()

    def _send(self, index: int, event: Event) -> None:
        """Sink of a stream, on the engine's thread."""
        if not isinstance(event, Delta):
            self._count_end(index, event)
        self._event_bridge.post(self._event_queue, (index, event))

    def _keep(self, index: int, event: Event) -> None:
        """Sink of a whole answer, on the engine's thread: the loop need not hear of every token."""
        if isinstance(event, Delta):
            self.deltas[index].append(event)
        else:
            self._count_end(index, event)
            self._event_bridge.post(self._event_queue, (index, event))

    def _count_end(self, index: int, end: Finished | Failed) -> None:
        """Count a sequence in the metrics, on the engine's thread: its client may have left."""
        self._metrics.count_sequence(end, is_first=index % self.num_choices == 0)
