"""Build the output items of a response, and the events that stream them."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from reprise.engine.interface.events import TokenLogprob
from reprise.server.conversation.from_items import encode_reasoning
from reprise.server.conversation.model import Tool
from reprise.server.output.logprobs import chat_logprobs
from reprise.server.output.openai_format import ResponseHead
from reprise.server.output.parsing.parts import (
    CallArgumentsPart,
    CallStartPart,
    EndPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from reprise.server.responses_api.ids import item_id
from reprise.server.tool_formats.free_text import InputDecoder

Json = dict[str, Any]


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
                if self._open != "message":
                    yield from self._close("completed")
                    yield from self._start("message")
                self._texts.append(part.text)
                self._logprobs += part.logprobs
                logprobs = _logprobs_json(part.logprobs, with_bytes=False)
                yield self._event("output_text.delta", content_index=0, delta=part.text, logprobs=logprobs)
            case ReasoningPart() if part.text:
                if self._open != "reasoning":
                    yield from self._close("completed")
                    yield from self._start("reasoning")
                self._texts.append(part.text)
                yield self._event("reasoning_text.delta", content_index=0, delta=part.text)
            case ToolCallPart():
                yield from self._close("completed")
                yield from self._start_call(part)
                yield from self._continue_call(part.arguments)
            case CallStartPart():
                yield from self._close("completed")
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
            yield from self._close("completed")
            yield from self._start("message")
        yield from self._close("incomplete" if is_cut else "completed")

    def _start(self, kind: Literal["message", "reasoning"]) -> Iterator[Json]:
        self._open, self._texts, self._logprobs = kind, [], []
        new_id = self._new_id("msg" if kind == "message" else "rs")
        item: Json = {"id": new_id, "type": kind, "status": "in_progress"}
        item |= {"role": "assistant", "content": []} if kind == "message" else {"summary": [], "content": []}
        yield self._added(item)
        yield self._event("content_part.added", content_index=0, part=self._content())

    def _close(self, status: Literal["completed", "incomplete"]) -> Iterator[Json]:
        if self._open is None:
            return
        item = self.items[-1]
        if self._open == "call":
            self._open, whole = None, "".join(self._texts)
            item["status"] = status
            if self._decoder is None:
                item["arguments"] = whole
                yield self._event("function_call_arguments.done", arguments=whole)
            else:
                item["input"] = whole
                yield self._event("custom_tool_call_input.done", input=whole)
            yield self._done(item)
            return
        content = self._content()
        if self._open == "message":
            logprobs = _logprobs_json(self._logprobs, with_bytes=False)
            yield self._event("output_text.done", content_index=0, text=content["text"], logprobs=logprobs)
        else:
            yield self._event("reasoning_text.done", content_index=0, text=content["text"])
            if self._includes_reasoning:
                item["encrypted_content"] = encode_reasoning(content["text"])
        yield self._event("content_part.done", content_index=0, part=content)
        self._open = None
        item |= {"status": status, "content": [content]}
        yield self._done(item)

    def _start_call(self, call: ToolCallPart | CallStartPart) -> Iterator[Json]:
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
            is_custom = self._decoder is not None
            name = "custom_tool_call_input.delta" if is_custom else "function_call_arguments.delta"
            yield self._event(name, delta=text)

    def _new_id(self, prefix: str) -> str:
        return item_id(self._head, prefix, self._num_input + len(self.items))

    def _content(self) -> Json:
        text = "".join(self._texts)
        if self._open == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = _logprobs_json(self._logprobs, with_bytes=True)
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _added(self, item: Json) -> Json:
        self.items.append(item)
        return {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(item)}

    def _done(self, item: Json) -> Json:
        return {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": dict(item)}

    def _event(self, name: str, **fields: object) -> Json:
        where = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{name}", **where, **fields}


def _logprobs_json(entries: Sequence[TokenLogprob], with_bytes: bool) -> list[Json]:
    """Format log probabilities: with bytes for items, without bytes for events, as OpenAI does."""
    excluded: Any = None if with_bytes else {"bytes": True, "top_logprobs": {"__all__": {"bytes"}}}
    return [entry.model_dump(exclude=excluded) for entry in chat_logprobs(entries).content]
