"""The server's state: GET /health, /metrics, /v1/requests, / and /v1/connect."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from reprise.config.agents.config_file import render
from reprise.config.agents.known import AGENTS, ServedModel, explain_context
from reprise.server.admin.models import served_models
from reprise.server.admin.page import page_file
from reprise.server.errors import BadRequestError, ModelNotFoundError
from reprise.server.generation.service import service_of
from reprise.server.http.access import sent_keys, wants_page
from reprise.server.http.request_log import ENDPOINTS

KEY_PLACEHOLDER = "YOUR-API-KEY"

router = APIRouter()


@router.get("/v1/connect")
async def connect(request: Request, model: str | None = None) -> dict[str, Any]:
    """Return the settings that connect coding agents to this server: files, relative to the home directory.

    model: the name of the model for them; the first of /v1/models if absent. Where a key was sent, the
    settings have YOUR-API-KEY in its place.
    """
    cards = (await served_models(service_of(request))).data
    card = next((card for card in cards if model in (None, card.id)), None)
    if card is None:
        raise ModelNotFoundError(model or "")
    if card.context_length is None:
        raise BadRequestError(
            f"The context of the model '{card.id}' is known only once it is loaded. Load it first.",
            param="model",
            code="model_not_loaded",
        )
    served = ServedModel(
        str(request.base_url).rstrip("/"),
        card.id,
        card.context_length,
        bool(card.tools),
        KEY_PLACEHOLDER if sent_keys(request) else None,
    )
    agents = {name: settings_of(served) for name, settings_of in AGENTS.items()}
    return {
        "model": served.name,
        "url": served.openai_url,
        "agents": [
            {
                "name": name,
                "files": [{"path": f"~/{file.path}", "text": render(file, None)} for file in agent.files],
                "notes": [*agent.notes, *([warning] if (warning := explain_context(name, served)) else [])],
            }
            for name, agent in agents.items()
        ],
    }


@router.get("/metrics", response_class=PlainTextResponse)
async def scrape(request: Request) -> Response:
    """Return all metrics in Prometheus' text format. Counters start at 0 when the server starts."""
    return Response(generate_latest(service_of(request).metrics), media_type=CONTENT_TYPE_LATEST)


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
    status = service.models.status()
    body: dict[str, object] = {
        "status": status.state,
        "running": status.num_running,
        "waiting": status.num_waiting,
    }
    if status.fault is not None:
        body["reason"] = status.fault
    if status.memory_pressure != "none":
        body["memory_pressure"] = status.memory_pressure
    if service.models.may_unload:
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
