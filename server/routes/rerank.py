"""POST /v1/rerank, /rerank and /v2/rerank."""

from functools import partial

from fastapi import APIRouter, Request, Response

from server.generation.embedding import embed, encode_pairs
from server.generation.model_use import serve_model
from server.generation.service import Service
from server.http.openapi import body_schema
from server.http.request_log import record_of
from server.output.vectors import numbers_of, write_ranking
from server.requests.rerank import RerankRequest
from server.threads import FORMAT
from server.validation.body import read_body

router = APIRouter()


_BODY = body_schema(RerankRequest)


@router.post("/v1/rerank", openapi_extra=_BODY)
@router.post("/rerank", openapi_extra=_BODY)
@router.post("/v2/rerank", openapi_extra=_BODY)
async def rerank(request: Request) -> Response:
    """Sort documents by how well they answer a query, with a model that ranks. Jina's and Cohere's."""
    body = await read_body(request, RerankRequest)
    answer = partial(_answer, request, body)
    return await serve_model(request, body.model, answer, keep_alive=body.keep_alive, purpose="rerank")


async def _answer(request: Request, body: RerankRequest, service: Service) -> Response:
    model = service.check_model(body.model)
    inputs = await encode_pairs(request, service, body)
    rated = await embed(request, service, inputs)
    scores = [number for one in rated for number in numbers_of(one)]
    documents = body.documents if body.return_documents else None
    num_tokens = sum(len(one.tokens) for one in inputs)
    write = partial(write_ranking, scores, documents, body.top_n, record_of(request).id, model, num_tokens)
    return Response(await FORMAT.run(write), media_type="application/json")
