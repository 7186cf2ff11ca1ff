"""POST /v1/chat/completions and /v1/completions."""

from functools import partial

from fastapi import APIRouter, Request, Response

from reprise.server.generation.lease import lease_for
from reprise.server.generation.prepare import prepare_chat, prepare_completion
from reprise.server.generation.stream import answer, response_head
from reprise.server.http.body import read_body
from reprise.server.http.openapi import body_schema
from reprise.server.openai_api.presenter import ChatFormat, CompletionFormat, OpenAIPresenter
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Generate the next message of a conversation."""
    body = await read_body(request, ChatRequest)
    service = await lease_for(request, body)
    # There is only one tier, whichever was requested.
    head = response_head(request, service, body.model, "default" if body.service_tier else None)
    # OpenAI's streams begin with null content if there are tools, else with an empty string.
    response_format = ChatFormat(
        None if body.shown_tools else "",
        body.logprobs,
        {tool.name for tool in body.shown_tools if tool.is_custom},
    )
    presenter = OpenAIPresenter(head, response_format, body.n, body.wants_usage_chunk)
    return await answer(request, service, partial(prepare_chat, request, service, body), presenter)


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    body = await read_body(request, CompletionRequest)
    service = await lease_for(request, body)
    head = response_head(request, service, body.model)
    response_format = CompletionFormat(body.num_top_logprobs is not None)
    num_choices = body.n * len(body.prompt)
    presenter = OpenAIPresenter(head, response_format, num_choices, body.wants_usage_chunk)
    prepare = partial(prepare_completion, request, service, body, head.model)
    return await answer(request, service, prepare, presenter)
