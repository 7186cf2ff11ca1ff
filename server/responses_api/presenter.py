"""Format responses for the Responses API, whole or as a stream of events."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from pydantic_core import to_json

from reprise.server.conversation.model import Tool
from reprise.server.errors import ApiError, ContextLengthError
from reprise.server.output.openai_format import ResponseHead
from reprise.server.output.openai_objects import Timings, UsageBlock
from reprise.server.output.parsing.parts import (
    ChoiceOutput,
    EndPart,
    Part,
    ReasoningPart,
    TextPart,
    merge_adjacent,
)
from reprise.server.output.presenter import Events
from reprise.server.responses_api.ids import response_id
from reprise.server.responses_api.output_items import Json, OutputItems
from reprise.server.responses_api.schemas import JsonSchemaFormat, ResponsesRequest

_NOT_REPEATED: Json = {
    "instructions": None,
    "tools": [],
    "tool_choice": "auto",
    "metadata": {},
    "user": None,
    "safety_identifier": None,
    "prompt_cache_key": None,
}
StoreResponse = Callable[[Json], None]
"""Called with a response that finished normally, before its last event is sent."""


class ResponsePresenter:
    """Presenter for /v1/responses. A request has one choice.

    num_input: number of items in the request's input. tools: the tools that the model is shown.
    repeats: whether responses repeat those of the request's fields that may be long.
    """

    def __init__(
        self,
        head: ResponseHead,
        body: ResponsesRequest,
        num_input: int,
        store_response: StoreResponse,
        tools: Sequence[Tool],
        *,
        repeats: bool = True,
    ) -> None:
        self._head = head
        self._echo = _echo(body) | ({} if repeats else _NOT_REPEATED)
        self._store_response = store_response
        self._num_events = 0
        self._output = OutputItems(head, num_input, body.includes_reasoning, tools)

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter."""
        (output,) = outputs
        text = TextPart(output.text, tuple(output.logprobs))
        end = EndPart(output.finish_reason, output.stop, output.schema_valid)
        parts: list[Part] = [ReasoningPart(output.reasoning), text, *output.tool_calls, end]
        for part in parts:
            for _ in self._output.add(part):
                pass
        return to_json(self._finish(end, usage, timings))

    def format_opening(self, _usage: UsageBlock | None = None) -> bytes:
        """See Presenter."""
        created = {"type": "response.created", "response": self._response("in_progress", [])}
        return self._frame(created) + self.format_silence()

    def format_parts(self, events: Events) -> bytes:
        """See Presenter."""
        parts = merge_adjacent(part for _, part in events)
        return (
            b"".join(self._frame(e) for part in parts for e in self._output.add(part))
            or self.format_silence()
        )

    def format_silence(self) -> bytes:
        """See Presenter. It is an event, as Codex ends a stream that has had no event for five minutes."""
        return self._frame({"type": "response.in_progress", "response": self._response("in_progress", [])})

    def format_end(self, events: Events, usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter."""
        frames = self.format_parts(events)
        end = next(part for _, part in events if isinstance(part, EndPart))
        response = self._finish(end, usage, timings)
        return frames + self._frame({"type": f"response.{response['status']}", "response": response})

    def format_error(self, fault: ApiError) -> bytes:
        """See Presenter."""
        fault = fault.renamed(ResponsesRequest.names)
        error = {"type": "error", "code": fault.code, "message": fault.message, "param": fault.param}
        response = self._response("failed", self._output.interrupt())
        code = "invalid_prompt" if fault.status < 500 else "server_error"
        # Codex condenses the conversation after this code here, and after nothing else.
        code = fault.CODE if isinstance(fault, ContextLengthError) else code
        response["error"] = {"code": code, "message": fault.message}
        return self._frame(error) + self._frame({"type": "response.failed", "response": response})

    def _finish(self, end: EndPart, usage: UsageBlock, timings: Timings) -> Json:
        """Return the finished response, and store it."""
        is_cut = end.finish_reason == "length"
        response = self._response("incomplete" if is_cut else "completed", self._output.items)
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["completed_at"] = None if is_cut else int(time.time())
        response["usage"] = usage_json(usage)
        response["timings"] = timings.model_dump()
        if end.schema_valid is not None:
            response["schema_valid"] = end.schema_valid
        self._store_response(response)
        return response

    def _response(self, status: str, output: list[Json]) -> Json:
        return {
            "id": response_id(self._head),
            "object": "response",
            "created_at": self._head.created,
            "completed_at": None,
            "status": status,
            "model": self._head.model,
            "output": output,
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **self._echo,
        }

    def _frame(self, event: Json) -> bytes:
        self._num_events += 1
        return frame(event, self._num_events - 1)


def usage_json(usage: UsageBlock) -> Json:
    """Return the usage as the API writes it; image_tokens, if there are any, are not in OpenAI's API."""
    num_image = usage.prompt_tokens_details.image_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        # Cache writes are not counted: they are not billed.
        "input_tokens_details": {
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "cache_write_tokens": 0,
            **({"image_tokens": num_image} if num_image else {}),
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def frame(event: Json, number: int) -> bytes:
    """Return an event as one of a server-sent stream. number: the event's position in the stream."""
    kind = event["type"]
    return (
        f"event: {kind}\ndata: ".encode()
        + to_json({"type": kind, "sequence_number": number, **event})
        + b"\n\n"
    )


def _echo(body: ResponsesRequest) -> Json:
    """Return the request fields that a response repeats."""
    return {
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "tools": _tools(body.tools),
        "tool_choice": body.tool_choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        "text": _text(body),
        "reasoning": {"effort": body.reasoning.effort, "summary": body.reasoning.summary},
        "truncation": body.truncation or "disabled",
        "background": False,
        "service_tier": "default",
        "metadata": body.metadata,
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
    }


def _tools(given: Any) -> list[Json]:
    """Return the tools that the model is shown, as the API writes them."""
    tools = [given] if isinstance(given, dict) else given
    dicts = (tool for tool in tools if isinstance(tool, dict))
    shown = [tool for tool in dicts if tool.get("type", "function") in ("function", "custom", "namespace")]
    return [tool for tool in map(_tool, shown) if tool["name"]]


def _tool(given: Json) -> Json:
    kind = given.get("type") or "function"
    inner = given[kind] if isinstance(given.get(kind), dict) else given
    shown = {"type": kind, "name": inner.get("name"), "description": inner.get("description")}
    if kind == "namespace":
        return shown | {"description": shown["description"] or "", "tools": _tools(given.get("tools") or [])}
    if kind == "custom":
        return shown | {"format": inner.get("format") or {"type": "text"}}
    return shown | {"parameters": inner.get("parameters"), "strict": inner.get("strict") is True}


def _text(body: ResponsesRequest) -> Json:
    text_format = body.text.format
    shown = text_format.model_dump()
    if isinstance(text_format, JsonSchemaFormat):
        shown = {"strict": False, "name": "", **text_format.model_dump(by_alias=True, exclude_none=True)}
    return {"format": shown}
