"""A request of the Responses API as the chat that it means, and the chat's errors in the request's words."""

import re
from collections.abc import Sequence
from typing import Any

from server.errors import BadRequestError
from server.requests.chat import ChatRequest
from server.responses_api.items import (
    ConversationItem,
    FunctionCall,
    FunctionCallOutput,
    InputMessage,
    ReasoningItem,
)
from server.responses_api.schemas import JsonSchemaFormat, ResponsesRequest
from server.responses_api.store import Turn
from server.responses_api.tools import AllowedTools, NamedFunction
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
    "draft",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "chat_template_kwargs",
)
"""Extras that chat completions check."""

_NAMES = (
    (re.compile(r"messages\b"), "input"),
    (re.compile(r"max_(completion_)?tokens\b"), "max_output_tokens"),
    (re.compile(r"(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"tool_choice\.(function|allowed_tools)\b"), "tool_choice"),
    (re.compile(r"(tool_choice\.tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"response_format\.json_schema\b"), "text.format"),
    (re.compile(r"response_format\b"), "text.format"),
    (re.compile(r"reasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"logprobs\b"), "include"),
)
PREVIOUS = "previous_response_id"


class MessageBuilder:
    """Messages of a chat, made from items.

    Where each comes from is noted, so that an error about a message names the item.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._origins: dict[str, str] = {}
        self._answer: dict[str, Any] | None = None
        self._last_kind = ""

    def instruct(self, instructions: str) -> None:
        """Begin with a system message."""
        self._append({"role": "system", "content": instructions}, "instructions", {"content": "instructions"})

    def add(self, item: ConversationItem, origin: str) -> None:
        """Add what was said. origin: path of the item in the request."""
        match item:
            case InputMessage(role="assistant"):
                answer = self._add_to_answer("message", origin)
                answer["content"] = answer.get("content", "") + item.text
                self._note("content", f"{origin}.content")
            case ReasoningItem():
                answer = self._add_to_answer("reasoning", origin)
                if item.text:
                    answer["reasoning_content"] = answer.get("reasoning_content", "") + item.text
                    self._note("reasoning_content", f"{origin}.content")
            case FunctionCall():
                self._add_call(item, origin)
            case FunctionCallOutput():
                names = {"content": f"{origin}.output", "tool_call_id": f"{origin}.call_id"}
                message = {"role": "tool", "content": item.text, "tool_call_id": item.call_id}
                self._append(message, origin, names)
            case InputMessage():
                message = {"role": item.role, "content": item.text}
                self._append(message, origin, {"content": f"{origin}.content"})

    def end(self) -> list[dict[str, Any]]:
        """All messages."""
        self._end_answer()
        return self.messages

    def origin(self, param: str) -> str | None:
        """Where in the request a path into the chat's messages leads; None if it does not."""
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
        self._end_answer()
        self.messages.append(message)
        self._origins[self._here] = origin
        for name, path in names.items():
            self._note(name, path)

    def _add_to_answer(self, kind: str, origin: str) -> dict[str, Any]:
        """The answer that an item belongs to.

        One answer may be several items: thinking, text, calls. After its text only calls follow, so what
        else follows a message begins another answer.
        """
        if self._answer is None or (self._last_kind == "message" and kind != "call"):
            self._append({"role": "assistant"}, origin, {})
            self._answer = self.messages[-1]
        self._last_kind = kind
        return self._answer

    def _add_call(self, item: FunctionCall, origin: str) -> None:
        calls = self._add_to_answer("call", origin).setdefault("tool_calls", [])
        function = {"name": item.name, "arguments": item.arguments}
        self._note(f"tool_calls[{len(calls)}].function", origin)
        self._note(f"tool_calls[{len(calls)}].id", f"{origin}.call_id")
        calls.append({"id": item.call_id, "type": "function", "function": function})

    def _end_answer(self) -> None:
        if self._answer is not None and not self._answer.get("tool_calls"):
            self._answer.setdefault("content", "")
        self._answer = None

    @property
    def _here(self) -> str:
        return f"messages[{len(self.messages) - 1}]"

    def _note(self, name: str, path: str) -> None:
        origin = self._origins[self._here]
        self._origins[f"{self._here}.{name}"] = origin if origin in (PREVIOUS, "instructions") else path


class ChatConversion:
    """One request, and the chat that it means.

    previous: the turn that it continues. said: its own items, references resolved.
    """

    def __init__(
        self, body: ResponsesRequest, previous: Turn | None, said: Sequence[ConversationItem]
    ) -> None:
        self.body = body
        self.previous = previous
        self.said = said
        self._conversation = MessageBuilder()

    def chat(self) -> ChatRequest:
        """The chat. Raises BadRequestError in the request's words."""
        if self.body.instructions is not None:
            self._conversation.instruct(self.body.instructions)
        for item in self.previous.conversation() if self.previous else ():
            self._conversation.add(item, PREVIOUS)
        for index, item in enumerate(self.said):
            self._conversation.add(item, f"input[{index}]")
        given = {"messages": self._conversation.end(), **_fields(self.body)}
        try:
            return validate(given, ChatRequest)
        except BadRequestError as fault:
            raise self.with_request_names(fault) from fault

    def with_request_names(self, fault: BadRequestError) -> BadRequestError:
        """An error about the chat as one about the request."""
        param = fault.param
        if param is None:
            return fault
        name = self._conversation.origin(param) or request_name(param)
        message = fault.message.replace(f"'{param}'", f"'{name}'")
        return BadRequestError(message, param=name, code=fault.code, headers=fault.headers)


def request_name(param: str) -> str:
    """A path into a chat's body as a path into the request."""
    for pattern, name in _NAMES:
        if pattern.match(param):
            param = pattern.sub(name, param, count=1)
    return param


def _fields(body: ResponsesRequest) -> dict[str, Any]:
    """All that is not said. Null means default, here and in chats."""
    return {
        "model": body.model,
        "stream": body.stream,
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "tools": [_tool(tool.model_dump(exclude_unset=True)) for tool in body.tools] or None,
        "tool_choice": _tool_choice(body.tool_choice) if body.tools or body.tool_choice != "auto" else None,
        "parallel_tool_calls": body.parallel_tool_calls if body.tools else None,
        "response_format": _response_format(body),
        "reasoning_effort": body.reasoning.effort,
        "logprobs": body.wants_logprobs or None,
        "top_logprobs": (body.top_logprobs or 0) if body.wants_logprobs else None,
        **{name: getattr(body, name) for name in CHAT_FIELDS},
    }


def _tool(given: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: given[name] for name in names if name in given}}


def _tool_choice(choice: str | NamedFunction | AllowedTools) -> str | dict[str, Any]:
    match choice:
        case NamedFunction():
            return {"type": "function", "function": {"name": choice.name}}
        case AllowedTools():
            allowed = [_tool_choice(tool) for tool in choice.tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": allowed}}
    return choice


def _response_format(body: ResponsesRequest) -> dict[str, Any] | None:
    wanted = body.text.format
    if not isinstance(wanted, JsonSchemaFormat):
        return None if wanted.type == "text" else {"type": wanted.type}
    return {"type": "json_schema", "json_schema": {**_schema_fields(wanted), "schema": wanted.json_schema}}


def _schema_fields(wanted: JsonSchemaFormat) -> dict[str, Any]:
    return wanted.model_dump(include={"name", "description", "strict"}, exclude_none=True)
