"""POST /v1/messages and /v1/messages/count_tokens."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from reprise.server.anthropic_api.presenter import MessagePresenter
from reprise.server.anthropic_api.schemas import (
    ConversationFields,
    CountTokensRequest,
    MessagesRequest,
    kept_system,
    to_chat_request,
)
from reprise.server.generation.lease import lease_for
from reprise.server.generation.prepare import Prepared, encode_prompt, prepare_chat
from reprise.server.generation.service import LeasedModel
from reprise.server.generation.stream import answer, response_head
from reprise.server.http.body import read_body
from reprise.server.http.openapi import body_schema
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.fields import Notes

router = APIRouter()
BODIES = (MessagesRequest, CountTokensRequest)


@router.post("/v1/messages", openapi_extra=body_schema(MessagesRequest))
async def create_message(request: Request) -> Response:
    """Generate the next message of a conversation, in Anthropic's format."""
    body = await read_body(request, MessagesRequest)
    leased = await lease_for(request, body)
    presenter = MessagePresenter(response_head(request, leased, body.model), record_of(request).id, body)

    def prepare() -> Prepared:
        return prepare_chat(request, leased, _converted(request, leased, body))

    return await answer(request, leased, prepare, presenter)


@router.post("/v1/messages/count_tokens", openapi_extra=body_schema(CountTokensRequest))
async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation's prompt."""
    body = await read_body(request, CountTokensRequest)
    leased = await lease_for(request, body)

    def count() -> int:
        return len(encode_prompt(request, leased, _converted(request, leased, body)).tokens)

    return JSONResponse({"input_tokens": await leased.prepare(request, count)})


def _converted(request: Request, leased: LeasedModel, body: ConversationFields) -> ChatRequest:
    """Return a request as a chat. Notes a billing line that is left out of its system prompt."""
    drops = not leased.settings.keep_billing_line
    notes = Notes(leased.settings.unknown_fields == "refuse")
    chat = to_chat_request(body, notes, drops_billing=drops)
    note_ignored(request, notes.entries())
    if drops and kept_system(body.system) != body.system:
        note_ignored(request, ["system.x-anthropic-billing-header"])
    return chat
