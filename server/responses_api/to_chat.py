"""Convert a Responses request to a chat request, and map the chat's errors back to the request's fields."""

import re
from collections.abc import Sequence
from copy import copy
from typing import Any

from server.conversation.tools import function_name
from server.errors import BadRequestError
from server.requests.chat import ChatRequest
from server.responses_api.chat_tools import ShownTool, show_tools
from server.responses_api.items import (
    ConversationItem,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputMessage,
    ReasoningItem,
)
from server.responses_api.schemas import JsonSchemaFormat, ResponsesRequest
from server.responses_api.store import Turn
from server.responses_api.tools import AllowedTools, NamedCustom, NamedFunction
from server.tool_formats.free_text import as_arguments
from server.validation.field_errors import validate

CHAT_FIELDS = (
    "seed",
    "stop",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "stop_token_ids",
    "min_tokens",
    "loop_guard_tokens",
    "ignore_eos",
    "allowed_token_ids",
    "include_stop_str_in_output",
    "thinking_budget_tokens",
    "draft",
    "wedlm_decoding",
    "wedlm_window_size",
    "wedlm_entropy_threshold",
    "wedlm_pos_penalty_factor",
    "wedlm_anchor",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "chat_template_kwargs",
)
"""Fields that are passed to the chat request unchanged and validated there."""

_NAMES = (
    (re.compile(r"messages\b"), "input"),
    (re.compile(r"max_(completion_)?tokens\b"), "max_output_tokens"),
    (re.compile(r"tool_choice\.(function|allowed_tools)\b"), "tool_choice"),
    (re.compile(r"(tool_choice\.tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"response_format\.json_schema\b"), "text.format"),
    (re.compile(r"response_format\b"), "text.format"),
    (re.compile(r"reasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"logprobs\b"), "include"),
)
PREVIOUS = "previous_response_id"


class MessageBuilder:
    """Chat messages built from items.

    The origin of each message is recorded, so that an error about a message can name the item.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._origins: dict[str, str] = {}
        self._assistant: dict[str, Any] | None = None
        self._last_kind = ""

    def add_instructions(self, instructions: str) -> None:
        """Add the instructions as a system message. Call it before add()."""
        self._append({"role": "system", "content": instructions}, "instructions", {"content": "instructions"})

    def add(self, item: ConversationItem, origin: str) -> None:
        """Add an item.

        origin: path of the item in the request.
        """
        match item:
            case InputMessage(role="assistant"):
                message = self._assistant_message("message", origin)
                message["content"] = message.get("content", "") + item.text
                self._set_origin("content", f"{origin}.content")
            case ReasoningItem():
                message = self._assistant_message("reasoning", origin)
                if item.text:
                    message["reasoning_content"] = message.get("reasoning_content", "") + item.text
                    self._set_origin("reasoning_content", f"{origin}.content")
            case FunctionCall() | CustomToolCall():
                self._add_call(item, origin)
            case FunctionCallOutput() | CustomToolCallOutput():
                names = {"content": f"{origin}.output", "tool_call_id": f"{origin}.call_id"}
                message = {"role": "tool", "content": item.text, "tool_call_id": item.call_id}
                self._append(message, origin, names)
            case InputMessage():
                message = {"role": item.role, "content": item.text}
                self._append(message, origin, {"content": f"{origin}.content"})

    def end(self) -> list[dict[str, Any]]:
        """Return all messages."""
        self._end_assistant()
        return self.messages

    def origin(self, param: str) -> str | None:
        """Map a path within the chat's messages to a path in the request. Return None for other paths."""
        match = re.match(r"messages\[\d+\]", param)
        if match is None:
            return None
        rest = param
        while rest not in self._origins and len(rest) > match.end():
            rest = rest[: max(rest.rfind("."), rest.rfind("["), match.end())]
        origin = self._origins.get(rest)
        if origin is None or origin == PREVIOUS or origin == "instructions":
            return origin
        return origin + param[len(rest) :]

    def _append(self, message: dict[str, Any], origin: str, names: dict[str, str]) -> None:
        self._end_assistant()
        self.messages.append(message)
        self._origins[self._path] = origin
        for name, path in names.items():
            self._set_origin(name, path)

    def _assistant_message(self, kind: str, origin: str) -> dict[str, Any]:
        """Return the assistant message that an item belongs to.

        Reasoning, text and function calls are separate items but one message. Only function calls may follow
        the text; any other item after it starts a new message.
        """
        if self._assistant is None or (self._last_kind == "message" and kind != "call"):
            self._append({"role": "assistant"}, origin, {})
            self._assistant = self.messages[-1]
        self._last_kind = kind
        return self._assistant

    def _add_call(self, item: FunctionCall | CustomToolCall, origin: str) -> None:
        calls = self._assistant_message("call", origin).setdefault("tool_calls", [])
        arguments = as_arguments(item.input) if isinstance(item, CustomToolCall) else item.arguments
        function = {"name": function_name(item.namespace, item.name), "arguments": arguments}
        self._set_origin(f"tool_calls[{len(calls)}].function", origin)
        self._set_origin(f"tool_calls[{len(calls)}].id", f"{origin}.call_id")
        calls.append({"id": item.call_id, "type": "function", "function": function})

    def _end_assistant(self) -> None:
        if self._assistant is not None and not self._assistant.get("tool_calls"):
            self._assistant.setdefault("content", "")
        self._assistant = None

    @property
    def _path(self) -> str:
        return f"messages[{len(self.messages) - 1}]"

    def _set_origin(self, name: str, path: str) -> None:
        origin = self._origins[self._path]
        self._origins[f"{self._path}.{name}"] = origin if origin in (PREVIOUS, "instructions") else path


class ChatConversion:
    """The conversion of one Responses request to a chat request.

    previous: the stored turn that the request continues. items: the input items, with references resolved.
    """

    def __init__(
        self, body: ResponsesRequest, previous: Turn | None, items: Sequence[ConversationItem]
    ) -> None:
        self.body = body
        self.previous = previous
        self.items = items
        self.shown_tools = show_tools(body.tools)
        self._messages = MessageBuilder()

    @property
    def unreadable(self) -> list[str]:
        """The paths of reasoning that only another server can read."""
        return [
            f"input[{index}].encrypted_content"
            for index, item in enumerate(self.items)
            if isinstance(item, ReasoningItem) and item.is_foreign
        ]

    def chat(self) -> ChatRequest:
        """Return the chat request. Raises BadRequestError that names the fields of the Responses request."""
        if self.body.instructions is not None:
            self._messages.add_instructions(self.body.instructions)
        for item in self.previous.conversation() if self.previous else ():
            self._messages.add(item, PREVIOUS)
        for index, item in enumerate(self.items):
            self._messages.add(item, f"input[{index}]")
        given = {"messages": self._messages.end(), **_fields(self.body, self.shown_tools)}
        try:
            return validate(given, ChatRequest)
        except BadRequestError as fault:
            raise self.with_request_names(fault) from fault

    def with_request_names(self, fault: BadRequestError) -> BadRequestError:
        """Return an error about the chat request as one about the Responses request."""
        param = fault.param
        if param is None:
            return fault
        name = self.request_name(param)
        error = copy(fault)
        error.param, error.message = name, fault.message.replace(f"'{param}'", f"'{name}'")
        return error

    def request_name(self, param: str) -> str:
        """Map a path in the chat request to a path in the Responses request."""
        return self._messages.origin(param) or self._tool_origin(param) or request_name(param)

    def _tool_origin(self, param: str) -> str | None:
        """Map a path within the chat's tools to a path in the request. Return None for other paths."""
        match = re.match(r"tools\[(\d+)\](?:\.(?:function|custom)\b)?", param)
        return match and self.shown_tools[int(match[1])].origin + param[match.end() :]


def request_name(param: str) -> str:
    """Map a path in the chat request to a path in the Responses request."""
    for pattern, name in _NAMES:
        if pattern.match(param):
            param = pattern.sub(name, param, count=1)
    return param


def _fields(body: ResponsesRequest, tools: Sequence[ShownTool]) -> dict[str, Any]:
    """Return the fields of the chat request apart from its messages. None means the default."""
    return {
        "model": body.model,
        "stream": body.stream,
        "max_completion_tokens": body.max_output_tokens,
        **{name: getattr(body, name) for name in ("temperature", "top_p") if name in body.model_fields_set},
        "tools": [tool.as_chat() for tool in tools] or None,
        "tool_choice": _tool_choice(body.tool_choice) if tools or body.tool_choice != "auto" else None,
        "parallel_tool_calls": body.parallel_tool_calls if tools else None,
        "response_format": _response_format(body),
        "reasoning_effort": body.reasoning.effort,
        "truncation": body.truncation,
        "logprobs": body.wants_logprobs or None,
        "top_logprobs": (body.top_logprobs or 0) if body.wants_logprobs else None,
        **{name: getattr(body, name) for name in CHAT_FIELDS},
    }


def _tool_choice(choice: str | NamedFunction | NamedCustom | AllowedTools) -> str | dict[str, Any]:
    match choice:
        case NamedFunction() | NamedCustom():
            name = function_name(choice.namespace, choice.name)
            return {"type": "function", "function": {"name": name}}
        case AllowedTools():
            allowed = [_tool_choice(tool) for tool in choice.tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": allowed}}
    return choice


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    text_format = body.text.format
    if not isinstance(text_format, JsonSchemaFormat):
        return None if text_format.type == "text" else {"type": text_format.type}
    return {
        "type": "json_schema",
        "json_schema": {**_schema_fields(text_format), "schema": text_format.json_schema},
    }


def _schema_fields(text_format: JsonSchemaFormat) -> dict[str, Any]:
    return text_format.model_dump(include={"name", "description", "strict"}, exclude_none=True)
