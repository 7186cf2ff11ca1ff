"""GET /health for those who watch, GET / for those who are new."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from server.generation.service import service_of
from server.metrics.endpoints import ENDPOINTS

router = APIRouter()


@router.get("/health")
async def health(request: Request) -> JSONResponse:
    """Whether requests are taken now: 200, or 503 with the reason."""
    status = service_of(request).engine.status()
    told: dict[str, object] = {
        "status": status.state,
        "running": status.num_running,
        "waiting": status.num_waiting,
    }
    if status.fault is not None:
        told["reason"] = status.fault
    return JSONResponse(told, 200 if status.state == "ready" else 503)


@router.get("/")
async def greet() -> dict[str, object]:
    """What this is, and where to go."""
    return {"message": "This is Reprise, an OpenAI-compatible inference server.", "endpoints": ENDPOINTS}
