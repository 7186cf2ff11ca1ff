"""/v1/models: list models, and where there are several load, unload and download them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic_core import to_json

from reprise.config.settings import Settings
from reprise.engine.interface.embeddings import EmbeddingInfo
from reprise.engine.interface.images import VisionInfo
from reprise.engine.interface.models import ModelEntry, ModelInfo
from reprise.server.engine_types import Models
from reprise.server.errors import (
    ApiError,
    ForbiddenError,
    ModelNotFoundError,
    RequestFailedError,
    TooBusyError,
    from_load,
    retry_after,
)
from reprise.server.executor import MODEL_FILES
from reprise.server.generation.lease import find_loadable, lease_model
from reprise.server.generation.service import Service, service_of
from reprise.server.generation.stream import TokenStream
from reprise.server.http.body import read_body
from reprise.server.http.openapi import body_schema
from reprise.server.http.request_log import record_of
from reprise.server.logs import LOGGER
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

MAX_PULLS = 4
"""Maximum number of downloads at once. Each has a thread, which may wait long for the hub."""
PULL_RETRY_S = 30.0

REPORT_S = 0.5
"""Seconds between events about the progress of a download."""

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


async def named_entries(service: Service) -> dict[str, ModelEntry]:
    """Return the entries of all models, by every name by which requests may ask for the model."""
    entries = await MODEL_FILES.run(service.models.entries)
    named = {entry.name: entry for entry in entries}
    return named | {alias: entries[0] for alias in service.model_names if alias not in named}


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
    _check_loads(service_of(request))
    await lease_model(request, body.model, keep_alive=body.keep_alive, purpose=None)
    return await _card_response(service_of(request), body.model)


@router.post("/v1/models/unload", openapi_extra=body_schema(ModelRequest))
async def unload_model(request: Request) -> Response:
    """Unload a model once its requests have ended, and return it. Only where there are several models."""
    service, body = service_of(request), await read_body(request, ModelRequest)
    await unload(service, body.model)
    return await _card_response(service, body.model)


async def unload(service: Service, model: str | None) -> None:
    """Unload a model once its requests have ended. Raises ApiError."""
    _check_loads(service)
    _check_allowed(service)
    name = await find_loadable(service, model)
    future = await MODEL_FILES.run(service.models.unload, name)
    try:
        async with asyncio.timeout(service.settings.load_timeout_s):
            await asyncio.wrap_future(future)
    except Exception as fault:
        raise from_load(TimeoutError(name) if isinstance(fault, TimeoutError) else fault) from fault


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


def _told(state: "PullState") -> dict[str, object]:
    return {"status": state.status, "completed_bytes": state.completed, "total_bytes": state.total}


def begin_pull(service: Service, model: str) -> "Pull":
    """Begin to download a model. Raises ApiError."""
    _check_loads(service)
    _check_allowed(service)
    return Pull(service.models, model)


@dataclass(frozen=True, slots=True)
class PullState:
    """A download's progress, in bytes."""

    status: Literal["downloading", "success"]
    completed: int
    total: int


class Pull:
    """A download on a thread of its own, which does not keep the process alive.

    The constructor raises TooBusyError if MAX_PULLS downloads run. A download counts until it ends, even if
    its client has left.
    """

    _slots = threading.BoundedSemaphore(MAX_PULLS)

    def __init__(self, models: Models, name: str) -> None:
        if not self._slots.acquire(blocking=False):
            message = f"{MAX_PULLS} downloads are running, which is the most. Try again later."
            raise TooBusyError(message, code="too_many_downloads", headers=retry_after(PULL_RETRY_S))
        self._models, self._name = models, name
        self._completed, self._total = 0, 0
        self._is_stopped = threading.Event()
        self._ended: Future[ModelEntry] = Future()
        threading.Thread(target=self._run, name="pull", daemon=True).start()

    async def stop(self) -> None:
        """End the download, unless it has ended."""
        self._is_stopped.set()

    async def states(self, request: Request) -> AsyncIterator[PullState | ApiError]:
        """Yield the progress every REPORT_S seconds; the last state is a success or an error."""
        ended = asyncio.wrap_future(self._ended)
        # Its client may leave before it ends.
        ended.add_done_callback(lambda done: done.cancelled() or done.exception())
        while not ended.done():
            yield PullState("downloading", self._completed, self._total)
            await asyncio.wait({ended}, timeout=REPORT_S)
        try:
            ended.result()
            yield PullState("success", self._completed, self._total)
        except Exception as fault:  # noqa: BLE001 - logged, or the client's
            error = _pull_error(fault, record_of(request).id)
            record_of(request).note(error.code or error.type)
            yield error

    def _run(self) -> None:
        try:
            entry = self._models.pull(self._name, self._report)
        except BaseException as fault:  # noqa: BLE001 - raised again in events()
            self._ended.set_exception(fault)
        else:
            self._ended.set_result(entry)
        finally:
            self._slots.release()

    def _report(self, completed: int, total: int) -> None:
        self._completed, self._total = completed, total
        if self._is_stopped.is_set():
            raise InterruptedError("the client left")


def _pull_error(fault: Exception, request_id: str) -> ApiError:
    try:
        return from_load(fault)
    except Exception:  # noqa: BLE001 - a bug, or a stop
        LOGGER.exception("%s: a download failed", request_id)
        return RequestFailedError.internal(request_id)


def _check_loads(service: Service) -> None:
    service.check_ready()
    if not service.models.may_unload:
        raise ForbiddenError(
            "This server serves one model. Start it with --models-dir or --allow-load to serve several.",
            code="loading_not_allowed",
        )


def _check_allowed(service: Service) -> None:
    if not service.settings.allow_load:
        raise ForbiddenError(
            "This server loads and unloads no models for requests. Start it with --allow-load to allow it.",
            code="loading_not_allowed",
        )


async def _card_response(service: Service, name: str) -> Response:
    card = _card(service, name, await find_entry(service, name))
    return Response(card.model_dump_json(), media_type="application/json")


async def find_entry(service: Service, name: str) -> ModelEntry:
    """Return the entry of the model with a name. Raises ModelNotFoundError."""
    entry = await MODEL_FILES.run(service.models.find, service.resolve(name))
    if entry is None:
        entry = await MODEL_FILES.run(service.models.find, service.resolve_unknown(name))
    if entry is None:
        raise ModelNotFoundError(name)
    return entry


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


def known_sampling(service: Service, info: ModelInfo) -> dict[str, float]:
    """Return the model's sampling defaults; empty if requests without sampling fields do not get them."""
    return info.sampling_defaults.known if service.settings.sampling_defaults == "model" else {}


def _meta(info: ModelInfo) -> ModelMeta:
    return ModelMeta(
        n_vocab=info.vocab_size,
        n_ctx=info.context_tokens,
        n_ctx_train=info.context_tokens,
        n_params=info.num_parameters,
        size=info.weight_bytes,
    )
