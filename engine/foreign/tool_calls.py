"""Parse tool calls from the text that a model wrote between its markers.

Most of mlx-lm's parsers are regular expressions, and some take minutes on a long text made to exploit them.
So they run in processes that can be killed.
"""

import json
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

from reprise.engine.foreign.child_process import ChildError, ChildProcess, Limits

PARSE_LIMITS = Limits(cpu_s=0.5, wall_s=5.0, memory_bytes=512 * 2**20)
"""Limits for one text. CPU time, because a valid call must not fail where other processes are busy."""


class ParseLimitError(Exception):
    """A text took more time or memory to parse than PARSE_LIMITS allow."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call that the model wrote. arguments: a JSON object as text. id: the model's own, if any."""

    name: str
    arguments: str
    id: str | None = None


class ParserProcesses:
    """Parses tool calls in processes, as many as parse() has callers at the same time. Safe on any thread.

    No process starts before the first call. The caller limits how many calls there are at a time.
    """

    def __init__(self, limits: Limits = PARSE_LIMITS) -> None:
        self._limits = limits
        self._idle: deque[ChildProcess] = deque()

    def parse(self, call_format: str, text: str, tools: bytes) -> list[WrittenCall]:
        """Parse all calls in a text, in order; empty if any of it cannot be parsed. Blocks.

        call_format: mlx-lm's name for the format, such as json_tools.
        tools: the tools of the request in OpenAI's form, as a JSON array.
        Raises ParseLimitError; that affects no other text.
        """
        head = json.dumps({"format": call_format, "text": text}).encode()
        try:
            process = self._idle.pop()
        except IndexError:
            process = ChildProcess("tool_calls", self._library, self._limits)
        try:
            reply = process.call(head[:-1] + b', "tools": ' + tools + b"}")
        except ChildError as fault:
            raise ParseLimitError(str(fault)) from fault
        finally:
            self._idle.append(process)
        return [WrittenCall(**call) for call in reply["calls"]]

    @cached_property
    def _library(self) -> Path:
        spec = find_spec("mlx_lm")
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parent


PARSERS = ParserProcesses()
