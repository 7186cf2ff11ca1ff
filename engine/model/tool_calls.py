"""Calls of tools, read from the text that a model wrote between its markers."""

import json
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Parse = Callable[[str, list[dict[str, Any]]], Any]
"""One of mlx-lm's parsers: takes the text between the markers and the tools; returns a call, or several.

A call is a dict with name and arguments, sometimes with id. What cannot be read raises almost anything.
"""


PARSE_TIMEOUT_S = 0.5
"""How long a call may take to read. Some parsers take minutes for a long text that is made for it."""

MAX_ABANDONED_PARSES = 4
"""Calls that may still be being read when nobody waits for them any more."""

_slots = threading.BoundedSemaphore(MAX_ABANDONED_PARSES)


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call that the model wrote. arguments: JSON text of an object. id: the model's own, if it has one."""

    name: str
    arguments: str
    id: str | None = None


def read_calls(parse: Parse, text: str, tools: list[dict[str, Any]]) -> list[WrittenCall]:
    """The calls in a text, in their order; none if any of it cannot be read.

    tools: the tools of the request in OpenAI's form; some parsers look up the types of parameters.
    """
    try:
        parsed = parse(text, tools)
        return [_call(call) for call in (parsed if isinstance(parsed, list) else [parsed])]
    # Parsers evaluate what the model wrote and are not made to fail well.
    except Exception:
        return []


def read_calls_with_timeout(
    parse: Parse, text: str, tools: list[dict[str, Any]], timeout_s: float = PARSE_TIMEOUT_S
) -> list[WrittenCall]:
    """As read_calls(); none either if it takes too long."""
    if not _slots.acquire(blocking=False):
        return []
    said: queue.SimpleQueue[list[WrittenCall]] = queue.SimpleQueue()

    def read() -> None:
        try:
            said.put(read_calls(parse, text, tools))
        finally:
            _slots.release()

    # Expressions let other threads run while they match; there is no way to stop one.
    threading.Thread(target=read, name="call", daemon=True).start()
    try:
        return said.get(timeout=timeout_s)
    except queue.Empty:
        return []


def _call(given: dict[str, Any]) -> WrittenCall:
    """Raises almost anything for what is no call."""
    name = given["name"]
    arguments = given.get("arguments", {})
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("no call")
    written = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    if _has_half_characters(written):
        written = json.dumps(arguments, allow_nan=False)
    own_id = given.get("id")
    own_id = own_id if isinstance(own_id, str) and own_id and not _has_half_characters(own_id) else None
    if _has_half_characters(name):
        raise ValueError("no name")
    return WrittenCall(name, written, own_id)


def _has_half_characters(text: str) -> bool:
    """Whether JSON escapes spelled half of a UTF-16 pair, which no encoding can send."""
    return any("\ud800" <= character <= "\udfff" for character in text)
