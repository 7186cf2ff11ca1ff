"""POST /v1/completions."""

from functools import partial

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from server.generation.infill import Hole, fim_of
from server.generation.model_use import serve_model
from server.generation.respond import respond, response_head
from server.generation.service import Service
from server.http.openapi import body_schema
from server.output.checked import WholeSchemas, checked
from server.output.openai_format import CompletionFormat
from server.output.openai_presenter import OpenAIPresenter
from server.output.parts import MakeParser
from server.output.text_parser import PlainParser, echo_parsers
from server.requests.completions import CompletionRequest
from server.validation.body import read_body
from server.validation.relaxed_schema import modern

router = APIRouter()


@router.post("/v1/completions", openapi_extra=body_schema(CompletionRequest))
async def create_completion(request: Request) -> Response:
    """Continue one or several prompts."""
    body = await read_body(request, CompletionRequest)
    answer = partial(_answer, request, body)
    return await serve_model(request, body.model, answer, stream=body.stream, keep_alive=body.keep_alive)


async def _answer(request: Request, body: CompletionRequest, service: Service) -> Response:
    head = response_head(request, service, body.model)
    if body.suffix:
        fim = fim_of(service.engine.tokenizer, head.model, "suffix")
        holes = [Hole(str(prompt), body.suffix) for prompt in body.prompt]
        prompts, body = (
            await service.prompts.encode_holes(request, fim, holes, body),
            body.with_stops(fim.ends),
        )
    else:
        prompts = await service.prompts.encode_prompts(request, body)
    response_format = CompletionFormat(body.num_top_logprobs is not None)
    presenter = OpenAIPresenter(head, response_format, body.n * len(prompts), body.wants_usage_chunk)
    grammar, is_relaxed = await service.prompts.compile_requested_grammar(request, body)
    make_parser: MakeParser = PlainParser
    if body.echo or body.is_scoring:
        texts = await service.prompts.decode_prompts(request, body) if body.echo else [""] * len(prompts)
        make_parser = echo_parsers(texts, body.n, body.is_scoring)
    schema = to_json(modern(body.relaxable_schema)).decode() if is_relaxed else None
    make_parser = checked(make_parser, WholeSchemas(schema))
    return await respond(request, service, body, presenter, prompts, make_parser, grammar=grammar)
