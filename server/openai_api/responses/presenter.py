"""Format responses, whole or as a stream of events."""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Literal

from pydantic_core import from_json, to_json

from reprise.engine.interface.events import TokenLogprob
from reprise.server.errors import ApiError, ContextLengthError, RequestFailedError
from reprise.server.http.error_responses import server_sent_event
from reprise.server.openai_api.responses.items import CALLS, PREFIXES, as_listed, kind_of
from reprise.server.openai_api.responses.schemas import INCLUDE_REASONING, JsonSchemaFormat, ResponsesRequest
from reprise.server.openai_api.responses.store import StoredResponse
from reprise.server.output.parts import (
    CallArgumentsPart,
    ChoiceOutput,
    EndPart,
    Events,
    FinishReason,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from reprise.server.output.presenter import (
    KEEP_ALIVE,
    InputDecoder,
    Json,
    OneChoicePresenter,
    ResponseHead,
    chat_logprobs,
)
from reprise.server.requests.messages import encode_reasoning
from reprise.server.requests.tools import Tool

PREFIX = "resp_"
"""In front of a ResponseHead's id in the id of its response."""


def response_id(head: ResponseHead) -> str:
    """Return the id of the response to a request."""
    return f"{PREFIX}{head.id}"


def item_id(head: ResponseHead, kind: str, index: int) -> str:
    """Return the id of an item.

    kind: its type. index: position among the request's own input items and the output items together.
    """
    return f"{PREFIXES.get(kind, 'item')}_{head.id}{index:04x}"


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
        self._open: str | None = None
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    def add(self, part: Part) -> Iterator[Json]:
        """Add the next part and yield its events, which have no sequence numbers yet."""
        match part:
            case TextPart() if part.text or part.logprobs:
                yield from self._ensure("message")
                self._texts.append(part.text)
                self._logprobs += part.logprobs
                logprobs = _without_bytes(part.logprobs)
                yield self._event("output_text.delta", content_index=0, delta=part.text, logprobs=logprobs)
            case ReasoningPart() if part.text:
                yield from self._ensure("reasoning")
                self._texts.append(part.text)
                yield self._event("reasoning_text.delta", content_index=0, delta=part.text)
            case ToolCallPart():
                yield from self._start_call(part)
                yield from self._continue_call(part.arguments)
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
        is_call_cut = self._open in CALLS and end.finish_reason != "tool_calls"
        yield from self._close("incomplete" if is_cut or is_call_cut else "completed")

    def _ensure(self, kind: Literal["message", "reasoning"]) -> Iterator[Json]:
        """Start an item of this kind, unless one is open."""
        if self._open == kind:
            return
        yield from self._close("completed")
        head: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
        yield self._added(kind, status="in_progress", **head, content=[])
        yield self._event("content_part.added", content_index=0, part=self._content(kind))

    def _close(self, status: Literal["completed", "incomplete"]) -> Iterator[Json]:
        if self._open is None:
            return
        item, text = self.items[-1], "".join(self._texts)
        kind, self._open = self._open, None
        if kind in CALLS:
            item |= {"status": status, CALLS[kind]: text}
            yield self._event(f"{kind}_{CALLS[kind]}.done", **{CALLS[kind]: text})
        else:
            content = self._content(kind)
            if kind == "message":
                logprobs = _without_bytes(self._logprobs)
                yield self._event("output_text.done", content_index=0, text=text, logprobs=logprobs)
            else:
                yield self._event("reasoning_text.done", content_index=0, text=text)
                if self._includes_reasoning:
                    item["encrypted_content"] = encode_reasoning(text)
            yield self._event("content_part.done", content_index=0, part=content)
            item |= {"status": status, "content": [content]}
        yield self._output_item("done")

    def _start_call(self, call: ToolCallPart) -> Iterator[Json]:
        yield from self._close("completed")
        shown = self._tools.get(call.name)
        is_custom = shown is not None and shown.is_custom
        kind = "custom_tool_call" if is_custom else "function_call"
        self._decoder = InputDecoder() if is_custom else None
        name = call.name if shown is None else shown.own_name
        fields = {"call_id": call.id, "name": name, CALLS[kind]: "", "status": "in_progress"}
        if shown is not None and shown.namespace is not None:
            fields["namespace"] = shown.namespace
        yield self._added(kind, **fields)

    def _continue_call(self, arguments: str) -> Iterator[Json]:
        text = arguments if self._decoder is None else self._decoder.feed(arguments)
        if text:
            self._texts.append(text)
            kind = self.items[-1]["type"]
            yield self._event(f"{kind}_{CALLS[kind]}.delta", delta=text)

    def _content(self, kind: str) -> Json:
        text = "".join(self._texts)
        if kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = chat_logprobs(self._logprobs)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _added(self, kind: str, **fields: object) -> Json:
        """Begin an item; return the event that says so."""
        self._open, self._texts, self._logprobs = kind, [], []
        new_id = item_id(self._head, kind, self._num_input + len(self.items))
        self.items.append({"id": new_id, "type": kind, **fields})
        return self._output_item("added")

    def _output_item(self, event: Literal["added", "done"]) -> Json:
        at, item = len(self.items) - 1, dict(self.items[-1])
        return {"type": f"response.output_item.{event}", "output_index": at, "item": item}

    def _event(self, name: str, **fields: object) -> Json:
        where = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{name}", **where, **fields}


def _without_bytes(entries: Sequence[TokenLogprob]) -> list[Json]:
    """Format log probabilities as OpenAI's events have them; items have bytes too."""
    logprobs = chat_logprobs(entries)
    for one in [held for entry in logprobs for held in (entry, *entry["top_logprobs"])]:
        del one["bytes"]
    return logprobs


_REPEATED = """
    instructions previous_response_id max_output_tokens max_tool_calls temperature top_p top_logprobs tools
    tool_choice parallel_tool_calls text reasoning truncation background service_tier metadata user
    safety_identifier prompt_cache_key prompt_cache_retention
"""
"""The request's fields that a response repeats, in this order."""
_MAY_BE_LONG = "instructions tools tool_choice metadata user safety_identifier prompt_cache_key"


QUIET_S = 60.0
"""Seconds without an event after which one is sent although the model writes: a call may show nothing yet."""


class ResponsePresenter(OneChoicePresenter):
    """Presenter for /v1/responses.

    num_input: number of items in the request's input. tools: the tools that the model is shown.
    store_response: called with a response that finished normally, before its last event is sent.
    repeats: whether responses repeat the request's long fields.
    """

    def __init__(
        self,
        head: ResponseHead,
        body: ResponsesRequest,
        num_input: int,
        store_response: Callable[[Json], None],
        tools: Sequence[Tool],
        *,
        repeats: bool = True,
    ) -> None:
        self._head = head
        if not repeats:
            fields = ResponsesRequest.model_fields
            body = body.model_copy(update={name: fields[name].get_default() for name in _MAY_BE_LONG.split()})
        self._echo = _echo(body)
        self._store_response = store_response
        self._numbers = count()
        self._last_event_s = time.monotonic()
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

    def format_parts(self, events: Events) -> bytes:
        """See Presenter. If the parts show nothing, this is a comment: an event would repeat the request."""
        frames = self._frames(events)
        is_quiet = time.monotonic() > self._last_event_s + QUIET_S
        return frames or (self.format_silence() if is_quiet else KEEP_ALIVE)

    def format_silence(self) -> bytes:
        """See Presenter. This sends an event, because Codex ends a stream after five minutes without one."""
        return self._frame({"type": "response.in_progress", "response": self._response("in_progress", [])})

    def _part(self, part: Part) -> bytes:
        return b"".join(map(self._frame, self._output.add(part)))

    def _ending(self, end: EndPart, usage: Json, timings: Json) -> bytes:
        response = self._finish(end, usage, timings)
        return self._frame({"type": f"response.{response['status']}", "response": response})

    def format_error(self, told: ApiError) -> bytes:
        """See Presenter."""
        error = {"type": "error", "code": told.code, "message": told.message, "param": told.param}
        response = self._response("failed", self._output.interrupt())
        code = "invalid_prompt" if told.status < 500 else "server_error"
        # Codex condenses the conversation after this code here, and after nothing else.
        code = told.CODE if isinstance(told, ContextLengthError) else code
        response["error"] = {"code": code, "message": told.message}
        return self._frame(error) + self._frame({"type": "response.failed", "response": response})

    def _finish(self, end: EndPart, usage: Json, timings: Json) -> Json:
        """Return the finished response, and store it."""
        is_cut = end.finish_reason == "length"
        response = self._response("incomplete" if is_cut else "completed", self._output.items)
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response["completed_at"] = None if is_cut else int(time.time())
        response["usage"] = _usage(usage)
        response["timings"] = _timings(timings)
        response |= end.checked
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
        self._last_event_s = time.monotonic()
        return _event_frame(event, next(self._numbers))


class CompactionPresenter(ResponsePresenter):
    """Presenter for /v1/responses/compact, which does not stream.

    items: the conversation's items. context_tokens: the size of the model's context.
    """

    def __init__(
        self, head: ResponseHead, body: ResponsesRequest, items: Sequence[Any], context_tokens: int
    ) -> None:
        super().__init__(head, body, len(items), lambda _: None, ())
        self._items, self._context_tokens = items, context_tokens
        self._most = body.max_output_tokens or 0

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: Json, timings: Json) -> bytes:
        """See Presenter. Raises ApiError without a usable summary: the client must keep its conversation.

        A summary that fills its share of the context is usable, even if it was going to be longer.
        """
        (output,) = outputs
        summary, num_tokens = output.text.strip(), usage["completion_tokens"]
        if timings.get("stopped") == "loop":
            message = "The model only repeated itself. Go on with the conversation as it is."
            raise RequestFailedError(message, code="no_summary")
        if output.end.finish_reason == "length" and num_tokens < self._most:
            way_out = f"It left only {num_tokens} tokens for a summary."
            raise ContextLengthError(usage["prompt_tokens"], self._context_tokens, "input", way_out)
        if not summary:
            message = "The model wrote no summary. Go on with the conversation as it is."
            raise RequestFailedError(message, code="no_summary")
        head = self._head
        users = [item for item in self._items if _is_users(item)]
        kept = [as_listed(item, item_id(head, "message", index)) for index, item in enumerate(users)]
        compaction = {
            "id": f"cmp_{head.id}{len(kept):04x}",
            "type": "compaction",
            "encrypted_content": encode_reasoning(summary),
        }
        return to_json(
            {
                "id": response_id(head),
                "object": "response.compaction",
                "created_at": head.created,
                "output": [*kept, compaction],
                "usage": _usage(usage),
                "timings": _timings(timings),
            }
        )


def _is_users(item: Any) -> bool:
    role = item.get("role") if isinstance(item, dict) else None
    return kind_of(item) == "message" and (role or "user") == "user"


def _timings(timings: Json) -> Json:
    """Return the timings with null for what is absent."""
    return timings | {name: timings.get(name) for name in ("translation", "streaming", "stopped")}


def _usage(usage: Json) -> Json:
    """Return the usage as the API writes it. Cache writes are not counted: they are not billed."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"] | {"cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }


def _event_frame(event: Json, number: int) -> bytes:
    """Return an event as one of a server-sent stream. number: the event's position in the stream."""
    kind = event["type"]
    return server_sent_event(to_json({"type": kind, "sequence_number": number, **event}), kind)


def _echo(body: ResponsesRequest) -> Json:
    """Return the request fields that a response repeats."""
    text_format = body.text.format.model_dump(by_alias=True, exclude_none=True)
    if isinstance(body.text.format, JsonSchemaFormat):
        text_format = {"strict": False, "name": "", **text_format}
    return {name: getattr(body, name) for name in _REPEATED.split()} | {
        "top_logprobs": body.top_logprobs or 0,
        "tools": _tools(body.tools),
        "text": {"format": text_format},
        "reasoning": {"effort": body.reasoning.effort, "summary": body.reasoning.summary},
        "truncation": body.truncation or "disabled",
        "background": False,
        "service_tier": "default",
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


def replay(stored: StoredResponse, after: int | None) -> bytes:
    """Return the events of a stored response whose sequence numbers are higher than after; None for all.

    Texts come whole, so there are fewer events than in the first stream. If after is beyond all of them,
    the last event still comes: a client that lost the end of the first stream must see it.
    """
    response = from_json(stored.body)
    events = list(enumerate(_events(response, stored.turn.num_input)))
    kept = events if after is None else [(number, event) for number, event in events if number > after]
    if not kept and after is not None:
        kept = [(after + 1, events[-1][1])]
    return b"".join(_event_frame(event, number) for number, event in kept)


def _events(response: Json, num_input: int) -> Iterator[Json]:
    started = {key: value for key, value in response.items() if key not in ("timings", "schema_valid")}
    started |= dict.fromkeys(("completed_at", "incomplete_details", "usage"))
    started |= {"status": "in_progress", "output": []}
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": started}
    head = ResponseHead(response["id"].removeprefix(PREFIX), response["created_at"], response["model"], "")
    given: list[Json] = response["output"]
    # The tool of a call is named by the item's position.
    tools = [
        Tool(
            str(index),
            None,
            {},
            is_custom=item["type"] == "custom_tool_call",
            own_name=item["name"],
            namespace=item.get("namespace"),
        )
        for index, item in enumerate(given)
        if "call_id" in item
    ]
    output = OutputItems(head, num_input, any("encrypted_content" in item for item in given), tools)
    for part in _parts(given):
        yield from output.add(part)
    # In a whole response, only a call that was cut is incomplete.
    is_cut = bool(given) and given[-1].get("status") == "incomplete"
    reason: FinishReason = "stop" if is_cut else "tool_calls"
    yield from output.add(EndPart("length" if response["status"] == "incomplete" else reason))
    yield {"type": f"response.{response['status']}", "response": response}


def _parts(items: list[Json]) -> Iterator[Part]:
    """Yield the parts that the items were built from."""
    for index, item in enumerate(items):
        match item["type"]:
            case "message":
                (content,) = item["content"]
                yield TextPart(content["text"], tuple(map(_logprob, content["logprobs"])))
            case "reasoning":
                yield ReasoningPart(item["content"][0]["text"])
            case "custom_tool_call":
                yield ToolCallPart(item["call_id"], str(index), to_json({"input": item["input"]}).decode())
            case _:
                yield ToolCallPart(item["call_id"], str(index), item["arguments"])


def _logprob(entry: dict[str, Any]) -> TokenLogprob:
    """Restore the engine's form of a log probability, without the token id, which is not stored."""
    top = tuple((0, bytes(one["bytes"]), one["logprob"]) for one in entry["top_logprobs"])
    return TokenLogprob(0, bytes(entry["bytes"]), entry["logprob"], top)
