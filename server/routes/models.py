"""GET /v1/models and /v1/models/{name}."""

from fastapi import APIRouter, Request

from server.generation.service import service_of
from server.output.openai_objects import ModelCard, ModelList

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """List the served model under its name and its aliases."""
    service = service_of(request)
    service.check_ready()
    return ModelList(data=[ModelCard(id=name, created=service.created) for name in service.model_names])


# Of type path, since model names may contain slashes.
@router.get("/v1/models/{name:path}")
async def retrieve_model(request: Request, name: str) -> ModelCard:
    """Return the served model, by its name or one of its aliases."""
    service = service_of(request)
    service.check_ready()
    return ModelCard(id=service.check_model(name), created=service.created)
