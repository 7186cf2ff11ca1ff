"""What a response says of itself, whatever it answers."""

import time

from fastapi import Request

from server.generation.service import Service
from server.http.request_log import record_of
from server.output.openai_format import Heading


def head(request: Request, service: Service, model: str | None, service_tier: str | None = None) -> Heading:
    """The heading of the response to this request. Raises ModelNotFoundError."""
    return Heading(
        id=record_of(request).unique,
        created=int(time.time()),
        model=service.check_model(model),
        system_fingerprint=service.fingerprint,
        service_tier=service_tier,
    )
