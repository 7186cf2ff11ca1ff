"""/v1/models: list models, and where there are several load, unload and download them."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from reprise.config.settings import Settings
from reprise.engine.interface.embeddings import EmbeddingInfo
from reprise.engine.interface.images import VisionInfo
from reprise.engine.interface.models import ModelEntry, ModelInfo
from reprise.server.errors import (
    ApiError,
)
from reprise.server.generation.lease import lease_model
from reprise.server.generation.served_models import (
    PullState,
    begin_pull,
    check_loads,
    find_entry,
    known_sampling,
    named_entries,
    unload,
)
from reprise.server.generation.service import Service, service_of
from reprise.server.generation.stream import TokenStream
from reprise.server.http.body import read_body
from reprise.server.http.openapi import body_schema
from reprise.server.output.model_cards import (
    EmbeddingCard,
    ListedModelCard,
    MessagesModel,
    MessagesModelList,
    Modalities,
    ModelCard,
    ModelList,
    ModelMeta,
    VisionCard,
    messages_model,
    messages_models,
)
from reprise.server.requests.generation_fields import LoadRequest, ModelRequest, PullRequest

router = APIRouter()


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList | MessagesModelList:
    """List the served model under its name and its aliases, or all models that requests may ask for.

    With the header anthropic-version, in Anthropic's shape.
    """
    listed = await served_models(service_of(request))
    return messages_models(listed.data) if _is_anthropic_client(request) else listed


def _is_anthropic_client(request: Request) -> bool:
    """Return whether a request for models is for Anthropic's API, which has the same path as OpenAI's."""
    return "anthropic-version" in request.headers


async def served_models(service: Service) -> ModelList:
    """Return the cards of all models that requests may ask for. Raises UnavailableError."""
    service.check_ready()
    named = await named_entries(service)
    return ModelList(data=[_card(service, name, entry) for name, entry in named.items()])


# Of type path, since model names may contain slashes.
@router.get("/v1/models/{name:path}")
async def retrieve_model(request: Request, name: str) -> ModelCard | ListedModelCard | MessagesModel:
    """Return a model, by its name or one of its aliases."""
    service = service_of(request)
    service.check_ready()
    card = _card(service, name, await find_entry(service, name))
    return messages_model(card) if _is_anthropic_client(request) else card


@router.post("/v1/models/load", openapi_extra=body_schema(LoadRequest))
async def load_model(request: Request) -> Response:
    """Load a model, and return it once it is loaded. Only where there are several models."""
    body = await read_body(request, LoadRequest)
    check_loads(service_of(request))
    await lease_model(request, body.model, keep_alive=body.keep_alive, purpose=None)
    return await _card_response(service_of(request), body.model)


@router.post("/v1/models/unload", openapi_extra=body_schema(ModelRequest))
async def unload_model(request: Request) -> Response:
    """Unload a model once its requests have ended, and return it. Only where there are several models."""
    service, body = service_of(request), await read_body(request, ModelRequest)
    await unload(service, body.model)
    return await _card_response(service, body.model)


@router.post(
    "/v1/models/pull", response_class=Response, openapi_extra=body_schema(PullRequest, is_streamed=True)
)
async def pull_model(request: Request) -> Response:
    """Download a model from the hub, with events about the progress. Only where there are several models.

    The last event has the status success, or is an error. A download that breaks off can be continued.
    """
    service, body = service_of(request), await read_body(request, PullRequest)
    pull = begin_pull(service, body.model)

    async def events() -> AsyncIterator[bytes]:
        async for state in pull.states(request):
            told = {"status": "error", **state.body()} if isinstance(state, ApiError) else _told(state)
            yield b"data: " + to_json(told) + b"\n\n"

    return TokenStream(events(), at_end=pull.stop)


def _told(state: PullState) -> dict[str, object]:
    return {"status": state.status, "completed_bytes": state.completed, "total_bytes": state.total}


async def _card_response(service: Service, name: str) -> Response:
    card = _card(service, name, await find_entry(service, name))
    return Response(card.model_dump_json(), media_type="application/json")


def _card(service: Service, name: str, entry: ModelEntry) -> ModelCard:
    """Return what is said of a model: of one of several also how it is at present."""
    card = ListedModelCard(
        id=name,
        created=service.created,
        context_length=entry.context_tokens,
        max_model_len=entry.context_tokens,
        meta=_meta(entry.info) if entry.info else None,
        tools=entry.can_call,
        tool_format=entry.tool_format,
        reasoning=entry.can_think,
        sampling_defaults=known_sampling(service, entry.info) if entry.info else {},
        purpose=entry.purpose,
        embedding=_embedding(entry.embedding),
        state=entry.state,
        size_bytes=entry.size_bytes,
        progress=entry.progress,
        phase=entry.phase,
        fault=entry.fault,
        running=entry.num_running,
        waiting=entry.num_waiting,
        **_seeing(service.settings, entry.vision),
    )
    if service.models.may_unload:
        return card
    return ModelCard(**{name: getattr(card, name) for name in ModelCard.model_fields})


def _seeing(settings: Settings, vision: VisionInfo | None) -> dict[str, Any]:
    """Return the fields of a card about images; none for a model that sees none."""
    if vision is None:
        return {}
    most = max(vision.min_tokens, min(vision.max_tokens, settings.max_image_tokens))
    card = VisionCard(
        example_tokens=min(most, vision.example_tokens), max_tokens=most, max_images=settings.max_images
    )
    return {"vision": card, "modalities": Modalities(input=["text", "image"])}


def _embedding(info: EmbeddingInfo | None) -> EmbeddingCard | None:
    if info is None:
        return None
    recipe = info.recipe
    return EmbeddingCard(
        dimensions=info.dimensions,
        pooling=recipe.pooling,
        is_guessed=recipe.is_guessed or recipe.prompts_are_guessed,
        normalizes=recipe.normalizes,
        prompts=dict(recipe.prompts),
        default_prompt=recipe.default_prompt,
    )


def _meta(info: ModelInfo) -> ModelMeta:
    return ModelMeta(
        n_vocab=info.vocab_size,
        n_ctx=info.context_tokens,
        n_ctx_train=info.context_tokens,
        n_params=info.num_parameters,
        size=info.weight_bytes,
    )
