"""Find and lease the model that a request names; if it is not loaded, wait until it is.

Meanwhile a stream of events reports the progress of the load in comments, and a stream of JSON lines, which
has no comments, sends lines without text.
"""

import asyncio
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from fastapi import Request

from reprise.config.model_settings import display_name
from reprise.engine.interface.embeddings import Purpose
from reprise.engine.interface.models import ModelEntry, ModelUse
from reprise.server.errors import (
    ApiError,
    BadRequestError,
    ClientGoneError,
    ForbiddenError,
    ModelNotFoundError,
    from_load,
)
from reprise.server.generation.service import ANY_MODEL, LeasedModel, Service, service_of, wait_unless_gone
from reprise.server.http.executor import MODEL_FILES
from reprise.server.http.request_log import note_ignored, record_of
from reprise.server.http.while_loading import end_later, write_early
from reprise.server.output.presenter import LINES
from reprise.server.requests.generation_fields import KeepAlive, keep_alive_s

if TYPE_CHECKING:
    from reprise.engine.engine import Engine


def resolve(service: Service, requested: str | None, purpose: Purpose | None = None) -> str:
    """Return the requested name, the first model's name for its aliases, or the default model's for None.

    The name may be unknown. purpose: decides which model is the default; None for generating.
    """
    if requested is None:
        return _default_name(service, purpose)
    is_alias = requested in service.settings.served_model_name
    return service.models.first_name if is_alias else requested


def _default_name(service: Service, purpose: Purpose | None) -> str:
    settings = service.settings
    sources = {"embed": settings.embedding_model, "rerank": settings.rerank_model}
    source = sources.get(purpose or "generate")
    return display_name(source) if source else service.models.first_name


async def find_entry(service: Service, name: str, purpose: Purpose | None = None) -> ModelEntry:
    """Return the entry of a model, or of the one that serves unknown names.

    name: see resolve(). purpose: decides which model is the default; None for generating.
    Raises ModelNotFoundError.
    """
    entry = await MODEL_FILES.run(service.models.find, name)
    if entry is None and ANY_MODEL in service.settings.served_model_name:
        entry = await MODEL_FILES.run(service.models.find, _default_name(service, purpose))
    if entry is None:
        raise ModelNotFoundError(name, () if service.models.may_unload else service.model_names)
    return entry


async def find_loadable(service: Service, name: str, purpose: Purpose | None = None) -> str:
    """Return the name of a model that requests may use.

    name: see resolve(). purpose: what the model must be for; None for anything.
    Raises ModelNotFoundError, ForbiddenError or BadRequestError.
    """
    entry, settings = await find_entry(service, name, purpose), service.settings
    check_purpose(entry.name, entry.purpose, purpose)
    may_load = settings.allow_load or entry.name == settings.model_name or entry.name in settings.beside
    if entry.state == "unloaded" and not may_load:
        raise ForbiddenError(
            f"The model '{entry.name}' is not loaded, and this server loads none for requests. Start it with "
            "--allow-load to allow it.",
            code="loading_not_allowed",
            param="model",
        )
    return entry.name


_WHAT: dict[Purpose, str] = {
    "generate": "generates text",
    "embed": "makes embeddings",
    "rerank": "ranks documents",
}
_WAYS_OUT: dict[Purpose, str] = {
    "generate": "Ask for a model that generates text; GET /v1/models lists what there is.",
    "embed": "Ask for a model that makes embeddings (GET /v1/models), or start the server with "
    "--embedding-model.",
    "rerank": "Ask for a model that ranks (GET /v1/models), or start the server with --rerank-model.",
}


def check_purpose(name: str, purpose: Purpose, wanted: Purpose | None) -> None:
    """Raise BadRequestError for a model that is for something else."""
    if wanted not in (None, purpose):
        raise BadRequestError(
            f"The model '{name}' {_WHAT[purpose]}, and this endpoint is for a model that {_WHAT[wanted]}. "
            f"{_WAYS_OUT[wanted]}",
            param="model",
            code="wrong_kind_of_model",
        )


QUIET_S = 0.25
"""Seconds for which a stream waits for its model without a word, so that an early error has its status."""

COMMENT_S = 1.0
"""Seconds between comments about the progress of a load."""


async def lease_model(
    request: Request,
    model: str | None,
    *,
    silence: bytes | None = None,
    keep_alive: KeepAlive = None,
    purpose: Purpose | None = "generate",
) -> LeasedModel:
    """Return the named model, which stays loaded until the response has been sent.

    model: None is the model that the server started with.
    silence: sent by a stream while its model is loaded; b"" for comments. None if the response is no stream.
    keep_alive: how long to keep the model loaded after the request.
    purpose: what the model must be for; None for anything.
    Raises ApiError if the model does not exist or cannot be loaded.
    """
    service = service_of(request)
    service.check_ready()
    models, keep_s = service.models, None
    if models.may_unload:
        keep_s = keep_alive_s(keep_alive)
    else:
        # Whatever the name: there is no other.
        check_purpose(models.first_name, models.info.purpose, purpose)
        if keep_alive is not None:
            note_ignored(request, ["keep_alive"])
    name = resolve(service, model, purpose)
    if (use := models.use_loaded(name)) is None:
        name = await find_loadable(service, name, purpose)
        use = models.use_loaded(name) or await _load(request, service, name, silence)
    use.keep_s = keep_s
    end_later(request, use.end)
    check_purpose(name, use.engine.info.purpose, purpose)
    if models.may_unload:
        record_of(request).model = name
    return service.leased(use.engine, name)


async def lease_for(request: Request, body: Any, purpose: Purpose | None = "generate") -> LeasedModel:
    """Lease the model that a body names. See lease_model()."""
    return await lease_model(
        request,
        body.model,
        silence=b"" if getattr(body, "stream", False) else None,
        keep_alive=getattr(body, "keep_alive", None),
        purpose=purpose,
    )


def _acquire(models: "Engine", name: str) -> "Future[ModelUse]":
    try:
        return models.acquire(name)
    except Exception as fault:
        raise from_load(fault) from fault


async def _load(request: Request, service: Service, name: str, silence: bytes | None) -> ModelUse:
    """Load a model, and report the progress in the stream that the response will be, if it will be one.

    Raises ApiError if the model cannot be loaded within --load-timeout-s, and ClientGoneError.
    """
    future = await MODEL_FILES.run(_acquire, service.models, name)
    loop, limit_s = asyncio.get_running_loop(), service.settings.load_timeout_s
    until = loop.time() + limit_s
    loading, use = asyncio.wrap_future(future), None
    try:
        if silence is None:
            await wait_unless_gone(loading, request.receive, limit_s)
        else:
            await wait_unless_gone(loading, request.receive, min(QUIET_S, limit_s))
            kind = LINES if silence else "text/event-stream; charset=utf-8"
            while not loading.done() and (left_s := until - loop.time()) > 0:
                await write_early(request, silence or _comment(service, name), kind)
                await wait_unless_gone(loading, request.receive, min(COMMENT_S, left_s))
        if not loading.done():
            raise TimeoutError(name)
        use = loading.result()
        return use
    except (ApiError, ClientGoneError):
        raise
    except Exception as fault:
        raise from_load(fault) from fault
    finally:
        # Whoever waits no longer must not keep the model.
        if use is None and not future.cancel():
            future.add_done_callback(_end_use)


def _comment(service: Service, name: str) -> bytes:
    """Return a comment of a stream about how far a model is."""
    entries = service.models.loaded_entries()
    progress = next((entry.progress for entry in entries if entry.name == name), None)
    what = "waiting for memory" if progress is None else f"{progress:.0%}"
    return f": loading {name}, {what}\n".encode()


def _end_use(future: "Future[ModelUse]") -> None:
    if not future.cancelled() and future.exception() is None:
        future.result().end()
