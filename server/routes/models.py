"""GET /v1/models and /v1/models/{name}."""

from fastapi import APIRouter, Request

from server.generation.service import Service, service_of
from server.output.openai_objects import ModelCard, ModelList, ModelMeta

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList:
    """List the served model under its name and its aliases."""
    service = service_of(request)
    service.check_ready()
    return ModelList(data=[_card(service, name) for name in service.model_names])


# Of type path, since model names may contain slashes.
@router.get("/v1/models/{name:path}")
async def retrieve_model(request: Request, name: str) -> ModelCard:
    """Return the served model, by its name or one of its aliases."""
    service = service_of(request)
    service.check_ready()
    return _card(service, service.check_model(name))


def _card(service: Service, name: str) -> ModelCard:
    info, markers = service.engine.info, service.engine.tokenizer.markers
    meta = ModelMeta(
        n_vocab=info.vocab_size,
        n_ctx=info.context_tokens,
        n_ctx_train=info.context_tokens,
        n_params=info.num_parameters,
        size=info.weight_bytes,
    )
    return ModelCard(
        id=name,
        created=service.created,
        context_length=info.context_tokens,
        max_model_len=info.context_tokens,
        meta=meta,
        tools=markers.can_call,
        reasoning=markers.can_think,
        sampling_defaults=info.sampling_defaults.known
        if service.settings.sampling_defaults == "model"
        else {},
    )
