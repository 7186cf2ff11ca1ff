"""/v1/ngram-mod: look at the n-gram table that requests share, empty it, save it, load it.

The file is the one that the settings name; no path is ever taken from a request.
"""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from engine.request import SharedTableError
from server.errors import BadRequestError, ForbiddenError
from server.generation.service import Service, service_of
from server.logs import LOGGER

router = APIRouter()


@router.get("/v1/ngram-mod")
async def show(request: Request) -> JSONResponse:
    """How full the table is, and how often it was written and read."""
    service = service_of(request)
    service.check_ready()
    return JSONResponse(_status(service))


@router.post("/v1/ngram-mod/reset")
async def reset(request: Request) -> JSONResponse:
    """Forget what finished requests taught."""

    def forget() -> str:
        service_of(request).engine.table_reset()
        return "what finished requests taught is forgotten"

    return await _change(request, forget)


@router.post("/v1/ngram-mod/save")
async def save(request: Request) -> JSONResponse:
    """Write the table to its file."""
    return await _change(request, service_of(request).engine.table_save)


@router.post("/v1/ngram-mod/load")
async def load(request: Request) -> JSONResponse:
    """Read the table from its file, in place of what it holds."""
    return await _change(request, service_of(request).engine.table_load)


async def _change(request: Request, action: Callable[[], str]) -> JSONResponse:
    """Do it, and answer with what was done and how the table is now."""
    _refuse_other_sites(request)
    service = service_of(request)
    service.check_ready()
    _status(service)
    try:
        # The engine's thread does it between two steps; the event loop must not wait for that.
        done = await asyncio.to_thread(action)
    except SharedTableError as fault:
        service.check_ready()
        raise _refused(fault) from fault
    LOGGER.info("ngram-mod: %s", done)
    return JSONResponse({"status": done, "table": _status(service)})


def _status(service: Service) -> dict[str, Any]:
    try:
        return service.engine.table_status()
    except SharedTableError as fault:
        raise _refused(fault) from fault


def _refused(fault: SharedTableError) -> BadRequestError:
    return BadRequestError(f"{fault}.", code="shared_memory_error")


def _refuse_other_sites(request: Request) -> None:
    """A web page can post to a local server unasked, but not without saying where it comes from."""
    origin = request.headers.get("origin")
    if origin is None or {origin, "*"} & set(service_of(request).settings.cors_origin):
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise ForbiddenError("Web pages of other sites may not do this.", code="foreign_origin")
