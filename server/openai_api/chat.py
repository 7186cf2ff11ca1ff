"""POST /v1/chat/completions and /v1/completions."""

from fastapi import APIRouter, Request, Response

from reprise.server.generation.model_use import serve_body
from reprise.server.generation.prepare import answer_chat, answer_completion
from reprise.server.generation.service import Service
from reprise.server.generation.stream import response_head
from reprise.server.http.openapi import body_schema
from reprise.server.openai_api.presenter import ChatFormat, CompletionFormat, OpenAIPresenter
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.validation.body import read_body

router = APIRouter()


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatRequest))
async def create_chat_completion(request: Request) -> Response:
    """Generate the next message of a conversation."""
    return await serve_body(request, await read_body(request, ChatRequest), _answer_chat)


async def _answer_chat(request: Request, body: ChatRequest, service: Service) -> Response:
    # There is only one tier, whichever was requested.
    head = response_head(request, service, body.model, "default" if body.service_tier else None)
    # OpenAI's streams begin with null content if there are tools, else with an empty string.
    response_format = ChatFormat(
        None if body.shown_tools else "",
        body.logprobs,
        {tool.name for tool in body.shown_tools if tool.is_custom},
    )
    presenter = OpenAIPresenter(head, response_format, body.n, body.wants_usage_chunk)
    return await answer_chat(request, service, body, presenter)


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    return await serve_body(request, await read_body(request, CompletionRequest), _answer_completion)


async def _answer_completion(request: Request, body: CompletionRequest, service: Service) -> Response:
    head = response_head(request, service, body.model)
    response_format = CompletionFormat(body.num_top_logprobs is not None)
    num_choices = body.n * len(body.prompt)
    presenter = OpenAIPresenter(head, response_format, num_choices, body.wants_usage_chunk)
    return await answer_completion(request, service, body, presenter, head.model)
