"""Convert a Responses request to a chat request."""

from collections.abc import Sequence
from typing import Any

from reprise.server.conversation.from_items import SILENT, from_items
from reprise.server.conversation.model import Message, Tool
from reprise.server.conversation.settled import check_answerable, settle
from reprise.server.conversation.tool_choice import read_choice
from reprise.server.conversation.tools import ToolReader
from reprise.server.errors import BadRequestError, requested_name
from reprise.server.requests.chat import ChatRequest, extended
from reprise.server.responses_api.schemas import JsonSchemaFormat, ResponsesRequest
from reprise.server.responses_api.store import Turn
from reprise.server.validation.field_errors import validate_known
from reprise.server.validation.notes import Notes

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
        """Return the chat request. Raises BadRequestError, which has the chat request's field names."""
        given = {
            **_fields(self.body, self.shown_tools),
            "messages": self._messages,
            "tool_choice": self._choice,
        }
        notes = Notes(self._notes.refuses)
        chat = validate_known(given, ChatRequest, notes)
        for path, became in notes.paths.items():
            self._notes.paths.setdefault(requested_name(path, ResponsesRequest.names), became)
        return chat


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
        **extended(body),
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
