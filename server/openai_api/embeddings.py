"""/v1/embeddings, and /v1/rerank in Jina's, Cohere's and Voyage's formats."""

from base64 import b64encode
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from reprise.server.generation.embeddings import answer_embeddings, encode_inputs, encode_pairs, numbers_of
from reprise.server.generation.service import lease_for
from reprise.server.http.body import read_body
from reprise.server.http.openapi import body_schema
from reprise.server.http.request_log import record_of
from reprise.server.requests.embeddings import EmbeddingsRequest, RerankRequest


def write_embeddings(body: EmbeddingsRequest, model: str, vectors: Sequence[bytes], num_tokens: int) -> bytes:
    """Write the JSON response of /v1/embeddings. May take long.

    vectors: (num_texts,) little-endian float32. num_tokens: the tokens of all texts together.
    """
    parts = []
    for index, vector in enumerate(vectors):
        shown = b64encode(vector).decode() if body.encoding_format == "base64" else numbers_of(vector)
        parts.append(to_json({"object": "embedding", "index": index, "embedding": shown}))
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    rest = to_json({"model": model, "usage": usage})
    return b'{"object":"list","data":[' + b",".join(parts) + b"]," + rest[1:]


def write_ranking(
    body: RerankRequest, model: str, request_id: str, rated: Sequence[bytes], num_tokens: int
) -> bytes:
    """Write a JSON response that has both Jina's and Cohere's rerank fields, with the best documents first.

    Unless documents are returned it has Voyage's field (data) too, which Continue reads.
    rated: (num_documents,) scores, each as a vector of one number. num_tokens: the tokens of all pairs.
    """
    scores = [number for one in rated for number in numbers_of(one)]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": body.documents[index]}} if body.return_documents else {})
        for index in order
    ]
    return to_json(
        {
            "id": request_id,
            "object": "list",
            "model": model,
            "results": results,
            **({} if body.return_documents else {"data": results}),
            "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }
    )


router = APIRouter()
BODIES = (EmbeddingsRequest, RerankRequest)


@router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingsRequest))
async def create_embeddings(request: Request) -> Response:
    """Make a vector of each text, with a model that embeds."""
    body = await read_body(request, EmbeddingsRequest)
    leased = await lease_for(request, body, "embed")
    write = partial(write_embeddings, body, body.model or leased.name)
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
    write = partial(write_ranking, body, body.model or leased.name, record_of(request).id)
    return await answer_embeddings(request, leased, partial(encode_pairs, request, leased, body), write)
