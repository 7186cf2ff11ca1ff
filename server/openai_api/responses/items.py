"""Translate the input items of a response to a chat."""

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Any

from reprise.server.errors import BadRequestError, requested_name
from reprise.server.openai_api.responses.schemas import JsonSchemaFormat, ResponsesRequest
from reprise.server.openai_api.responses.store import Turn
from reprise.server.requests.chat import ChatRequest, extended
from reprise.server.requests.fields import Notes, validate
from reprise.server.requests.media import Media
from reprise.server.requests.messages import (
    ASSISTANT_ONLY,
    OF_API,
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
    joined,
    named,
    note_unknown,
    part_of,
    parts_of,
    readable,
    settle,
)
from reprise.server.requests.tools import ToolReader, function_name

REASONING_PREFIX = "reprise:"
"""Prefix of encrypted_content; the reasoning, or the summary of a compaction, follows in base64."""
SUMMARY_HEAD = "[Summary of the conversation so far]"
SILENT = frozenset(
    ("id", "status", "phase", "annotations", "logprobs", "prompt_cache_breakpoint", "summary")
) | {"output_schema", "defer_loading"}
"""Keys inside items and tools that the API has and that need no mention."""
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_FORMS: dict[str, tuple[str, Any]] = {
    "function_call": ("arguments", str),
    "custom_tool_call": ("input", str),
    **dict.fromkeys(_OUTPUTS, ("output", str | list)),
}
_STATUSES = ("completed", "in_progress", "incomplete")
_OF_CALL = ("type", "call_id", "name", "namespace", "arguments", "input")


def kind_of(item: Json) -> str:
    """Return an item's type. Without a type it is a message, or a reference if it has only an id."""
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
    dicts = [item for item in items if isinstance(item, dict)]
    answered = {as_string(item.get("call_id")) for item in dicts if kind_of(item).endswith("_output")}
    for index, item in enumerate(items):
        at = f"{path}[{index}]"
        if not isinstance(item, dict):
            made.append(chat_message(item, at, notes))
            continue
        kind = kind_of(item)
        if kind in ("additional_tools", "tool_search_output") and isinstance(item.get("tools"), list):
            notes.understood(at)
            tools.append((f"{at}.tools", item["tools"]))
        made += _messages(item, kind, at, answered, notes)
    return _turns(made), tools


def _messages(item: Json, kind: str, at: str, answered: set[str], notes: Notes) -> list[Message]:
    """Return the message that an item is, or part of; none if it is left out."""
    call_id = call_id_of(item, kind)
    _note_forms(item, kind, at, notes)
    if kind == "message":
        return [chat_message({k: v for k, v in item.items() if k not in ("type", *SILENT)}, at, notes)]
    if kind == "reasoning":
        return [Message("assistant", reasoning=_reasoning(item, at, notes), at=at)]
    if kind in _CALLS:
        note_unknown(item, _OF_CALL, at, notes)
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
        output = item.get("output", item.get("result"))
        if isinstance(output, dict) and "content" in output:
            output = output["content"]
        return [Message("tool", tuple(parts_of(output, f"{at}.output", notes)), call_id=call_id, at=at)]
    if kind.endswith("_call") and call_id in answered:
        notes.as_text(at)
        call = Call(call_id, kind.removesuffix("_call"), cleaned(item))
        return [Message("assistant", calls=(call,), at=at)]
    if kind == "additional_tools":
        return []
    content = item.get("encrypted_content")
    if (
        kind == "compaction"
        and isinstance(content, str)
        and (summary := decode_reasoning(content)) is not None
    ):
        return [Message("user", (f"{SUMMARY_HEAD}\n{summary}",), at=at)]
    parts = part_of({**item, "type": kind}, at, notes)
    return [Message("assistant", tuple(parts), at=at)] if parts else []


def _note_forms(item: Json, kind: str, at: str, notes: Notes) -> None:
    """Note the fields of a call or of its result that have another form than the API's."""
    if kind not in _FORMS:
        return
    name, form = _FORMS[kind]
    if not isinstance(item.get(name), form):
        notes.understood(f"{at}.{name}")
    if not isinstance(item.get("call_id"), str):
        notes.understood(f"{at}.call_id", "is missing")


def _reasoning(item: Json, at: str, notes: Notes) -> str:
    """Return the reasoning of an item, from its content or else from encrypted_content, if it is ours."""
    text = "".join(map(str, parts_of(item.get("content"), f"{at}.content", notes)))
    content = item.get("encrypted_content")
    if text or not isinstance(content, str):
        return text
    decoded = decode_reasoning(content)
    if decoded is None:
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
    """Return an input item as the JSON object to store and to list: only what from_items() reads of it."""
    if not isinstance(item, dict):
        item = {"role": "user", "content": as_string(item)}
    kind, notes = kind_of(item), Notes()
    status = item.get("status") if item.get("status") in _STATUSES else "completed"
    listed = {"id": item_id, "type": kind, "status": status}
    if call_id := call_id_of(item, kind) if kind.endswith(("_call", "_output")) else "":
        listed["call_id"] = call_id
    elif "call_id" in item or kind in _CALLS:
        listed["call_id"] = ""
    if kind == "message":
        return {**listed, **_listed_message(item, notes)}
    if kind in _CALLS:
        key = "input" if kind == "custom_tool_call" else "arguments"
        listed |= {"name": named(item, "", notes), key: as_string(item.get(key))}
        return listed | {key: item[key] for key in ("namespace",) if isinstance(item.get(key), str)}
    if kind in _OUTPUTS:
        shown = parts_of(item.get("output"), "", notes)
        has_images = any(isinstance(part, Media) and part.data for part in shown)
        output = _listed_parts(shown) if has_images else "".join(map(str, shown))
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
    """Return parts as the API lists them. What is no image is text."""
    return [
        {"type": "input_image", "detail": part.detail, "image_url": f"data:;base64,{part.data}"}
        if isinstance(part, Media) and part.data
        else {"type": "input_text", "text": str(part)}
        for part in parts
    ]


def encode_reasoning(reasoning: str) -> str:
    """Encode reasoning, or a summary, as encrypted_content, which clients send back. It is not encrypted."""
    return REASONING_PREFIX + base64.b64encode(reasoning.encode()).decode()


def decode_reasoning(content: str) -> str | None:
    """Decode encrypted_content that encode_reasoning() made. Return None for any other content."""
    if not content.startswith(REASONING_PREFIX):
        return None
    try:
        return base64.b64decode(content.removeprefix(REASONING_PREFIX), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


PREVIOUS = "previous_response_id"


class ChatConversion:
    """The conversion of one Responses request to a chat request.

    previous: the last turn of the conversation that the request continues.
    items: the input items, with references resolved.
    notes: records parts of the request that are left out, shown as text, or understood in another form.
    """

    def __init__(
        self, body: ResponsesRequest, previous: Turn | None, items: Sequence[Any], notes: Notes
    ) -> None:
        notes.silent, notes.api = SILENT, "responses"
        self._notes = notes
        self.body = body
        self.previous = previous
        self.earlier = previous.conversation() if previous else []
        self.items = items
        messages, brought = from_items(items, "input", notes)
        earlier, brought_earlier = from_items(self.earlier, PREVIOUS, Notes())
        reader = ToolReader(notes)
        reader.read(body.tools, "tools")
        for path, tools in (*brought_earlier, *brought):
            try:
                reader.read(tools, path)
            except BadRequestError:
                # They are a part of the history.
                notes.left_out(path)
        self.shown_tools = reader.tools
        self._choice = reader.read_choice(body.tool_choice)
        first = [Message("system", (body.instructions,), at="instructions")] if body.instructions else []
        self._messages = settle([*first, *earlier, *messages], notes)
        if not self._messages:
            # Items of which nothing can be shown meant something; an answer to nothing would hide that.
            if notes.refuses or items:
                message = "'input' is missing, empty or not known; send input, or previous_response_id."
                raise BadRequestError(message, param="input", code="missing_required_parameter")
            notes.understood("input")
            self._messages = (Message("user", ("",), at="input"),)
        check_answerable(self._messages)

    def chat(self) -> ChatRequest:
        """Return the chat request. Raises BadRequestError, which has the chat request's field names."""
        body, response_format = self.body, self.body.text.format
        shape: Json | None = None
        if isinstance(response_format, JsonSchemaFormat):
            schema = response_format.model_dump(include={"name", "description", "strict"}, exclude_none=True)
            schema["schema"] = response_format.json_schema
            shape = {"type": "json_schema", "json_schema": schema}
        elif response_format.type != "text":
            shape = {"type": response_format.type}
        # None means the default.
        given = {
            "model": body.model,
            "stream": body.stream,
            "max_completion_tokens": body.max_output_tokens,
            **{name: getattr(body, name) for name in body.model_fields_set & {"temperature", "top_p"}},
            "tools": tuple(self.shown_tools),
            "parallel_tool_calls": body.parallel_tool_calls if self.shown_tools else None,
            "response_format": shape,
            "reasoning_effort": body.reasoning.effort,
            "truncation": body.truncation,
            "logprobs": body.wants_logprobs or None,
            "top_logprobs": (body.top_logprobs or 0) if body.wants_logprobs else None,
            **extended(body),
            "messages": self._messages,
            "tool_choice": self._choice,
        }
        notes = Notes(self._notes.refuses)
        chat = validate(given, ChatRequest, notes)
        for path, became in notes.paths.items():
            self._notes.paths.setdefault(requested_name(path, ResponsesRequest.names), became)
        return chat
