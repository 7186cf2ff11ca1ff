"""GET /health and GET /."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from reprise.server.generation.service import service_of
from reprise.server.http.access import wants_page
from reprise.server.metrics.endpoints import ENDPOINTS
from reprise.server.page.files import page_file

router = APIRouter()


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
