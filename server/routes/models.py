"""GET /v1/models and /v1/models/{name}."""

from fastapi import APIRouter, Request

from server.generation.service import service_of
from server.output.openai_objects import ModelCard, ModelList

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """The served model, under each of its names."""
    service = service_of(request)
    service.check_ready()
    return ModelList(data=[ModelCard(id=name, created=service.created) for name in service.model_names])


# A path, since names of models may have slashes in them.
@router.get("/v1/models/{name:path}")
async def retrieve_model(request: Request, name: str) -> ModelCard:
    """The served model, under one of its names."""
    service = service_of(request)
    service.check_ready()
    return ModelCard(id=service.check_model(name), created=service.created)
