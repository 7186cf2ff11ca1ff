"""POST /v1/messages and /v1/messages/count_tokens, as in Anthropic's API."""

from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from reprise.server.conversation.anthropic import kept_system
from reprise.server.fair_queue import beside
from reprise.server.generation.chat import answer_chat, check_tools
from reprise.server.generation.model_use import serve_body
from reprise.server.generation.respond import response_head
from reprise.server.generation.service import Service
from reprise.server.http.openapi import body_schema
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.messages_api.presenter import MessagePresenter
from reprise.server.messages_api.schemas import ConversationFields, CountTokensRequest, MessagesRequest
from reprise.server.messages_api.to_chat import (
    to_chat_request,
    to_prompt_request,
)
from reprise.server.requests.chat import ChatRequest
from reprise.server.validation.body import read_body
from reprise.server.validation.notes import Notes

router = APIRouter()
BodyT = TypeVar("BodyT", bound=ConversationFields)


@router.post("/v1/messages", openapi_extra=body_schema(MessagesRequest))
async def create_message(request: Request) -> Response:
    """Generate the next message of a conversation, in Anthropic's format."""
    return await serve_body(request, await read_body(request, MessagesRequest), _answer)


async def _answer(request: Request, body: MessagesRequest, service: Service) -> Response:
    head = response_head(request, service, body.model)
    presenter = MessagePresenter(head, record_of(request).id, body)
    chat = await _converted(request, service, body, to_chat_request)
    return await answer_chat(request, service, chat, presenter)


@router.post("/v1/messages/count_tokens", openapi_extra=body_schema(CountTokensRequest))
async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation's prompt."""
    return await serve_body(request, await read_body(request, CountTokensRequest), _count)


async def _count(request: Request, body: CountTokensRequest, service: Service) -> Response:
    chat = await _converted(request, service, body, to_prompt_request)
    check_tools(service, chat)
    prompt = await service.prompts.encode_chat(request, chat)
    return JSONResponse({"input_tokens": len(prompt.tokens)})


async def _converted(
    request: Request, service: Service, body: BodyT, convert: Callable[..., ChatRequest]
) -> ChatRequest:
    """Return a request as a chat, without the billing line in its system prompt unless that is kept.

    Notes it if the line is there. Raises what convert raises.
    """
    drops = not service.settings.keep_billing_line
    notes = Notes(service.settings.unknown_fields == "refuse")

    def work() -> tuple[ChatRequest, bool]:
        return convert(body, notes, drops_billing=drops), drops and kept_system(body.system) != body.system

    chat, is_dropped = await beside(request, work)
    note_ignored(request, notes.entries())
    if is_dropped:
        note_ignored(request, ["system.x-anthropic-billing-header"])
    return chat
