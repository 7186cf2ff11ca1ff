"""GET /metrics, and GET /v1/requests."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from reprise.server.generation.service import service_of
from reprise.server.metrics.registry import CONTENT_TYPE

router = APIRouter()


@router.get("/metrics", response_class=PlainTextResponse)
async def scrape(request: Request) -> Response:
    """Return all metrics in Prometheus' text format. Counters start at 0 when the server starts."""
    return Response(service_of(request).metrics.as_text(), media_type=CONTENT_TYPE)


@router.get("/v1/requests")
async def list_requests(request: Request) -> JSONResponse:
    """List the last hundred requests that generated tokens or failed, with the log's counts and no texts.

    The newest comes first.
    """
    return JSONResponse({"object": "list", "data": service_of(request).metrics.recent.newest_first()})
