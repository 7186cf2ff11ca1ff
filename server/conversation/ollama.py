"""Read the conversation of a request in Ollama's API: messages and tools."""

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from reprise.server.conversation.from_chats import from_chats
from reprise.server.conversation.images import image
from reprise.server.conversation.model import Json, Message, Part
from reprise.server.conversation.settled import check_answerable, check_size, settle
from reprise.server.conversation.tools import ToolReader
from reprise.server.validation.notes import Notes

SILENT = frozenset(("index", "type"))
"""Keys inside calls and tools that Ollama's API has and that need no mention."""
_RENAMED = frozenset(("images", "thinking", "tool_name"))


def read_conversation(given: Json, notes: Notes) -> Json:
    """Return a request's fields, with messages, tools and tool_choice in the normal form.

    Raises BadRequestError if no prompt can be made of the conversation, or the model could not call a tool.
    """
    read = dict(given)
    if given.get("messages") is not None:
        read["messages"] = read_ollama_messages(given["messages"], notes)
    tools = ToolReader(notes)
    if given.get("tools") is not None:
        tools.read(given["tools"], "tools")
    return read | {"tools": tuple(tools.tools)}


def read_ollama_messages(given: Any, notes: Notes) -> tuple[Message, ...]:
    """Convert the JSON messages of an Ollama chat to the normal form. Raises BadRequestError."""
    notes.silent, notes.api = SILENT, "ollama"
    calls = _Calls()
    messages = check_size(given, "messages")
    check_size([{"content": one.get("images")} for one in messages if isinstance(one, dict)], "messages")
    chat = [_as_chat(one, calls) if isinstance(one, dict) else one for one in messages]
    made = from_chats(chat, "messages", notes)
    for index, one in enumerate(messages):
        if isinstance(one, dict) and one.get("images"):
            shown = images_of(one["images"], f"{made[index].at}.images")
            made[index] = replace(made[index], parts=(*shown, *made[index].parts))
    settled = settle(made, notes)
    check_answerable(settled)
    return settled


def images_of(given: Any, path: str) -> list[Part]:
    """Return the images in the `images` field of a message. path: the field's path in the request."""
    return [image(one, path) for one in (given if isinstance(given, list) else [given])]


class _Calls:
    """The calls that no message has answered yet. Ollama's need no ids and are given some."""

    def __init__(self) -> None:
        self._num = 0
        self._unanswered: dict[str, None] = {}
        self._by_name: dict[str, deque[str]] = {}

    def with_id(self, call: Any) -> Any:
        """Return a call with an id; anything else as it is."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            return call
        self._num += 1
        given = call.get("id")
        call_id = given if isinstance(given, str) and given else f"call_{self._num}"
        self._unanswered[call_id] = None
        if isinstance(name := function.get("name"), str):
            self._by_name.setdefault(name, deque()).append(call_id)
        return {**call, "id": call_id}

    def answer(self, name: str | None) -> str | None:
        """Return the id of the first call of the tool, or of any; None if all are answered."""
        waiting: Iterable[str] = self._unanswered if name is None else self._by_name.get(name, ())
        call_id = next((one for one in waiting if one in self._unanswered), None)
        if call_id is not None:
            del self._unanswered[call_id]
        while name in self._by_name and (ids := self._by_name[name]) and ids[0] not in self._unanswered:
            ids.popleft()
        return call_id


def _as_chat(given: Json, calls: _Calls) -> Json:
    """Return a message as chats have it: with ids of calls, and without its images."""
    chat = {key: value for key, value in given.items() if key not in _RENAMED}
    if isinstance(role := given.get("role"), str):
        chat["role"] = role.lower()
    if given.get("thinking"):
        chat["reasoning_content"] = given["thinking"]
    if isinstance(given.get("tool_calls"), list):
        chat["tool_calls"] = [calls.with_id(call) for call in given["tool_calls"]]
    if chat.get("role") == "tool" and not given.get("tool_call_id"):
        names = (given.get("tool_name"), chat.pop("name", None))
        chat["tool_call_id"] = calls.answer(
            next((one for one in names if isinstance(one, str) and one), None)
        )
    return chat
