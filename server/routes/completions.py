"""POST /v1/completions."""

from fastapi import APIRouter, Request, Response

from reprise.server.generation.completion import answer_completion
from reprise.server.generation.model_use import serve_body
from reprise.server.generation.respond import response_head
from reprise.server.generation.service import Service
from reprise.server.http.openapi import body_schema
from reprise.server.output.openai_format import CompletionFormat
from reprise.server.output.openai_presenter import OpenAIPresenter
from reprise.server.requests.completions import CompletionRequest
from reprise.server.validation.body import read_body

router = APIRouter()


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    return await serve_body(request, await read_body(request, CompletionRequest), _answer)


async def _answer(request: Request, body: CompletionRequest, service: Service) -> Response:
    head = response_head(request, service, body.model)
    response_format = CompletionFormat(body.num_top_logprobs is not None)
    num_choices = body.n * len(body.prompt)
    presenter = OpenAIPresenter(head, response_format, num_choices, body.wants_usage_chunk)
    return await answer_completion(request, service, body, presenter, head.model)
