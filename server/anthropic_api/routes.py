"""POST /v1/messages and /v1/messages/count_tokens: the routes, and how messages are formatted."""

from collections.abc import Sequence
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic_core import from_json, to_json

from reprise.server.anthropic_api.schemas import (
    ConversationFields,
    CountTokensRequest,
    MessagesRequest,
    to_chat_request,
)
from reprise.server.generation.answer import answer, response_head
from reprise.server.generation.prepare import Prepared, count_prompt_tokens, prepare_chat
from reprise.server.generation.service import LeasedModel, lease_for
from reprise.server.http.body import read_body
from reprise.server.http.error_responses import server_sent_event
from reprise.server.http.openapi import body_schema
from reprise.server.http.request_log import note_ignored
from reprise.server.output.parts import (
    CallArgumentsPart,
    ChoiceOutput,
    EndPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
)
from reprise.server.output.presenter import Json, OneChoicePresenter, ResponseHead
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.fields import Notes
from reprise.server.requests.messages import encode_reasoning

UNSIGNED = "unsigned"
"""The signature of thinking that is shown: clients send back only blocks that have one."""


class MessagePresenter(OneChoicePresenter):
    """Presenter for /v1/messages."""

    def __init__(self, head: ResponseHead, body: MessagesRequest) -> None:
        self._head = head
        self._max_tokens = body.max_tokens
        self._shows_thinking = body.thinking is None or body.thinking.display != "omitted"
        self._diagnoses = body.diagnostics is not None and body.diagnostics.previous_message_id is not None
        self._block_idx = -1
        self._omitted: list[str] = []
        self._open: Literal["text", "thinking", "tool_use"] | None = None

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: Json, timings: Json) -> bytes:
        """See Presenter."""
        (output,) = outputs
        content: list[Json] = []
        if output.reasoning:
            thinking = output.reasoning if self._shows_thinking else ""
            signature = self._signature(output.reasoning)
            content.append({"type": "thinking", "thinking": thinking, "signature": signature})
        if output.text:
            content.append({"type": "text", "text": output.text})
        content += [_tool_use(call, from_json(call.arguments)) for call in output.tool_calls]
        end = self._end(output.end, usage, timings)
        return to_json(self._message(content, _usage(usage)) | end)

    def format_opening(self, usage: Json) -> bytes:
        """See Presenter. The count of cached tokens is known only at the end; message_delta has it."""
        message = self._message([], _usage(usage)) | {"stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=message) + _event("ping")

    def format_silence(self) -> bytes:
        """See Presenter."""
        return _event("ping")

    def _ending(self, end: EndPart, usage: Json, timings: Json) -> bytes:
        counts = _usage(usage)
        del counts["service_tier"]
        delta = _event("message_delta", delta=self._end(end, usage, timings), usage=counts)
        return delta + _event("message_stop")

    def _part(self, part: Part) -> bytes:
        match part:
            case TextPart() if part.text:
                opening = self._open_block({"type": "text", "text": ""})
                return opening + self._delta("text_delta", "text", part.text)
            case ReasoningPart():
                opening = self._open_block({"type": "thinking", "thinking": "", "signature": ""})
                if self._shows_thinking:
                    return opening + self._delta("thinking_delta", "thinking", part.text)
                self._omitted.append(part.text)
                return opening
            case ToolCallPart():
                opening = self._open_block(_tool_use(part, {}))
                return opening + (self._continue_call(part.arguments) if part.arguments else b"")
            case CallArgumentsPart():
                return self._continue_call(part.text)
            case EndPart():
                return self._close_block()
            case _:
                return b""

    def _continue_call(self, arguments: str) -> bytes:
        return self._delta("input_json_delta", "partial_json", arguments)

    def _open_block(self, block: Json) -> bytes:
        """Start a block, unless it continues an open one of its kind. Each call has its own block."""
        kind = block["type"]
        if self._open == kind != "tool_use":
            return b""
        closing = self._close_block()
        self._open = kind
        self._block_idx += 1
        return closing + _event("content_block_start", index=self._block_idx, content_block=block)

    def _close_block(self) -> bytes:
        """End the open block, if there is one."""
        if self._open is None:
            return b""
        signing = b""
        if self._open == "thinking":
            signing = self._delta("signature_delta", "signature", self._signature("".join(self._omitted)))
        self._open, self._omitted = None, []
        return signing + _event("content_block_stop", index=self._block_idx)

    def _signature(self, thinking: str) -> str:
        """Return a thinking block's signature, which carries the text if the block does not show it."""
        return UNSIGNED if self._shows_thinking else encode_reasoning(thinking)

    def _delta(self, kind: str, field: str, text: str) -> bytes:
        # Called for every token, so only the text is serialized.
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%s","%s":%s}}\n\n'
            % (self._block_idx, kind.encode(), field.encode(), to_json(text))
        )

    def _message(self, content: list[Json], usage: Json) -> Json:
        message = {
            "id": f"msg_{self._head.id}",
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": content,
            "usage": usage,
        }
        if self._diagnoses:
            message["diagnostics"] = {"cache_miss_reason": {"type": "unavailable"}}
        return message

    def _end(self, end: EndPart, usage: Json, timings: Json) -> Json:
        """Return the stop reason, the stop sequence, and whether the schemas are satisfied, if checked."""
        match end.finish_reason:
            case "tool_calls":
                reason = "tool_use"
            case "length":
                is_at_limit = self._max_tokens is not None and usage["completion_tokens"] >= self._max_tokens
                # A loop that was cut off did not fill the context either.
                is_at_limit = is_at_limit or timings.get("stopped") == "loop"
                reason = "max_tokens" if is_at_limit else "model_context_window_exceeded"
            case "stop":
                reason = "end_turn" if end.stop is None else "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": end.stop, **end.checked}


def _usage(usage: Json) -> Json:
    """Return the usage. Anthropic's input_tokens do not include cached tokens."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "service_tier": "standard",
    }


def _tool_use(call: ToolCallPart, arguments: object) -> Json:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _event(kind: str, **fields: Any) -> bytes:
    return server_sent_event(to_json({"type": kind, **fields}), kind)


router = APIRouter()
BODIES = (MessagesRequest, CountTokensRequest)


@router.post("/v1/messages", openapi_extra=body_schema(MessagesRequest))
async def create_message(request: Request) -> Response:
    """Generate the next message of a conversation, in Anthropic's format."""
    body = await read_body(request, MessagesRequest)
    leased = await lease_for(request, body)
    presenter = MessagePresenter(response_head(request, leased, body.model), body)

    def prepare() -> Prepared:
        return prepare_chat(request, leased, _converted(request, leased, body))

    return await answer(request, leased, prepare, presenter)


@router.post("/v1/messages/count_tokens", openapi_extra=body_schema(CountTokensRequest))
async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation's prompt."""
    body = await read_body(request, CountTokensRequest)
    leased = await lease_for(request, body)

    def count() -> int:
        return count_prompt_tokens(request, leased, _converted(request, leased, body))

    return JSONResponse({"input_tokens": await leased.run_in_turn(request, count)})


def _converted(request: Request, leased: LeasedModel, body: ConversationFields) -> ChatRequest:
    notes = Notes(leased.settings.unknown_fields == "refuse")
    chat = to_chat_request(body, notes)
    note_ignored(request, notes.entries())
    return chat
