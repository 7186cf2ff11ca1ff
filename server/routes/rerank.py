"""POST /v1/rerank, /rerank and /v2/rerank."""

from functools import partial

from fastapi import APIRouter, Request, Response

from reprise.server.generation.embedding import answer, encode_pairs
from reprise.server.generation.model_use import serve_body
from reprise.server.generation.service import Service
from reprise.server.http.openapi import body_schema
from reprise.server.http.request_log import record_of
from reprise.server.output.vectors import write_ranking
from reprise.server.requests.rerank import RerankRequest
from reprise.server.validation.body import read_body

router = APIRouter()


_BODY = body_schema(RerankRequest)


@router.post("/v1/rerank", openapi_extra=_BODY)
@router.post("/rerank", openapi_extra=_BODY)
@router.post("/v2/rerank", openapi_extra=_BODY)
async def rerank(request: Request) -> Response:
    """Sort documents by how well they answer a query, with a model that ranks. Jina's and Cohere's."""
    return await serve_body(request, await read_body(request, RerankRequest), _answer, "rerank")


async def _answer(request: Request, body: RerankRequest, service: Service) -> Response:
    model = service.check_model(body.model)
    inputs = await encode_pairs(request, service, body)
    documents = body.documents if body.return_documents else None
    request_id = record_of(request).id
    write = partial(write_ranking, documents=documents, top_n=body.top_n, request_id=request_id, model=model)
    return await answer(request, service, inputs, write)
