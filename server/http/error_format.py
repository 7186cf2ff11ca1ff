"""How errors look on the wire: in OpenAI's shape, but in Anthropic's where clients speak its API.

An ApiError knows its status and OpenAI's object; what it becomes for others is decided here, by the path.
"""

from typing import Any

from fastapi.responses import JSONResponse
from starlette.types import Scope

from server.errors import ApiError
from server.logs import record_in

MESSAGES_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's types by status; every other status is invalid_request_error below 500, api_error above."""

_CODES_FOR_SDKS = frozenset({"thread_unsupported_request"})
"""Codes that Anthropic's SDKs act upon: of this one they send the whole conversation instead."""


def speaks_anthropic(path: str) -> bool:
    """Whether what is asked for at a path is Anthropic's API."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def anthropic_error(fault: ApiError, request_id: str) -> dict[str, Any]:
    """Anthropic's error object, which has no field for a param: the message names what is at fault."""
    kind = _ANTHROPIC_TYPES.get(fault.status) or (
        "invalid_request_error" if fault.status < 500 else "api_error"
    )
    error: dict[str, Any] = {"type": kind, "message": fault.message}
    if fault.code in _CODES_FOR_SDKS:
        error["details"] = {"error_code": fault.code}
    return {"type": "error", "error": error, "request_id": request_id}


def error_response(fault: ApiError, scope: Scope) -> JSONResponse:
    """The error as a response of its own, in the shape that the clients of this path expect.

    scope: of the request, whose record takes note of the error.
    """
    record = record_in(scope)
    record.note(fault.code or fault.type)
    body = anthropic_error(fault, record.id) if speaks_anthropic(scope["path"]) else fault.body()
    return JSONResponse(body, fault.status, fault.headers)
