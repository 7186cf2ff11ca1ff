"""Read the conversation of a chat: messages, tools and tool_choice, whichever API they were made for."""

from typing import Any

from reprise.server.conversation.from_chats import from_chats
from reprise.server.conversation.model import Json, Message
from reprise.server.conversation.settled import check_answerable, check_size, settle
from reprise.server.conversation.tool_choice import read_choice
from reprise.server.conversation.tools import ToolReader
from reprise.server.validation.notes import Notes

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
