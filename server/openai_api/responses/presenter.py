"""Format responses, whole or as a stream of events."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from pydantic_core import to_json

from reprise.engine.interface.events import TokenLogprob
from reprise.server.errors import ApiError, ContextLengthError
from reprise.server.openai_api.responses.items import encode_reasoning
from reprise.server.openai_api.responses.schemas import INCLUDE_REASONING, JsonSchemaFormat, ResponsesRequest
from reprise.server.output.parts import (
    CallArgumentsPart,
    CallStartPart,
    ChoiceOutput,
    EndPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from reprise.server.output.presenter import Json, OneChoicePresenter, ResponseHead, chat_logprobs
from reprise.server.output.text_parser import InputDecoder
from reprise.server.requests.tools import Tool

PREFIX = "resp_"
"""In front of a ResponseHead's id in the id of its response."""


def response_id(head: ResponseHead) -> str:
    """Return the id of the response to a request."""
    return f"{PREFIX}{head.id}"


def item_id(head: ResponseHead, prefix: str, index: int) -> str:
    """Return the id of an item.

    prefix: msg, rs, fc or fco, by the item's type.
    index: position among the request's own input items and the output items, counted together.
    """
    return f"{prefix}_{head.id}{index:04x}"


class OutputItems:
    """The output items of a response, built from its parts.

    items: the items so far. An item does not change after it is done.
    num_input: number of items in the request's input; the ids of output items are numbered from there.
    tools: the request's tools; output items have the client's own names for them.
    """

    def __init__(
        self, head: ResponseHead, num_input: int, includes_reasoning: bool, tools: Sequence[Tool] = ()
    ) -> None:
        self.items: list[Json] = []
        self._head = head
        self._num_input = num_input
        self._includes_reasoning = includes_reasoning
        self._tools = {tool.name: tool for tool in tools}
        self._decoder: InputDecoder | None = None
        self._open: Literal["message", "reasoning", "call"] | None = None
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def add(self, part: Part) -> Iterator[Json]:
        """Add the next part and yield its events, which have no sequence numbers yet."""
        match part:
            case TextPart() if part.text or part.logprobs:
                yield from self._ensure("message")
                self._texts.append(part.text)
                self._logprobs += part.logprobs
                logprobs = _logprobs_json(part.logprobs, with_bytes=False)
                yield self._event("output_text.delta", content_index=0, delta=part.text, logprobs=logprobs)
            case ReasoningPart() if part.text:
                yield from self._ensure("reasoning")
                self._texts.append(part.text)
                yield self._event("reasoning_text.delta", content_index=0, delta=part.text)
            case ToolCallPart():
                yield from self._start_call(part)
                yield from self._continue_call(part.arguments)
            case CallStartPart():
                yield from self._start_call(part)
            case CallArgumentsPart():
                yield from self._continue_call(part.text)
            case EndPart():
                yield from self._end(part)

    def interrupt(self) -> list[Json]:
        """Close the open item as incomplete and return all items, for a response that failed."""
        for _ in self._close("incomplete"):
            pass
        return self.items

    def _end(self, end: EndPart) -> Iterator[Json]:
        is_cut = end.finish_reason == "length"
        has_output = any(item["type"] != "reasoning" for item in self.items)
        # Clients expect at least an empty message, unless the reasoning was cut off.
        if not has_output and not (is_cut and self.items):
            yield from self._ensure("message")
        yield from self._close("incomplete" if is_cut else "completed")

    def _ensure(self, kind: Literal["message", "reasoning"]) -> Iterator[Json]:
        """Start an item of this kind, unless one is open."""
        if self._open == kind:
            return
        yield from self._close("completed")
        self._open, self._texts, self._logprobs = kind, [], []
        new_id = self._new_id("msg" if kind == "message" else "rs")
        item: Json = {"id": new_id, "type": kind, "status": "in_progress"}
        item |= {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
        yield self._added(item)
        yield self._event("content_part.added", content_index=0, part=self._content(kind))

    def _close(self, status: Literal["completed", "incomplete"]) -> Iterator[Json]:
        if self._open is None:
            return
        item = self.items[-1]
        kind, self._open = self._open, None
        if kind == "call":
            name, key = self._call_names
            item |= {"status": status, key: "".join(self._texts)}
            yield self._event(f"{name}.done", **{key: item[key]})
            yield self._output_item("done", item)
            return
        content = self._content(kind)
        if kind == "message":
            logprobs = _logprobs_json(self._logprobs, with_bytes=False)
            yield self._event("output_text.done", content_index=0, text=content["text"], logprobs=logprobs)
        else:
            yield self._event("reasoning_text.done", content_index=0, text=content["text"])
            if self._includes_reasoning:
                item["encrypted_content"] = encode_reasoning(content["text"])
        yield self._event("content_part.done", content_index=0, part=content)
        item |= {"status": status, "content": [content]}
        yield self._output_item("done", item)

    def _start_call(self, call: ToolCallPart | CallStartPart) -> Iterator[Json]:
        yield from self._close("completed")
        self._open, self._texts = "call", []
        shown = self._tools.get(call.name)
        is_custom = shown is not None and shown.is_custom
        self._decoder = InputDecoder() if is_custom else None
        item = {
            "id": self._new_id("ctc" if is_custom else "fc"),
            "type": "custom_tool_call" if is_custom else "function_call",
            "call_id": call.id,
            "name": call.name if shown is None else shown.own_name,
            "input" if is_custom else "arguments": "",
            "status": "in_progress",
        }
        if shown is not None and shown.namespace is not None:
            item["namespace"] = shown.namespace
        yield self._added(item)

    def _continue_call(self, arguments: str) -> Iterator[Json]:
        text = arguments if self._decoder is None else self._decoder.feed(arguments)
        if text:
            self._texts.append(text)
            yield self._event(f"{self._call_names[0]}.delta", delta=text)

    @property
    def _call_names(self) -> tuple[str, str]:
        """The name of the open call's events, and its item's field for what they bring."""
        if self._decoder is None:
            return "function_call_arguments", "arguments"
        return "custom_tool_call_input", "input"

    def _new_id(self, prefix: str) -> str:
        return item_id(self._head, prefix, self._num_input + len(self.items))

    def _content(self, kind: Literal["message", "reasoning"]) -> Json:
        text = "".join(self._texts)
        if kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = _logprobs_json(self._logprobs, with_bytes=True)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _added(self, item: Json) -> Json:
        self.items.append(item)
        return self._output_item("added", item)

    def _output_item(self, event: Literal["added", "done"], item: Json) -> Json:
        at = len(self.items) - 1
        return {"type": f"response.output_item.{event}", "output_index": at, "item": dict(item)}

    def _event(self, name: str, **fields: object) -> Json:
        where = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{name}", **where, **fields}


def _logprobs_json(entries: Sequence[TokenLogprob], with_bytes: bool) -> list[Json]:
    """Format log probabilities: with bytes for items, without bytes for events, as OpenAI does."""
    logprobs = chat_logprobs(entries)
    for one in () if with_bytes else [held for entry in logprobs for held in (entry, *entry["top_logprobs"])]:
        del one["bytes"]
    return logprobs


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


class ResponsePresenter(OneChoicePresenter):
    """Presenter for /v1/responses.

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
        self._output = OutputItems(head, num_input, INCLUDE_REASONING in body.include, tools)

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: Json, timings: Json) -> bytes:
        """See Presenter."""
        (output,) = outputs
        text = TextPart(output.text, tuple(output.logprobs))
        parts: list[Part] = [ReasoningPart(output.reasoning), text, *output.tool_calls, output.end]
        for part in parts:
            for _ in self._output.add(part):
                pass
        return to_json(self._finish(output.end, usage, timings))

    def format_opening(self, _usage: Json | None = None) -> bytes:
        """See Presenter."""
        created = {"type": "response.created", "response": self._response("in_progress", [])}
        return self._frame(created) + self.format_silence()

    def format_silence(self) -> bytes:
        """See Presenter. It is an event, as Codex ends a stream that has had no event for five minutes."""
        return self._frame({"type": "response.in_progress", "response": self._response("in_progress", [])})

    def _part(self, part: Part) -> bytes:
        return b"".join(map(self._frame, self._output.add(part)))

    def _ending(self, end: EndPart, usage: Json, timings: Json) -> bytes:
        response = self._finish(end, usage, timings)
        return self._frame({"type": f"response.{response['status']}", "response": response})

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

    def _finish(self, end: EndPart, usage: Json, timings: Json) -> Json:
        """Return the finished response, and store it."""
        is_cut = end.finish_reason == "length"
        response = self._response("incomplete" if is_cut else "completed", self._output.items)
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["completed_at"] = None if is_cut else int(time.time())
        response["usage"] = usage_json(usage)
        response["timings"] = timings_json(timings)
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


def timings_json(timings: Json) -> Json:
    """Return the timings with null for what is absent."""
    return timings | {name: timings.get(name) for name in ("translation", "streaming", "stopped")}


def usage_json(usage: Json) -> Json:
    """Return the usage as the API writes it. Cache writes are not counted: they are not billed."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
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
    text_format = body.text.format.model_dump()
    if isinstance(body.text.format, JsonSchemaFormat):
        text_format = body.text.format.model_dump(by_alias=True, exclude_none=True)
        text_format = {"strict": False, "name": "", **text_format}
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
        "text": {"format": text_format},
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
