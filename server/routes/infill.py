"""POST /infill: what is between two texts, as llama-server has it."""

from fastapi import APIRouter, Request, Response

from reprise.server.generation.engine_requests.choices import Prompts
from reprise.server.generation.model_use import serve_body
from reprise.server.generation.prompts.infill import Hole, fim_of
from reprise.server.generation.respond import respond, response_head
from reprise.server.generation.service import Service
from reprise.server.http.openapi import body_schema
from reprise.server.output.infill_presenter import InfillPresenter
from reprise.server.output.parsing.text_parser import PlainParser
from reprise.server.requests.infill import InfillRequest
from reprise.server.validation.body import read_body

router = APIRouter()


@router.post("/infill", openapi_extra=body_schema(InfillRequest))
async def infill(request: Request) -> Response:
    """Fill in the text between two texts, for models with fill-in-the-middle tokens."""
    return await serve_body(request, await read_body(request, InfillRequest), _answer)


async def _answer(request: Request, body: InfillRequest, service: Service) -> Response:
    model = response_head(request, service, body.model).model
    fim = fim_of(service.engine.tokenizer, model, "input_suffix")
    others = [(file.filename, file.text) for file in body.input_extra]
    hole = Hole(f"{body.input_prefix}{body.prompt[0]}", body.input_suffix, others)
    prompts = await service.prompts.encode_holes(request, fim, [hole], body)
    grammar, _ = await service.prompts.grammars.compile_requested(request, body)
    presenter = InfillPresenter(model, body.is_scoring)
    return await respond(
        request, service, body.with_stops(fim.ends), Prompts(prompts, grammar), presenter, PlainParser
    )
