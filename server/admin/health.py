"""GET /health, /metrics and /."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from reprise.server.generation.service import service_of
from reprise.server.http.access import wants_page
from reprise.server.metrics.definitions import ENDPOINTS
from reprise.server.page.files import page_file

router = APIRouter()


@router.get("/metrics", response_class=PlainTextResponse)
async def scrape(request: Request) -> Response:
    """Return all metrics in Prometheus' text format. Counters start at 0 when the server starts."""
    return Response(service_of(request).metrics.as_text(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/requests")
async def list_requests(request: Request) -> JSONResponse:
    """List the last hundred requests that generated tokens or failed, with the log's counts and no texts.

    The newest comes first.
    """
    return JSONResponse({"object": "list", "data": list(service_of(request).metrics.recent)})


@router.get("/health")
async def health(request: Request) -> JSONResponse:
    """Return the server's status: 200 if it accepts requests, else 503 with the reason.

    With several models it also says which are loaded, or how far they are.
    """
    service = service_of(request)
    status = service.engine.status()
    body: dict[str, object] = {
        "status": status.state,
        "running": status.num_running,
        "waiting": status.num_waiting,
    }
    if status.fault is not None:
        body["reason"] = status.fault
    if not service.models.is_fixed:
        body["models"] = [
            {
                "id": entry.name,
                "state": entry.state,
                "progress": entry.progress,
                "phase": entry.phase,
                "running": entry.num_running,
            }
            for entry in service.models.loaded_entries()
        ]
    return JSONResponse(body, 200 if status.state == "ready" else 503)


@router.get("/")
async def greet(request: Request) -> Response:
    """List the endpoints; for a browser, show the page."""
    if wants_page(request.scope):
        return page_file("index.html")
    message = "This is Reprise, an OpenAI-compatible inference server."
    return JSONResponse({"message": message, "endpoints": ENDPOINTS})
