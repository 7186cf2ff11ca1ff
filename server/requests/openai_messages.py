"""Read a chat's messages, tools and tool_choice."""

from collections.abc import Iterable
from typing import Any

from reprise.server.errors import bad_field
from reprise.server.requests.messages import (
    Call,
    Json,
    Message,
    Role,
    arguments_of,
    as_string,
    check_answerable,
    check_size,
    note_unknown,
    parts_of,
    settle,
)
from reprise.server.requests.tools import ToolReader, read_choice
from reprise.server.validation.fields import Notes

ROLES: dict[Any, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "tool": "tool",
    "function": "tool",
}
"""The roles that are known. Any other is shown as the user's."""
OF_API = ("system", "developer", "user", "assistant", "tool")
ASSISTANT_ONLY = ("refusal", "reasoning_content", "reasoning", "tool_calls", "function_call")
_KNOWN = ("role", "content", "name", "tool_call_id", *ASSISTANT_ONLY)


def from_chats(messages: Iterable[Any], path: str, notes: Notes) -> list[Message]:
    """Translate the JSON messages of a chat to the normal form.

    path: the path of the messages' array in the request, for errors and notes.
    """
    made = []
    for index, given in enumerate(messages):
        check_message(given, f"{path}[{index}]")
        made.append(chat_message(given, f"{path}[{index}]", notes))
    return made


def check_message(given: Any, at: str) -> None:
    """Refuse what is no message, nor the text of one: a fault of the client, which an answer would hide.

    at: the message's path in the request. Raises BadRequestError.
    """
    if isinstance(given, str):
        return
    if not isinstance(given, dict):
        raise bad_field(at, "must be an object with a role and content", "invalid_type")
    if all(given.get(key) is None for key in _KNOWN):
        raise bad_field(at, "has neither a role nor content; send both", "missing_required_parameter")
    if not isinstance(given.get("role"), str | None):
        raise bad_field(f"{at}.role", "must be a string", "invalid_type")


def chat_message(given: Any, at: str, notes: Notes) -> Message:
    """Translate one JSON message of a chat; any other value becomes a user's message.

    at: the message's path in the request.
    """
    if not isinstance(given, dict):
        notes.as_text(at)
        return Message("user", tuple(parts_of(given, at, notes)), at=at)
    known = given.get("role") if isinstance(given.get("role"), str) else None
    role = ROLES.get(known, "user")
    if known not in OF_API:
        notes.understood(f"{at}.role", "must be 'system', 'developer', 'user', 'assistant' or 'tool'")
    note_unknown(given, _KNOWN, at, notes)
    name = given["name"] if isinstance(given.get("name"), str) else ""
    if role == "assistant":
        return _assistant_message(given, name, at, notes)
    for key in ASSISTANT_ONLY:
        if given.get(key) is not None:
            notes.left_out(f"{at}.{key}")
    if given.get("content") is None:
        notes.understood(f"{at}.content", "is missing")
    parts = tuple(parts_of(given.get("content"), f"{at}.content", notes))
    if role == "tool":
        return Message(role, parts, call_id=as_string(given.get("tool_call_id")) or name, at=at)
    if given.get("tool_call_id") is not None:
        notes.left_out(f"{at}.tool_call_id")
    return Message(role, parts, name=name, at=at)


def _assistant_message(given: Json, name: str, at: str, notes: Notes) -> Message:
    thought, content = apart(given.get("content"))
    if thought is not None:
        notes.understood(f"{at}.content")
    if content is None and not any(given.get(key) for key in ("tool_calls", "refusal", "function_call")):
        notes.understood(f"{at}.content", "is missing")
    parts = parts_of(given.get("refusal") if content is None else content, f"{at}.content", notes)
    reasonings = (given.get("reasoning_content"), given.get("reasoning"), thought)
    reasoning = next((one for one in reasonings if isinstance(one, str) and one), "")
    return Message("assistant", tuple(parts), reasoning, _calls(given, at, notes), name=name, at=at)


def apart(content: Any) -> tuple[str | None, Any]:
    """Split an assistant's content into its reasoning, None if it has no thinking parts, and the rest."""
    parts = content if isinstance(content, list) else []
    thoughts = [as_string(part["thinking"]) for part in parts if _is_thinking(part)]
    if not thoughts:
        return None, content
    return "".join(thoughts), [part for part in parts if not _is_thinking(part)]


def _is_thinking(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "thinking" and "thinking" in part


def _calls(given: Json, at: str, notes: Notes) -> tuple[Call, ...]:
    calls = given.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        notes.left_out(f"{at}.tool_calls")
    found = enumerate(calls if isinstance(calls, list) else ())
    made = [_call(one, f"{at}.tool_calls[{index}]", notes) for index, one in found]
    if isinstance(old := given.get("function_call"), dict):
        notes.understood(f"{at}.function_call")
        made.append(_call({"id": old.get("name"), "function": old}, f"{at}.function_call", notes))
    return tuple(call for call in made if call is not None)


def _call(given: Any, at: str, notes: Notes) -> Call | None:
    holders = (
        key for key in ("function", "custom") if isinstance(given, dict) and isinstance(given.get(key), dict)
    )
    if (key := next(holders, None)) is None:
        notes.left_out(at)
        return None
    note_unknown(given, ("id", "type", key), at, notes)
    inner = given[key]
    note_unknown(inner, ("name", "arguments", "input"), f"{at}.{key}", notes)
    if not isinstance(given.get("id"), str):
        notes.understood(f"{at}.id", "is missing")
    if "input" in inner:
        if not isinstance(inner["input"], str):
            notes.understood(f"{at}.{key}.input", "must be a string")
        arguments: Json = {"input": as_string(inner["input"])}
    else:
        arguments = arguments_of(inner.get("arguments"), f"{at}.{key}.arguments", notes)
    return Call(as_string(given.get("id")), named(inner, f"{at}.{key}", notes), arguments)


def named(given: Json, at: str, notes: Notes) -> str:
    """Return the name of the tool that a call names, or "unnamed". at: path of the object with the name."""
    name = given.get("name")
    if not isinstance(name, str) or not name:
        notes.understood(f"{at}.name", "is missing")
        return "unnamed"
    return name


SILENT = frozenset(("prompt_cache_breakpoint", "annotations"))
"""Keys inside messages that OpenAI's chats have and that need no mention."""


def read_chat(given: Json, notes: Notes) -> Json:
    """Return a chat request's fields, with messages, tools and tool_choice in the normal form.

    Fields that are in the normal form already are not changed.
    Raises BadRequestError if no prompt can be made of the conversation, or the model could not call a tool.
    """
    notes.silent, notes.api = SILENT, "chats"
    read = dict(given)
    tools = ToolReader(notes)
    for name in ("tools", "functions"):
        if isinstance(given.get(name), tuple):
            tools.tools += given[name]
        elif given.get(name) is not None:
            tools.read(given[name], name)
    if given.get("functions") is not None:
        notes.understood("functions", "is not supported; send tools instead")
        del read["functions"]
    if given.get("function_call") is not None:
        notes.understood("function_call", "is not supported; send tool_choice instead, with tools")
        read["tool_choice"] = read.pop("function_call")
    read["tools"] = tuple(tools.tools)
    read["tool_choice"] = read_choice(
        read.get("tool_choice"), "tool_choice", tools.tools, tools.left_out, notes
    )
    if given.get("messages") is not None:
        read["messages"] = read_messages(given["messages"], notes)
    return read


def read_messages(given: Any, notes: Notes) -> tuple[Message, ...]:
    """Convert the JSON messages of a chat to the normal form; a tuple is in that form already."""
    if isinstance(given, tuple):
        return given
    messages = settle(from_chats(check_size(given, "messages"), "messages", notes), notes)
    check_answerable(messages)
    return messages
