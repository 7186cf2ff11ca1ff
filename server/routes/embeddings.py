"""POST /v1/embeddings."""

from functools import partial

from fastapi import APIRouter, Request, Response

from reprise.server.generation.embedding import answer, encode_inputs
from reprise.server.generation.model_use import serve_body
from reprise.server.generation.service import Service
from reprise.server.http.openapi import body_schema
from reprise.server.output.vectors import write_embeddings
from reprise.server.requests.embeddings import EmbeddingsRequest
from reprise.server.validation.body import read_body

router = APIRouter()


@router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingsRequest))
async def create_embeddings(request: Request) -> Response:
    """Make a vector of each text, with a model that embeds."""
    return await serve_body(request, await read_body(request, EmbeddingsRequest), _answer, "embed")


async def _answer(request: Request, body: EmbeddingsRequest, service: Service) -> Response:
    model = service.check_model(body.model)
    inputs = await encode_inputs(request, service, body)
    write = partial(write_embeddings, encoding_format=body.encoding_format, model=model)
    return await answer(request, service, inputs, write, body.dimensions)
