"""POST /v1/completions."""

from fastapi import APIRouter, Request, Response

from server.generation.completion import answer_completion
from server.generation.model_use import serve_body
from server.generation.respond import response_head
from server.generation.service import Service
from server.http.openapi import body_schema
from server.output.openai_format import CompletionFormat
from server.output.openai_presenter import OpenAIPresenter
from server.requests.completions import CompletionRequest
from server.validation.body import read_body

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
