"""Chats of a user: a file of requests, one JSON object per line."""

import json
from pathlib import Path
from typing import Any

from bench.workloads.chats import Chat, Turn, user
from server.errors import BadRequestError
from server.requests.chat import ChatRequest
from server.validation.field_errors import validate

_PLAIN = ("temperature", "max_tokens")
_READ = (*_PLAIN, "messages", "tools", "max_completion_tokens", "response_format")


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
    chats: list[tuple[str, list[Turn]]] = []
    continuable: dict[tuple[str, ...], list[Turn]] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            given = json.loads(line)
            turn = _turn(given if isinstance(given, dict) else {})
        except RecursionError:
            raise ValueError(f"{path}: line {number} is nested too deep") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as fault:
            raise ValueError(f"{path}: line {number} is not JSON: {fault}") from None
        except ValueError as fault:
            raise ValueError(f"{path}: line {number} is not a chat: {fault}") from None
        messages = tuple(json.dumps(message, sort_keys=True) for message in turn.messages)
        prefixes = (messages[:count] for count in range(len(messages) - 1, 0, -1))
        turns = next((continuable.pop(one) for one in prefixes if one in continuable), [])
        if not turns:
            chats.append((str(given.get("category") or path.stem), turns))
        turns.append(turn)
        if messages:
            continuable[messages] = turns
    if not chats:
        raise ValueError(f"{path}: the file contains no chats")
    return [Chat(name, tuple(turns)) for name, turns in chats]


def _turn(given: dict[str, Any]) -> Turn:
    """Make the turn of a line. Raises ValueError."""
    known = {name: given[name] for name in _READ if given.get(name) is not None}
    reference = given.get("output")
    text: str | None = None
    if not isinstance(reference, str | None):
        raise ValueError("output is not text")
    match given:
        case {"messages": list()}:
            pass
        case {"turns": [str(question), *_]}:
            # Later turns would need the model's own answers.
            known["messages"] = [user(question)]
        case {"prompt": str(text)} if text and "messages" not in given:
            known = {name: known[name] for name in _PLAIN if name in known} | {"messages": [user(text)]}
        case _:
            raise ValueError('expected an object with a list "messages" or a text "prompt"')
    try:
        body = validate({"temperature": 0.0} | known, ChatRequest)
    except BadRequestError as fault:
        raise ValueError(fault.message) from None
    messages, last = tuple(known["messages"]), body.messages[-1]
    if last.role == "assistant":
        if len(messages) == 1:
            raise ValueError("it contains an answer but no request")
        messages, reference = messages[:-1], last.content if reference is None else reference
    grammar = body.requested_grammar
    return Turn(
        messages if text is None else (), reference, tools=tuple(known.get("tools", ())),
        temperature=body.temperature, schema=grammar[0].text if grammar else None,
        max_tokens=body.requested_max_tokens, text=text,
    )  # fmt: skip
