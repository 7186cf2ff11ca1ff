"""POST /v1/embeddings, which is not for this server."""

from fastapi import APIRouter, Request, Response

from server.errors import NotImplementedHereError
from server.http.openapi import body_schema
from server.requests.embeddings import EmbeddingsRequest
from server.validation.body import read_body

router = APIRouter()


@router.post("/v1/embeddings", openapi_extra=body_schema(EmbeddingsRequest))
async def create_embeddings(request: Request) -> Response:
    """Say that there are none: what mlx-lm loads here predicts tokens, and has no layer that pools them."""
    await read_body(request, EmbeddingsRequest)
    raise NotImplementedHereError(
        "This server generates text. The models that it serves predict the next token and have no embeddings "
        "of whole texts to give. Send embeddings to a server with a model that was trained for them."
    )
