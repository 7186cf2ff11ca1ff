"""Parse tool calls from the text that a model wrote between its markers."""

import json
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Parse = Callable[[str, list[dict[str, Any]]], Any]
"""One of mlx-lm's parsers: takes the text between the markers and the tools; returns one call or a list.

A call is a dict with name and arguments, sometimes with id. Unparsable text raises almost any exception.
"""

PARSE_TIMEOUT_S = 0.5
"""Maximum time to parse a text. Some parsers take minutes on a long text made to exploit them."""

MAX_CONCURRENT_PARSES = 4
"""Maximum number of parses at once, including those that timed out but still run."""

_slots = threading.BoundedSemaphore(MAX_CONCURRENT_PARSES)


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call that the model wrote. arguments: a JSON object as text. id: the model's own, if any."""

    name: str
    arguments: str
    id: str | None = None


def read_calls(parse: Parse, text: str, tools: list[dict[str, Any]]) -> list[WrittenCall]:
    """Parse all calls in a text, in order; empty if any of it cannot be parsed.

    tools: the tools of the request in OpenAI's form; some parsers look up the types of parameters.
    """
    try:
        parsed = parse(text, tools)
        return [_call(call) for call in (parsed if isinstance(parsed, list) else [parsed])]
    # Parsers evaluate what the model wrote, and fail in many ways.
    except Exception:
        return []


def read_calls_with_timeout(
    parse: Parse, text: str, tools: list[dict[str, Any]], timeout_s: float = PARSE_TIMEOUT_S
) -> list[WrittenCall]:
    """Do the same as read_calls(); empty after timeout_s, or if MAX_CONCURRENT_PARSES are running."""
    if not _slots.acquire(blocking=False):
        return []
    results: queue.SimpleQueue[list[WrittenCall]] = queue.SimpleQueue()

    def read() -> None:
        try:
            results.put(read_calls(parse, text, tools))
        finally:
            _slots.release()

    # A regular expression cannot be stopped, but other threads run while it matches.
    threading.Thread(target=read, name="call", daemon=True).start()
    try:
        return results.get(timeout=timeout_s)
    except queue.Empty:
        return []


def _call(given: dict[str, Any]) -> WrittenCall:
    """Convert a parser's call. Raises almost any exception if it is not a valid call."""
    name = given["name"]
    arguments = given.get("arguments", {})
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        raise ValueError("not a tool call")
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    if _has_lone_surrogates(text):
        text = json.dumps(arguments, allow_nan=False)
    own_id = given.get("id")
    own_id = own_id if isinstance(own_id, str) and own_id and not _has_lone_surrogates(own_id) else None
    if _has_lone_surrogates(name):
        raise ValueError("not a valid name")
    return WrittenCall(name, text, own_id)


def _has_lone_surrogates(text: str) -> bool:
    """Return whether text has half of a UTF-16 pair (from a JSON escape), which UTF-8 cannot encode."""
    return any("\ud800" <= character <= "\udfff" for character in text)
