"""Read the conversation of a request in Ollama's API: messages and tools."""

from collections import deque
from collections.abc import Iterator
from itertools import count
from typing import Any

from server.conversation.chats import read_messages
from server.conversation.model import Json, Message
from server.conversation.settled import check_size
from server.conversation.tools import ToolReader
from server.validation.notes import Notes

SILENT = frozenset(("index", "type"))
"""Keys inside calls and tools that Ollama's API has and that need no mention."""
_RENAMED = frozenset(("images", "thinking", "tool_name"))
_Waiting = dict[str, deque[str]]
"""The ids of the calls that no message has answered yet, by the name of the tool."""


def read_conversation(given: Json, notes: Notes) -> Json:
    """Return the fields of a request with its conversation in the normal form.

    Raises BadRequestError if no prompt can be made of it, or a tool cannot be called.
    """
    read = dict(given)
    if given.get("messages") is not None:
        read["messages"] = read_ollama_messages(given["messages"], notes)
    tools = ToolReader(notes)
    if given.get("tools") is not None:
        tools.read(given["tools"], "tools")
    return read | {"tools": tuple(tools.tools)}


def read_ollama_messages(given: Any, notes: Notes) -> tuple[Message, ...]:
    """Return messages in the normal form. Raises BadRequestError."""
    notes.silent, notes.api = SILENT, "ollama"
    waiting: _Waiting = {}
    numbers = count(1)
    messages = check_size(given, "messages")
    chat = [_as_chat(one, waiting, numbers) if isinstance(one, dict) else one for one in messages]
    return read_messages(chat, notes)


def _as_chat(given: Json, waiting: _Waiting, numbers: Iterator[int]) -> Json:
    """Return a message as chats have it: with ids of calls, and with its images among its parts."""
    chat = {key: value for key, value in given.items() if key not in _RENAMED}
    if isinstance(role := given.get("role"), str):
        chat["role"] = role.lower()
    if given.get("thinking"):
        chat["reasoning_content"] = given["thinking"]
    if images := given.get("images"):
        content = given.get("content")
        said = {"type": "text", "text": content} if isinstance(content, str) else content
        num_images = len(images) if isinstance(images, list) else 1
        rest = said if isinstance(said, list) else [said] if content else []
        chat["content"] = [*[{"type": "image"}] * num_images, *rest]
    if isinstance(calls := given.get("tool_calls"), list):
        chat["tool_calls"] = [_with_id(call, waiting, numbers) for call in calls]
    if chat.get("role") == "tool" and not given.get("tool_call_id"):
        names = (given.get("tool_name"), chat.pop("name", None))
        name = next((one for one in names if isinstance(one, str)), "")
        if waiting.get(name):
            chat["tool_call_id"] = waiting[name].popleft()
    return chat


def _with_id(call: Any, waiting: _Waiting, numbers: Iterator[int]) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    given = call.get("id")
    call_id = given if isinstance(given, str) and given else f"call_{next(numbers)}"
    if isinstance(name := function.get("name"), str):
        waiting.setdefault(name, deque()).append(call_id)
    return {**call, "id": call_id}
