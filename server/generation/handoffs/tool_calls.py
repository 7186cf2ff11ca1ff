"""Parse tool calls off the event loop, with limits for each client.

A text made to exploit a parser keeps a process busy until it is killed. So each client has one parse at a
time, and they are served in rotation: whoever has such texts waits for them alone.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from engine.foreign.tool_calls import ParseLimitError, WrittenCall
from server.engine_protocol import EngineProtocol
from server.logs import LOGGER
from server.metrics.registry import Metrics

MAX_PARSES = 4
"""Maximum number of parses at once, and so of processes."""

ParseOutcome = Literal["parsed", "malformed", "limit", "queue_full"]


class QueueFullError(Exception):
    """Too many texts of one client wait to be parsed."""


class Slots:
    """Lets one job of each client run at a time, and at most num_slots in all, in rotation.

    max_waiting: maximum number of waiting jobs of one client. Use it on the event loop only.
    """

    def __init__(self, num_slots: int, max_waiting: int) -> None:
        self._num_slots = num_slots
        self._max_waiting = max_waiting
        self._running: set[str] = set()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def begin(self, client: str) -> None:
        """Wait for a slot; call end() after its job. Raises QueueFullError."""
        waiting = self._waiting.setdefault(client, deque())
        if len(waiting) >= self._max_waiting:
            raise QueueFullError
        slot = asyncio.get_running_loop().create_future()
        waiting.append(slot)
        self._grant()
        try:
            await slot
        except asyncio.CancelledError:
            if slot.cancelled():
                with contextlib.suppress(ValueError):
                    waiting.remove(slot)
                self._grant()
            else:
                self.end(client)
            raise

    def end(self, client: str) -> None:
        """Note that the client's job has ended. Its next job comes after one of every other client."""
        self._running.remove(client)
        if client in self._waiting:
            self._waiting[client] = self._waiting.pop(client)
        self._grant()

    def _grant(self) -> None:
        """Let jobs begin, in the order of clients."""
        for client, waiting in list(self._waiting.items()):
            # Its task has been cancelled, but did not run yet.
            while waiting and waiting[0].cancelled():
                waiting.popleft()
            if waiting and client not in self._running and len(self._running) < self._num_slots:
                self._running.add(client)
                waiting.popleft().set_result(None)
            if not waiting:
                del self._waiting[client]


class ToolCallParsing:
    """Parses the tool calls of all requests. Create it on the event loop.

    max_waiting: maximum number of a client's texts that wait to be parsed.
    """

    def __init__(self, engine: EngineProtocol, metrics: Metrics, max_waiting: int) -> None:
        self._engine = engine
        self._metrics = metrics
        self._slots = Slots(MAX_PARSES, max_waiting)
        self._threads = ThreadPoolExecutor(MAX_PARSES, thread_name_prefix="tool-calls")

    async def parse(self, client: str, request_id: str, text: str, tools: bytes) -> Sequence[WrittenCall]:
        """Parse a text between tool call markers, once the client has a slot.

        Returns no calls if it is malformed or cannot be parsed within the limits, which is logged.
        """
        start_s = time.perf_counter()
        calls: Sequence[WrittenCall] = ()
        outcome: ParseOutcome = "malformed"
        try:
            calls = await self._parse(client, text, tools)
            outcome = "parsed" if calls else "malformed"
        except (ParseLimitError, QueueFullError) as fault:
            outcome = "limit" if isinstance(fault, ParseLimitError) else "queue_full"
            reason = str(fault) or "too many others of this client are waiting"
            LOGGER.warning(
                "%s: a tool call of %d characters is sent as text: %s", request_id, len(text), reason
            )
        self._metrics.count_parse(outcome)
        self._metrics.count_wait("tool_calls", time.perf_counter() - start_s)
        return calls

    async def _parse(self, client: str, text: str, tools: bytes) -> Sequence[WrittenCall]:
        await self._slots.begin(client)
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._threads, self._engine.tokenizer.parse_calls, text, tools)
        # The slot is free after the process's work, even if the client leaves before that.
        job.add_done_callback(lambda _: self._slots.end(client))
        return await asyncio.shield(job)

    def close(self) -> None:
        """Drop the texts that wait. Those that are being parsed end within the parser's limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)
