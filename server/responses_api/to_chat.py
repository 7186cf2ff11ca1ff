"""Convert a Responses request to a chat request, and map the chat's errors back to the request's fields."""

import re
from collections.abc import Sequence
from copy import copy
from typing import Any

from server.conversation.from_items import SILENT, from_items
from server.conversation.model import Message, Tool
from server.conversation.settled import check_answerable, settle
from server.conversation.tool_choice import read_choice
from server.conversation.tools import ToolReader
from server.errors import BadRequestError
from server.requests.chat import ChatRequest
from server.responses_api.schemas import JsonSchemaFormat, ResponsesRequest
from server.responses_api.store import Turn
from server.validation.field_errors import validate_known
from server.validation.notes import Notes

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
    (re.compile(r"response_format\.json_schema\b"), "text.format"),
    (re.compile(r"response_format\b"), "text.format"),
    (re.compile(r"reasoning_effort\b"), "reasoning.effort"),
    (re.compile(r"logprobs\b"), "include"),
)
PREVIOUS = "previous_response_id"


class ChatConversion:
    """The conversion of one Responses request to a chat request.

    previous: the stored turn that the request continues, whose items are earlier.
    items: the input items, with references resolved.
    notes: get what is left out, shown as text or understood.
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
        self._choice = read_choice(body.tool_choice, "tool_choice", reader.tools, reader.left_out, notes)
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
        """Return the chat request. Raises BadRequestError that names the fields of the Responses request."""
        given = {
            **_fields(self.body, self.shown_tools),
            "messages": self._messages,
            "tool_choice": self._choice,
        }
        notes = Notes(self._notes.refuses)
        try:
            chat = validate_known(given, ChatRequest, notes)
        except BadRequestError as fault:
            raise with_request_names(fault) from fault
        for path, became in notes.paths.items():
            self._notes.paths.setdefault(request_name(path), became)
        return chat


def with_request_names(fault: BadRequestError) -> BadRequestError:
    """Return an error about the chat request as one about the Responses request."""
    param = fault.param
    if param is None:
        return fault
    name = request_name(param)
    error = copy(fault)
    error.param, error.message = name, fault.message.replace(f"'{param}'", f"'{name}'")
    return error


def request_name(param: str) -> str:
    """Map a path in the chat request to a path in the Responses request."""
    for pattern, name in _NAMES:
        if pattern.match(param):
            param = pattern.sub(name, param, count=1)
    return param


def _fields(body: ResponsesRequest, tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the fields of the chat request apart from its messages. None means the default."""
    return {
        "model": body.model,
        "stream": body.stream,
        "max_completion_tokens": body.max_output_tokens,
        **{name: getattr(body, name) for name in ("temperature", "top_p") if name in body.model_fields_set},
        "tools": tuple(tools),
        "parallel_tool_calls": body.parallel_tool_calls if tools else None,
        "response_format": _response_format(body),
        "reasoning_effort": body.reasoning.effort,
        "truncation": body.truncation,
        "logprobs": body.wants_logprobs or None,
        "top_logprobs": (body.top_logprobs or 0) if body.wants_logprobs else None,
        **{name: getattr(body, name) for name in CHAT_FIELDS},
    }


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
