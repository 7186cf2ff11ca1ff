"""/v1/models: list models, for clients of OpenAI and of Anthropic; load, unload and download them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from pydantic_core import to_json

from reprise.engine.interface.embeddings import Purpose
from reprise.engine.interface.images import MAX_IMAGE_TOKENS
from reprise.engine.interface.models import ModelEntry
from reprise.server.errors import ApiError
from reprise.server.generation.answer import TokenStream
from reprise.server.generation.list_and_pull import (
    Pull,
    check_loads,
    known_sampling,
    named_entries,
    unload,
)
from reprise.server.generation.service import Service, find_entry, lease_model, resolve, service_of
from reprise.server.http.body import read_body
from reprise.server.http.error_responses import server_sent_event
from reprise.server.http.openapi import body_schema
from reprise.server.requests.fields import RequestModel
from reprise.server.requests.generation_fields import KeepAlive


class ModelMeta(BaseModel):
    """The model's sizes, as llama-server has them.

    n_ctx, n_ctx_train: tokens that this server takes; clients read either. size: bytes of the weights.
    """

    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_params: int
    size: int


class Modalities(BaseModel):
    """The kinds of input and output."""

    input: list[Literal["text", "image"]] = ["text"]
    output: list[Literal["text"]] = ["text"]


class VisionCard(BaseModel):
    """How a model sees images.

    example_tokens: tokens of one of 1024x768 pixels. max_tokens: of any one. max_images: of a conversation.
    """

    example_tokens: int
    max_tokens: int
    max_images: int


class EmbeddingCard(BaseModel):
    """Facts about a model's vectors: their size, the pooling, and its prompts by name.

    is_guessed: whether the pooling or the prompts were decided by the architecture, as the folder does not
        name them.
    """

    dimensions: int
    pooling: str
    is_guessed: bool
    normalizes: bool
    prompts: dict[str, str]
    default_prompt: str | None


class ModelCard(BaseModel):
    """The served model under one of its names.

    context_length, max_model_len: tokens of prompt and answer together. tools, reasoning: whether the server
    knows the model's format of tool calls, and of reasoning. tool_format: its name; generic if the chat
    template knows no tools; null without tools. thinking_switches: variables for chat_template_kwargs that
    switch thinking or say how much; none before the model is loaded. sampling_defaults: if a request leaves
    it out. purpose: what the model is for. embedding: how it makes vectors or scores; null if it generates.
    vision: how it sees images; null if it does not.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["reprise"] = "reprise"
    context_length: int
    max_model_len: int
    meta: ModelMeta
    modalities: Modalities = Modalities()
    tools: bool
    tool_format: str | None = None
    reasoning: bool
    thinking_switches: tuple[str, ...] = ()
    sampling_defaults: dict[str, float]
    purpose: Purpose = "generate"
    embedding: EmbeddingCard | None = None
    vision: VisionCard | None = None


class ListedModelCard(ModelCard):
    """One of several models under one of its names. Fields that are not known before it is loaded are null.

    state: whether its weights are in memory. size_bytes: of its weights. progress: the loaded share of them,
    0 to 1, while it is loading; phase: what it is at then, in words.
    fault: why it cannot be loaded, if that is known. running, waiting: its requests.
    """

    context_length: int | None  # type: ignore[assignment]
    max_model_len: int | None  # type: ignore[assignment]
    meta: ModelMeta | None  # type: ignore[assignment]
    tools: bool | None  # type: ignore[assignment]
    reasoning: bool | None  # type: ignore[assignment]
    state: Literal["unloaded", "loading", "loaded"]
    size_bytes: int
    progress: float | None
    phase: str | None
    fault: str | None
    running: int
    waiting: int


class ModelList(BaseModel):
    """All names by which a request may name a model."""

    object: Literal["list"] = "list"
    data: list[ListedModelCard | ModelCard]


class MessagesModel(BaseModel):
    """A model under one of its names. The limits are null until it is loaded."""

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None
    max_tokens: int | None


class MessagesModelList(BaseModel):
    """All models; there is never a second page."""

    data: list[MessagesModel]
    first_id: str | None
    last_id: str | None
    has_more: Literal[False] = False


router = APIRouter()


class ModelRequest(RequestModel):
    """The body that names a model."""

    model: str
    """The model's name, as GET /v1/models has it."""


class LoadRequest(ModelRequest):
    """The body of POST /v1/models/load."""

    keep_alive: KeepAlive = None


class PullRequest(RequestModel):
    """The body of POST /v1/models/pull."""

    model: str
    """The model's name on the hub, such as mlx-community/Qwen3-8B-4bit."""


BODIES = (ModelRequest, LoadRequest, PullRequest)
ANTHROPIC = "anthropic-version"
"""A header of clients of Anthropic's API, which lists models at the same path as OpenAI's."""


@router.get("/v1/models")
async def list_models(request: Request) -> ModelList | MessagesModelList:
    """List the served model under its name and its aliases, or all models that requests may ask for.

    With the header anthropic-version, in Anthropic's shape.
    """
    listed = await served_models(service_of(request))
    if ANTHROPIC not in request.headers:
        return listed
    models = [_messages_model(card) for card in listed.data]
    first, last = (models[0].id, models[-1].id) if models else (None, None)
    return MessagesModelList(data=models, first_id=first, last_id=last)


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
    card = _card(service, name, await find_entry(service, resolve(service, name)))
    return _messages_model(card) if ANTHROPIC in request.headers else card


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
    await unload(request, body.model)
    return await _card_response(service, body.model)


@router.post(
    "/v1/models/pull", response_class=Response, openapi_extra=body_schema(PullRequest, is_streamed=True)
)
async def pull_model(request: Request) -> Response:
    """Download a model from the hub, with events about the progress. Only where there are several models.

    The last event has the status success, or is an error. A download that breaks off can be continued.
    """
    service, body = service_of(request), await read_body(request, PullRequest)
    pull = Pull(service, body.model)

    async def events() -> AsyncIterator[bytes]:
        async for state in pull.states(request):
            if isinstance(state, ApiError):
                told: dict[str, object] = {"status": "error", **state.body()}
            else:
                told = {
                    "status": state.status,
                    "completed_bytes": state.completed,
                    "total_bytes": state.total,
                }
            yield server_sent_event(to_json(told))

    return TokenStream(events(), "text/event-stream", at_end=pull.stop)


async def _card_response(service: Service, name: str) -> Response:
    card = _card(service, name, await find_entry(service, resolve(service, name)))
    return Response(card.model_dump_json(), media_type="application/json")


def _card(service: Service, name: str, entry: ModelEntry) -> ModelCard:
    """Return a model's card; if there are several models, with its present state."""
    info, embedding, vision = entry.info, entry.embedding, entry.vision
    fields: dict[str, Any] = {
        "id": name,
        "created": service.created,
        "context_length": entry.context_tokens,
        "max_model_len": entry.context_tokens,
        "meta": None,
        "tools": entry.can_call,
        "tool_format": entry.tool_format,
        "reasoning": entry.can_think,
        "thinking_switches": entry.thinking_switches,
        "sampling_defaults": known_sampling(service, info) if info else {},
        "purpose": entry.purpose,
    }
    if embedding is not None:
        recipe = embedding.recipe
        fields["embedding"] = EmbeddingCard(
            dimensions=embedding.dimensions,
            pooling=recipe.pooling,
            is_guessed=recipe.is_guessed or recipe.prompts_are_guessed,
            normalizes=recipe.normalizes,
            prompts=dict(recipe.prompts),
            default_prompt=recipe.default_prompt,
        )
    if vision is not None:
        most = max(vision.min_tokens, min(vision.max_tokens, MAX_IMAGE_TOKENS))
        example_tokens, max_images = min(most, vision.example_tokens), service.settings.max_images
        fields["vision"] = VisionCard(example_tokens=example_tokens, max_tokens=most, max_images=max_images)
        fields["modalities"] = Modalities(input=["text", "image"])
    if info is not None:
        fields["meta"] = ModelMeta(
            n_vocab=info.vocab_size,
            n_ctx=info.context_tokens,
            n_ctx_train=info.context_tokens,
            n_params=info.num_parameters,
            size=info.weight_bytes,
        )
    if not service.models.may_unload:
        return ModelCard(**fields)
    return ListedModelCard(
        **fields,
        state=entry.state,
        size_bytes=entry.size_bytes,
        progress=entry.progress,
        phase=entry.phase,
        fault=entry.fault,
        running=entry.num_running,
        waiting=entry.num_waiting,
    )


def _messages_model(card: ModelCard) -> MessagesModel:
    return MessagesModel(
        id=card.id,
        display_name=card.id,
        created_at=datetime.fromtimestamp(card.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=card.context_length,
        max_tokens=card.context_length,
    )
