"""Read the conversation of a Messages request: messages, system prompt, tools and tool_choice."""

from collections.abc import Sequence

from reprise.server.conversation.from_messages import from_messages
from reprise.server.conversation.model import Json, Part
from reprise.server.conversation.parts import parts_of
from reprise.server.conversation.settled import check_answerable, check_size, settle
from reprise.server.conversation.tool_choice import read_choice
from reprise.server.conversation.tools import ToolReader
from reprise.server.validation.notes import Notes

SILENT = frozenset(("cache_control", "signature", "allowed_callers", "eager_input_streaming"))
"""Keys inside blocks and tools that Anthropic's API has and that need no mention."""
BILLING_LINE = "x-anthropic-billing-header:"
"""The beginning of a line that Claude Code puts at the head of the system prompt."""


def read_conversation(given: Json, notes: Notes) -> Json:
    """Return a request's fields, with messages, system prompt, tools and tool_choice in the normal form.

    Raises BadRequestError if no prompt can be made of the conversation, or the model could not call a tool.
    """
    notes.silent, notes.api = SILENT, "messages"
    read = dict(given)
    tools = ToolReader(notes)
    if given.get("tools") is not None:
        tools.read(given["tools"], "tools")
    read["tools"] = tuple(tools.tools)
    read["tool_choice"] = read_choice(
        given.get("tool_choice"), "tool_choice", tools.tools, tools.left_out, notes
    )
    if isinstance(given.get("system"), list):
        check_size([{"content": given["system"]}], "system")
    read["system"] = tuple(parts_of(given.get("system"), "system", notes))
    if given.get("messages") is not None:
        messages = from_messages(check_size(given["messages"], "messages"), "messages", notes)
        read["messages"] = settle(messages, notes)
        check_answerable(read["messages"])
    return read


def kept_system(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the system prompt without the billing line that Claude Code puts at its head.

    The line differs in every request, so with it no prompt would begin like the one before, and none of a
    prompt would be found in the prefix cache.
    """
    if not parts or not str(parts[0]).startswith(BILLING_LINE):
        return tuple(parts)
    _, _, rest = str(parts[0]).partition("\n")
    return (*((rest.lstrip("\n"),) if rest.strip() else ()), *parts[1:])
