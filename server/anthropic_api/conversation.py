"""Read the conversation of a Messages request."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from reprise.server.requests.messages import (
    Call,
    Json,
    Media,
    Message,
    Part,
    Role,
    arguments_of,
    as_string,
    chat_message,
    check_answerable,
    check_message,
    check_size,
    joined,
    named,
    note_unknown,
    part_of,
    parts_of,
    settle,
)
from reprise.server.requests.tools import ToolReader, read_choice
from reprise.server.validation.fields import Notes

_ROLES: tuple[Role, ...] = ("user", "assistant", "system")


def from_messages(messages: Iterable[Any], path: str, notes: Notes) -> list[Message]:
    """Translate the messages of a Messages request; merge neighbours of the same role, as Anthropic does.

    path: the path of the messages' array in the request.
    """
    made: list[Message] = []
    for index, given in enumerate(messages):
        at = f"{path}[{index}]"
        check_message(given, at)
        role = given.get("role") if isinstance(given, dict) else None
        if role not in _ROLES:
            notes.understood(f"{at}.role", "must be 'user', 'assistant' or 'system'")
            made.append(chat_message(given, at, notes))
            continue
        note_unknown(given, ("role", "content"), at, notes)
        if given.get("content") is None or (role != "assistant" and given["content"] == []):
            notes.understood(f"{at}.content", "is empty")
        made += _of_blocks(role, given.get("content"), f"{at}.content", notes)
    return merged(made)


def _of_blocks(role: Role, content: Any, at: str, notes: Notes) -> Iterator[Message]:
    """Yield the messages that the blocks of one are: results are messages of their own.

    One of nothing stays: after an answer without any message of the user the answer would be continued.
    """
    parts: list[Part] = []
    reasoning: list[str] = []
    calls: list[Call] = []
    has_results = False
    joint = "" if role == "assistant" else "\n"

    def message() -> Message:
        return Message(role, tuple(parts), "".join(reasoning), tuple(calls), joint=joint, at=at)

    is_list = isinstance(content, list)
    for index, block in enumerate(content if is_list else [] if content is None else [content]):
        here = f"{at}[{index}]" if is_list else at
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use" and role == "assistant":
            note_unknown(block, ("type", "id", "name", "input"), here, notes)
            arguments = block["input"] if isinstance(block.get("input"), dict) else None
            if arguments is None:
                notes.understood(f"{here}.input", "must be an object")
                arguments = arguments_of(block.get("input"), f"{here}.input", notes)
            calls.append(Call(as_string(block.get("id")), named(block, here, notes), arguments))
        elif kind == "thinking" and role == "assistant":
            note_unknown(block, ("type", "thinking", "signature"), here, notes)
            reasoning.append(as_string(block.get("thinking")))
        elif kind == "tool_result":
            if parts or calls or reasoning:
                yield message()
                parts, reasoning, calls = [], [], []
            note_unknown(block, ("type", "tool_use_id", "content", "is_error"), here, notes)
            result = parts_of(block.get("content"), f"{here}.content", notes)
            shown = _as_error(result) if block.get("is_error") is True else result
            has_results = True
            yield Message(
                "tool", tuple(shown), call_id=as_string(block.get("tool_use_id")), joint="\n", at=here
            )
        elif isinstance(block, str) and not is_list:
            parts.append(block)
        else:
            parts += part_of(block, here, notes)
    if parts or calls or reasoning or role == "assistant" or not has_results:
        yield message()


def _as_error(parts: list[Part]) -> list[Part]:
    """Mark a result as an error, unless it says so itself."""
    text = "\n".join(map(str, parts))
    if any(isinstance(part, Media) for part in parts):
        return ["Error:", *parts]
    return parts if text.lower().startswith("error") else [f"Error: {text}".rstrip()]


def merged(messages: Iterable[Message]) -> list[Message]:
    """Merge neighbouring messages of the same role, except results of tool calls."""
    groups: list[list[Message]] = []
    for message in messages:
        if groups and groups[-1][0].role == message.role != "tool":
            groups[-1].append(message)
        else:
            groups.append([message])
    return [joined(group) for group in groups]


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
