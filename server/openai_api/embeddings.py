"""/v1/embeddings, and /v1/rerank in Jina's, Cohere's and Voyage's formats."""

from functools import partial

from fastapi import APIRouter, Request, Response

from reprise.server.generation.embeddings import (
    answer_embeddings,
    encode_inputs,
    encode_pairs,
    write_embeddings,
    write_ranking,
)
from reprise.server.generation.lease import lease_for
from reprise.server.http.body import read_body
from reprise.server.http.openapi import body_schema
from reprise.server.http.request_log import record_of
from reprise.server.requests.embeddings import EmbeddingsRequest, RerankRequest

router = APIRouter()
BODIES = (EmbeddingsRequest, RerankRequest)


@router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingsRequest))
async def create_embeddings(request: Request) -> Response:
    """Make a vector of each text, with a model that embeds."""
    body = await read_body(request, EmbeddingsRequest)
    leased = await lease_for(request, body, "embed")
    model = body.model or leased.name
    write = partial(write_embeddings, encoding_format=body.encoding_format, model=model)
    encode = partial(encode_inputs, request, leased, body)
    return await answer_embeddings(request, leased, encode, write, body.dimensions)


_BODY = body_schema(RerankRequest)


@router.post("/v1/rerank", openapi_extra=_BODY)
@router.post("/rerank", openapi_extra=_BODY)
@router.post("/v2/rerank", openapi_extra=_BODY)
async def rerank(request: Request) -> Response:
    """Sort documents by how well they answer a query, with a model that ranks. Jina's and Cohere's."""
    body = await read_body(request, RerankRequest)
    leased = await lease_for(request, body, "rerank")
    model = body.model or leased.name
    documents = body.documents if body.return_documents else None
    request_id = record_of(request).id
    write = partial(write_ranking, documents=documents, top_n=body.top_n, request_id=request_id, model=model)
    return await answer_embeddings(request, leased, partial(encode_pairs, request, leased, body), write)
