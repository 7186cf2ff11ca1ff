"""/v1/ngram-mod: inspect, empty, save and load the n-gram table that requests share.

The file is --ngram-table-file; a path is never taken from a request.
"""

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from reprise.engine.interface.errors import SharedTableError
from reprise.server.errors import ApiError, ForbiddenError, shortened
from reprise.server.generation.service import Service, service_of
from reprise.server.http.executor import CONTROL
from reprise.server.logs import LOGGER

router = APIRouter()


@router.get("/v1/ngram-mod")
async def show(request: Request) -> JSONResponse:
    """Return the n-gram table's size, occupancy and counters."""
    service = service_of(request)
    service.check_ready()
    return JSONResponse(_status(service))


@router.post("/v1/ngram-mod/reset")
async def reset(request: Request) -> JSONResponse:
    """Empty the n-gram table and drop everything else that drafters learned from finished requests."""

    def reset_table() -> str:
        service_of(request).models.table.reset()
        return "the n-gram table was emptied"

    return await _change(request, reset_table)


@router.post("/v1/ngram-mod/save")
async def save(request: Request) -> JSONResponse:
    """Write the n-gram table to --ngram-table-file."""
    return await _change(request, lambda: service_of(request).models.table.save())


@router.post("/v1/ngram-mod/load")
async def load(request: Request) -> JSONResponse:
    """Replace the n-gram table's contents with those of --ngram-table-file."""
    return await _change(request, lambda: service_of(request).models.table.load())


async def _change(request: Request, action: Callable[[], str]) -> JSONResponse:
    """Run the action; return what it did and the table's status."""
    _check_origin(request)
    service = service_of(request)
    service.check_ready()
    _status(service)
    try:
        # The engine's thread runs the action between two steps; the event loop must not wait for that.
        done = await CONTROL.run(action)
    except SharedTableError as fault:
        service.check_ready()
        raise _conflict(fault) from fault
    LOGGER.info("ngram-mod: %s", done)
    return JSONResponse({"status": done, "table": _status(service)})


def _status(service: Service) -> dict[str, Any]:
    try:
        return service.models.table.status()
    except SharedTableError as fault:
        raise _conflict(fault) from fault


def _conflict(fault: SharedTableError) -> ApiError:
    message = str(fault)
    return ApiError(f"{message[:1].upper()}{message[1:]}.", status=409, code="shared_memory_error")


def _check_origin(request: Request) -> None:
    """Raise ForbiddenError for web pages of sites not in --cors-origin.

    A page can post to a local server without permission, but the browser adds the page's Origin.
    """
    origin = request.headers.get("origin")
    if origin is None or {origin, "*"} & set(service_of(request).settings.cors_origin):
        return
    if urlsplit(origin).netloc != request.headers.get("host"):
        raise ForbiddenError(
            f"Web pages of {shortened(origin)} may not change the n-gram table. Start the server with "
            "--cors-origin and this origin to allow it.",
            code="foreign_origin",
        )
