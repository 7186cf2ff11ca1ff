"""Read chats that a user wrote or a server recorded: JSON lines of chat requests."""

import json
from pathlib import Path
from typing import Any

from bench.workloads.chats import Chat, Turn
from server.errors import BadRequestError
from server.requests.chat import ChatRequest
from server.validation.field_errors import validate

READ = (
    "messages", "tools", "temperature", "max_tokens", "max_completion_tokens", "response_format",
)  # fmt: skip
"""The fields of a request that are read."""


def read_prompts(path: Path) -> list[Chat]:
    """Read JSON lines, each the body of a chat completion request or as `reprise serve --record` writes it.

    These fields are read, all but messages optional: messages, tools, temperature (default here: 0),
    max_tokens or max_completion_tokens, response_format with a JSON schema, and "output", the text of the
    right answer. If the last message is the assistant's, it is the right answer. A line with a text "prompt"
    and no messages is sent without a chat template. A line whose messages begin with all messages of an
    earlier line is the next turn of that line's chat. A line of Spec-Bench's questions, with "turns" and a
    "category", is a chat of its first turn, and the category its workload.

    Raises OSError if the file cannot be read, ValueError with file and line number if a line is invalid.
    """
    chats: list[list[Turn]] = []
    categories: list[Chat] = []
    continuable: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            parsed = json.loads(line)
            if isinstance(parsed, dict) and isinstance(parsed.get("turns"), list) and parsed["turns"]:
                # Later turns would need the model's own answers.
                turn = _turn({"messages": [{"role": "user", "content": parsed["turns"][0]}]})
                categories.append(Chat(str(parsed.get("category") or path.stem), (turn,)))
                continue
            turn = _turn(parsed)
        except RecursionError:
            raise ValueError(f"{path}: line {number} is nested too deep") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as fault:
            raise ValueError(f"{path}: line {number} is not JSON: {fault}") from None
        except ValueError as fault:
            raise ValueError(f"{path}: line {number} is not a chat: {fault}") from None
        messages = tuple(json.dumps(message, sort_keys=True) for message in turn.messages)
        prefixes = (messages[:count] for count in range(len(messages) - 1, 0, -1))
        at = next((continuable.pop(one) for one in prefixes if one in continuable), None)
        if at is None:
            at = len(chats)
            chats.append([])
        chats[at].append(turn)
        if messages:
            continuable[messages] = at
    if not chats and not categories:
        raise ValueError(f"{path}: the file contains no chats")
    return [*(Chat(path.stem, tuple(turns)) for turns in chats), *categories]


def _turn(line: object) -> Turn:
    """Make the turn of a line. Raises ValueError."""
    if not isinstance(line, dict):
        raise ValueError('expected an object with a list "messages"')
    reference = line.get("output")
    if not isinstance(reference, str | None):
        raise ValueError("output is not text")
    if "messages" not in line:
        return _plain(line, reference)
    if not isinstance(line["messages"], list):
        raise ValueError('expected an object with a list "messages"')
    try:
        body = validate({name: line[name] for name in READ if name in line}, ChatRequest)
    except BadRequestError as fault:
        raise ValueError(fault.message) from None
    messages = tuple(line["messages"])
    if body.messages[-1].role == "assistant":
        if len(messages) == 1:
            raise ValueError("it contains an answer but no request")
        *_, last = body.messages
        messages, reference = messages[:-1], last.content if reference is None else reference
    return Turn(
        messages, reference, tools=tuple(line.get("tools") or ()),
        temperature=body.temperature if line.get("temperature") is not None else 0.0,
        schema=_schema(line.get("response_format")), max_tokens=body.requested_max_tokens,
    )  # fmt: skip


def _plain(line: dict[str, Any], reference: str | None) -> Turn:
    prompt = line.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError('expected an object with a list "messages" or a text "prompt"')
    limit = line.get("max_tokens")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError("max_tokens is not a whole number above 0")
    temperature = line.get("temperature")
    if temperature is not None and (
        isinstance(temperature, bool) or not isinstance(temperature, int | float)
    ):
        raise ValueError("temperature is not a number")
    return Turn((), reference, temperature=float(temperature or 0), max_tokens=limit, text=prompt)


def _schema(form: dict[str, Any] | None) -> str | None:
    """Return the JSON schema of a valid response_format."""
    kind = (form or {}).get("type")
    if form is None or kind not in ("json_object", "json_schema"):
        return None
    schema = {"type": "object"} if kind == "json_object" else form["json_schema"].get("schema")
    return None if schema is None else json.dumps(schema)
