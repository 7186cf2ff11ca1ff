"""POST /v1/embeddings, which is not implemented."""

from fastapi import APIRouter, Request, Response

from server.errors import NotImplementedHereError
from server.http.openapi import body_schema
from server.requests.embeddings import EmbeddingsRequest
from server.validation.body import read_body

router = APIRouter()


# The document describes what this server does.
@router.post(
    "/v1/embeddings",
    status_code=501,
    include_in_schema=False,
    openapi_extra=body_schema(EmbeddingsRequest),
)
async def create_embeddings(request: Request) -> Response:
    """Answer 501: the models that mlx-lm loads generate text and have no pooling layer."""
    await read_body(request, EmbeddingsRequest)
    raise NotImplementedHereError(
        "This server generates text and has no embedding model. Send embedding requests to a server that has "
        "one."
    )
