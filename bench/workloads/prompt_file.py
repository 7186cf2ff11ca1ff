"""Chats that a user wrote or a server recorded: JSON lines of chat requests."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.workloads.chats import Chat, Turn
from bench.workloads.making import WORKLOADS
from server.errors import BadRequestError
from server.requests.chat import ChatRequest
from server.validation.field_errors import validate

READ = (
    "messages",
    "tools",
    "temperature",
    "max_tokens",
    "max_completion_tokens",
    "response_format",
)
"""Fields of a request that matter here."""


def read_prompts(path: Path) -> list[Chat]:
    """Read JSON lines, each the body of a chat completion, or what `reprise serve --record` wrote.

    Of a line these fields are read, all but the messages optional: messages, tools, temperature (here 0 if
    it is missing), max_tokens or max_completion_tokens, and a response_format with a JSON schema; and
    "output", the text of a right answer. If the messages end with one of the assistant, that one is the right
    answer. A line with "prompt" as text and no messages is asked without a chat template. A line whose
    messages begin with all those of an earlier line is the next turn of that line's chat.

    Raises OSError if the file cannot be read, ValueError that names file and line if one cannot be
    understood.
    """
    chats: list[list[Turn]] = []
    going_on: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            turn = _turn(json.loads(line))
        except RecursionError:
            raise ValueError(f"{path}: line {number} is nested too deep") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as fault:
            raise ValueError(f"{path}: line {number} is no JSON: {fault}") from None
        except ValueError as fault:
            raise ValueError(f"{path}: line {number} is no chat: {fault}") from None
        said = tuple(json.dumps(message, sort_keys=True) for message in turn.messages)
        earlier = (said[:count] for count in range(len(said) - 1, 0, -1))
        at = next((going_on.pop(one) for one in earlier if one in going_on), None)
        if at is None:
            at = len(chats)
            chats.append([])
        chats[at].append(turn)
        if said:
            going_on[said] = at
    if not chats:
        raise ValueError(f"{path}: there are no chats in it")
    return [Chat(path.stem, tuple(turns)) for turns in chats]


def own_chats(path: Path | None, workloads: Sequence[str]) -> list[Chat] | None:
    """The chats in a user's file; without one None, and the names of workloads are checked.

    Raises OSError and ValueError, as read_prompts does, and ValueError for a workload that is unknown.
    """
    if path is not None:
        return read_prompts(path)
    for name in workloads:
        if name not in WORKLOADS:
            raise ValueError(f"--workloads: {name} is none of {', '.join(WORKLOADS)}")
    return None


def _turn(said: object) -> Turn:
    """Raises ValueError."""
    if not isinstance(said, dict):
        raise ValueError('an object with a list "messages" is wanted')
    reference = said.get("output")
    if not isinstance(reference, str | None):
        raise ValueError("output is no text")
    if "messages" not in said:
        return _plain(said, reference)
    if not isinstance(said["messages"], list):
        raise ValueError('an object with a list "messages" is wanted')
    try:
        body = validate({name: said[name] for name in READ if name in said}, ChatRequest)
    except BadRequestError as fault:
        raise ValueError(fault.message) from None
    messages = tuple(said["messages"])
    if body.messages[-1].role == "assistant":
        if len(messages) == 1:
            raise ValueError("there is an answer in it, and nothing that was asked")
        *_, last = body.messages
        messages, reference = messages[:-1], last.content if reference is None else reference
    return Turn(
        messages,
        reference,
        tools=tuple(said.get("tools") or ()),
        temperature=body.temperature if said.get("temperature") is not None else 0.0,
        schema=_schema(said.get("response_format")),
        max_tokens=body.requested_max_tokens,
    )


def _plain(said: dict[str, Any], reference: str | None) -> Turn:
    prompt = said.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError('an object with a list "messages" is wanted, or one with a text "prompt"')
    limit = said.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError("max_tokens is not a whole number above 0")
    temperature = said.get("temperature")
    if temperature is not None and (
        isinstance(temperature, bool) or not isinstance(temperature, int | float)
    ):
        raise ValueError("temperature is no number")
    return Turn((), reference, temperature=float(temperature or 0), max_tokens=limit, text=prompt)


def _schema(form: dict[str, Any] | None) -> str | None:
    """The JSON schema that a valid response_format asks for."""
    kind = (form or {}).get("type")
    if form is None or kind not in ("json_object", "json_schema"):
        return None
    schema = {"type": "object"} if kind == "json_object" else form["json_schema"].get("schema")
    return None if schema is None else json.dumps(schema)
