"""POST /v1/messages and /v1/messages/count_tokens, as in Anthropic's API."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from server.errors import BadRequestError
from server.generation.chat import answer_chat, check_tools
from server.generation.respond import response_head
from server.generation.service import service_of
from server.http.openapi import body_schema
from server.http.request_log import record_of
from server.messages_api.presenter import MessagePresenter
from server.messages_api.schemas import CountTokensRequest, MessagesRequest
from server.messages_api.to_chat import to_chat_request, to_prompt_request, with_request_names
from server.validation.body import read_body

router = APIRouter()


@router.post("/v1/messages", openapi_extra=body_schema(MessagesRequest))
async def create_message(request: Request) -> Response:
    """Generate the next message of a conversation, in Anthropic's format."""
    service = service_of(request)
    body = await read_body(request, MessagesRequest)
    service.check_ready()
    head = response_head(request, service, body.model)
    presenter = MessagePresenter(head, record_of(request).id, body)
    try:
        return await answer_chat(request, service, to_chat_request(body), presenter)
    except BadRequestError as fault:
        raise with_request_names(fault) from fault


@router.post("/v1/messages/count_tokens", openapi_extra=body_schema(CountTokensRequest))
async def count_tokens(request: Request) -> JSONResponse:
    """Count the tokens of a conversation's prompt."""
    service = service_of(request)
    body = await read_body(request, CountTokensRequest)
    service.check_ready()
    service.check_model(body.model)
    try:
        chat = to_prompt_request(body)
        check_tools(service, chat)
        prompt = await service.prompts.encode_chat(request, chat)
    except BadRequestError as fault:
        raise with_request_names(fault) from fault
    return JSONResponse({"input_tokens": len(prompt.tokens)})
