"""Translate the input items of a response to a chat."""

from collections.abc import Iterable, Sequence
from typing import Any

from reprise.server.errors import BadRequestError, requested_name
from reprise.server.openai_api.responses.schemas import JsonSchemaFormat, ResponsesRequest
from reprise.server.requests.chat import ChatRequest, extended
from reprise.server.requests.fields import Notes, validate
from reprise.server.requests.media import Media
from reprise.server.requests.messages import (
    ASSISTANT_ONLY,
    OF_API,
    REASONING_PREFIX,
    ROLES,
    Call,
    Json,
    Message,
    Part,
    apart,
    arguments_of,
    as_string,
    chat_message,
    check_answerable,
    cleaned,
    decode_reasoning,
    joined,
    named,
    note_unknown,
    part_of,
    parts_of,
    readable,
    settle,
)
from reprise.server.requests.tools import ToolReader, function_name

SUMMARY_HEAD = "[Summary of the conversation so far]"
SILENT = frozenset(
    ("id", "status", "phase", "annotations", "logprobs", "prompt_cache_breakpoint", "summary")
) | {"output_schema", "defer_loading"}
"""Keys inside items and tools that the API has and that need no mention."""
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""The types of calls, and the field that holds what they call a tool with."""
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
"""How the ids of items begin, by their type. Those of others begin with item."""
_STATUSES = ("completed", "in_progress", "incomplete")


def kind_of(item: Any) -> str:
    """Return an item's type. Without a type it is a message, or a reference if it has only an id."""
    if not isinstance(item, dict):
        return "message"
    kind = item.get("type")
    if isinstance(kind, str):
        return kind
    return "item_reference" if item.keys() <= {"type", "id"} and "id" in item else "message"


def from_items(items: Sequence[Any], path: str, notes: Notes) -> tuple[list[Message], list[tuple[str, Any]]]:
    """Translate the input items of a Responses request.

    path: the path of the items' array in the request.
    Returns the messages, and (path, array) for each array of tools that an item brings.
    """
    made: list[Message] = []
    tools: list[tuple[str, Any]] = []
    answered = {as_string(item.get("call_id")) for item in items if kind_of(item).endswith("_output")}
    for index, item in enumerate(items):
        at, kind = f"{path}[{index}]", kind_of(item)
        if kind in ("additional_tools", "tool_search_output") and isinstance(item.get("tools"), list):
            notes.understood(at)
            tools.append((f"{at}.tools", item["tools"]))
        if kind != "additional_tools":
            made += _messages(item, kind, at, answered, notes)
    return _turns(made), tools


def _messages(item: Any, kind: str, at: str, answered: set[str], notes: Notes) -> list[Message]:
    """Yield the message, or part of one, that an item stands for; nothing if it is skipped."""
    if kind == "message":
        if isinstance(item, dict):
            item = {key: value for key, value in item.items() if key not in ("type", *SILENT)}
        return [chat_message(item, at, notes)]
    call_id = call_id_of(item, kind)
    if kind in (*CALLS, *_OUTPUTS):
        _note_forms(item, kind, at, notes)
    if kind == "reasoning":
        return [Message("assistant", reasoning=_reasoning(item, at, notes), at=at)]
    if kind in CALLS:
        note_unknown(item, ("type", "call_id", "name", "namespace", *CALLS.values()), at, notes)
        if kind == "custom_tool_call":
            arguments: Json = {"input": as_string(item.get("input"))}
        else:
            arguments = arguments_of(as_string(item.get("arguments")), f"{at}.arguments", notes)
        namespace = item.get("namespace") if isinstance(item.get("namespace"), str) else None
        name = function_name(namespace, named(item, at, notes))
        return [Message("assistant", calls=(Call(call_id, name, arguments),), at=at)]
    if kind == "tool_search_output":
        found = item["tools"] if isinstance(item.get("tools"), list) else []
        names = [tool.get("name") for tool in found if isinstance(tool, dict)]
        return [Message("tool", (readable({"tools": names}),), call_id=call_id, at=at)]
    if kind.endswith("_output"):
        return [Message("tool", tuple(_output_parts(item, f"{at}.output", notes)), call_id=call_id, at=at)]
    if kind.endswith("_call") and call_id in answered:
        notes.as_text(at)
        call = Call(call_id, kind.removesuffix("_call"), cleaned(item))
        return [Message("assistant", calls=(call,), at=at)]
    if kind == "compaction" and (summary := decode_reasoning(item.get("encrypted_content"))) is not None:
        return [Message("user", (f"{SUMMARY_HEAD}\n{summary}",), at=at)]
    parts = part_of({**item, "type": kind}, at, notes)
    return [Message("assistant", tuple(parts), at=at)] if parts else []


def _note_forms(item: Json, kind: str, at: str, notes: Notes) -> None:
    """Note fields of a call or its result that differ from the API's format."""
    field = CALLS.get(kind, "output")
    if not isinstance(item.get(field), str if kind in CALLS else str | list):
        notes.understood(f"{at}.{field}")
    if not isinstance(item.get("call_id"), str):
        notes.understood(f"{at}.call_id", "is missing")


def _output_parts(item: Json, path: str, notes: Notes) -> list[Part]:
    """Return the parts of a call's result, in whichever form it has."""
    output = item.get("output", item.get("result"))
    if isinstance(output, dict) and "content" in output:
        output = output["content"]
    return parts_of(output, path, notes)


def _reasoning(item: Json, at: str, notes: Notes) -> str:
    """Return an item's reasoning, from its content or else from our own encrypted_content."""
    text = "".join(map(str, parts_of(item.get("content"), f"{at}.content", notes)))
    content = item.get("encrypted_content")
    if text or not isinstance(content, str):
        return text
    if (decoded := decode_reasoning(content)) is None:
        notes.left_out(f"{at}.encrypted_content", is_peers=not content.startswith(REASONING_PREFIX))
    return decoded or ""


def _turns(messages: Iterable[Message]) -> list[Message]:
    """Join reasoning, text and calls of the assistant, which are separate items but one message.

    Only calls may follow the text; any other item after it starts a new message.
    """
    groups: list[list[Message]] = []
    can_join = False
    for message in messages:
        is_assistants = message.role == "assistant"
        is_call = bool(message.calls) and not message.parts
        if is_assistants and groups and groups[-1][0].role == "assistant" and (can_join or is_call):
            groups[-1].append(message)
        else:
            groups.append([message])
        can_join = is_assistants and (is_call or not message.parts)
    return [joined(group) for group in groups]


def call_id_of(item: Json, kind: str) -> str:
    """Return the id of the call that an item makes or answers; "" if it has none, for settle() to fill in."""
    given = item.get("call_id")
    return as_string(item.get("id") if given is None and not kind.endswith("_output") else given)


def as_listed(item: Any, item_id: str) -> Json:
    """Return an input item as JSON to store and to list, with only the fields that from_items() reads."""
    if not isinstance(item, dict):
        item = {"role": "user", "content": as_string(item)}
    kind, notes = kind_of(item), Notes()
    status = item.get("status") if item.get("status") in _STATUSES else "completed"
    listed = {"id": item_id, "type": kind, "status": status}
    call_id = call_id_of(item, kind) if kind.endswith(("_call", "_output")) else ""
    if call_id or "call_id" in item or kind in CALLS:
        listed["call_id"] = call_id
    if kind == "message":
        return {**listed, **_listed_message(item, notes)}
    if kind in CALLS:
        listed |= {"name": named(item, "", notes), CALLS[kind]: as_string(item.get(CALLS[kind]))}
        return listed | ({"namespace": item["namespace"]} if isinstance(item.get("namespace"), str) else {})
    if kind in _OUTPUTS:
        shown = _output_parts(item, "", notes)
        has_data = any(isinstance(part, Media) and part.data for part in shown)
        output = _listed_parts(shown) if has_data else "".join(map(str, shown))
        return {"call_id": "", **listed, "output": output}
    if kind == "reasoning":
        content = [{"type": "reasoning_text", "text": _reasoning(item, "", notes)}]
        return {**listed, "summary": [], "content": content}
    if isinstance(item.get("status"), str):
        del listed["status"]
    return {**item, **listed}


def _listed_message(item: Json, notes: Notes) -> Json:
    given = item.get("role")
    role = given if given in OF_API else ROLES.get(given, "user") if isinstance(given, str) else "user"
    content = item.get("refusal") if item.get("content") is None else item["content"]
    thought, content = apart(content) if role == "assistant" else (None, content)
    parts: list[Json] = []
    for part in content if isinstance(content, list) else [] if content is None else [content]:
        if role == "assistant" and isinstance(part, dict) and part.get("type") == "refusal":
            parts.append({"type": "refusal", "refusal": as_string(part.get("refusal"))})
            continue
        found = part_of(part, "", notes)
        if role == "assistant":
            text = "".join(map(str, found))
            parts.append({"type": "output_text", "text": text, "annotations": []})
        else:
            parts += _listed_parts(found or [""])
    kept = (*ASSISTANT_ONLY, "name", "tool_call_id")
    listed = {"role": role, "content": parts} | {key: item[key] for key in kept if key in item}
    return listed if thought is None else {"reasoning_content": thought, **listed}


def _listed_parts(parts: Iterable[Part]) -> list[Json]:
    """Return parts as the API lists them; all but images and documents become text."""

    def listed(part: Part) -> Json:
        if not isinstance(part, Media) or not part.data:
            return {"type": "input_text", "text": str(part)}
        url = f"data:;base64,{part.data}"
        if part.kind == "document":
            return {"type": "input_file", "filename": part.name, "file_data": url}
        return {"type": "input_image", "detail": part.detail, "image_url": url}

    return [listed(part) for part in parts]


PREVIOUS = "previous_response_id"


def to_chat(
    body: ResponsesRequest, earlier: Sequence[Json], items: Sequence[Any], notes: Notes
) -> ChatRequest:
    """Return the chat request. Raises BadRequestError, which has the chat request's field names.

    earlier: the items of the conversation that the request continues.
    items: the input items, with references resolved.
    notes: records parts of the request that are left out, shown as text, or understood in another form.
    """
    notes.silent, notes.api = SILENT, "responses"
    messages, brought = from_items(items, "input", notes)
    before, brought_before = from_items(earlier, PREVIOUS, Notes())
    reader = ToolReader(notes)
    reader.read(body.tools, "tools")
    for path, tools in (*brought_before, *brought):
        try:
            reader.read(tools, path)
        except BadRequestError:
            # Calls and results are a part of the history.
            notes.left_out(path)
    choice = reader.read_choice(body.tool_choice)
    first = [Message("system", (body.instructions,), at="instructions")] if body.instructions else []
    settled = settle([*first, *before, *messages], notes)
    if not settled:
        # Items of which nothing can be shown meant something; an answer to nothing would hide that.
        if notes.refuses or items:
            message = "'input' is missing, empty or not known; send input, or previous_response_id."
            raise BadRequestError(message, param="input", code="missing_required_parameter")
        notes.understood("input")
        settled = (Message("user", ("",), at="input"),)
    check_answerable(settled)
    # None means the default.
    given = {
        "model": body.model,
        "stream": body.stream,
        "max_completion_tokens": body.max_output_tokens,
        **{name: getattr(body, name) for name in body.model_fields_set & {"temperature", "top_p"}},
        "tools": tuple(reader.tools),
        "parallel_tool_calls": body.parallel_tool_calls if reader.tools else None,
        "response_format": _format_of(body),
        "reasoning_effort": body.reasoning.effort,
        "truncation": body.truncation,
        "logprobs": body.wants_logprobs or None,
        "top_logprobs": (body.top_logprobs or 0) if body.wants_logprobs else None,
        **extended(body),
        "messages": settled,
        "tool_choice": choice,
    }
    of_chat = Notes(notes.refuses)
    chat = validate(given, ChatRequest, of_chat)
    for path, became in of_chat.paths.items():
        notes.paths.setdefault(requested_name(path, ResponsesRequest.names), became)
    return chat


def _format_of(body: ResponsesRequest) -> Json | None:
    """Return the answer's format for chats; None for text."""
    given = body.text.format
    if isinstance(given, JsonSchemaFormat):
        schema = given.model_dump(include={"name", "description", "strict"}, exclude_none=True)
        return {"type": "json_schema", "json_schema": {**schema, "schema": given.json_schema}}
    return None if given.type == "text" else {"type": given.type}
