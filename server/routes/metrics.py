"""GET /metrics."""

from fastapi import APIRouter, Request, Response

from server.generation.service import service_of
from server.metrics.registry import CONTENT_TYPE

router = APIRouter()


@router.get("/metrics")
async def scrape(request: Request) -> Response:
    """Return all metrics in Prometheus' text format. Counters start at 0 when the server starts."""
    return Response(service_of(request).metrics.as_text(), media_type=CONTENT_TYPE)
