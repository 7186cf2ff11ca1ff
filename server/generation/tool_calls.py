"""Parse tool calls off the event loop, with limits for each client.

A text made to exploit a parser keeps a process busy until it is killed. So each client has one parse at a
time, and they are served in rotation: whoever has such texts waits for them alone.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

from reprise.engine.foreign.tool_calls import ParseLimitError, WrittenCall
from reprise.server.engine_types import ModelEngine
from reprise.server.executor import FairThreads
from reprise.server.logs import LOGGER
from reprise.server.metrics.registry import Metrics

MAX_PARSES = 4
"""Maximum number of parses at once, and so of processes."""

ParseOutcome = Literal["parsed", "malformed", "limit", "queue_full"]


class ToolCallParsing:
    """Parses the tool calls of all requests. Create it on the event loop.

    max_waiting: maximum number of a client's texts that wait to be parsed.
    """

    def __init__(self, engine: ModelEngine, metrics: Metrics, max_waiting: int) -> None:
        self._engine = engine
        self._metrics = metrics
        self._max_waiting = max_waiting
        self._lane = FairThreads("tool-calls", MAX_PARSES)

    async def parse(self, client: str, request_id: str, text: str, tools: bytes) -> Sequence[WrittenCall]:
        """Parse a text between tool call markers, once the client is next in rotation.

        Returns no calls if the text is malformed or takes more than the parser's limits, which is logged.
        """
        calls: Sequence[WrittenCall] = ()
        outcome: ParseOutcome = "queue_full"
        reason = "too many others of this client are waiting"
        if self._lane.num_waiting(client) < self._max_waiting:
            try:
                parse = partial(self._engine.tokenizer.parse_calls, text, tools)
                # Its turn lasts as long as the process's work, even if the client leaves before that.
                calls = await self._lane.run(client, parse)
                outcome, reason = ("parsed" if calls else "malformed"), ""
            except ParseLimitError as fault:
                outcome, reason = "limit", str(fault)
        if reason:
            LOGGER.warning(
                "%s: a tool call of %d characters is sent as text: %s", request_id, len(text), reason
            )
        self._metrics.count_parse(outcome)
        return calls

    def close(self) -> None:
        """Drop the texts that wait. A text that is being parsed ends within the parser's limits."""
        self._lane.close()
