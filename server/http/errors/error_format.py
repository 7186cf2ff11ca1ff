"""Write errors in the API's own format: Anthropic's under /v1/messages, Ollama's under /api, else OpenAI's.

An ApiError has its status and OpenAI's error object; the request's path decides which format is sent.
"""

from typing import Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.types import Scope

from reprise.server.errors import ApiError
from reprise.server.logs import record_in

MESSAGES_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's error types by status. Others: invalid_request_error below 500, api_error from 500 on."""

_CODES_FOR_SDKS = frozenset({"thread_unsupported_request"})
"""Codes that Anthropic's SDKs react to: after this one they send the whole conversation instead."""


class ErrorObject(BaseModel):
    """An error. message: for people. param: the field at fault. code: for programs."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """The body of every error response, except under /v1/messages and /api."""

    error: ErrorObject


class MessagesErrorObject(BaseModel):
    """An error in Anthropic's format. details: error_code, where Anthropic's packages react to it."""

    type: str
    message: str
    details: dict[str, str] | None = None


class MessagesErrorResponse(BaseModel):
    """The body of every error response under /v1/messages."""

    type: Literal["error"]
    error: MessagesErrorObject
    request_id: str


class OllamaErrorResponse(BaseModel):
    """The body of every error response under /api."""

    error: str


def speaks_ollama(path: str) -> bool:
    """Return whether a path belongs to Ollama's API."""
    return path.startswith("/api/")


def ollama_error(fault: ApiError) -> dict[str, str]:
    """Return Ollama's error object, which has nothing but the message."""
    return {"error": fault.message}


def speaks_anthropic(path: str) -> bool:
    """Return whether a path belongs to Anthropic's API."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def anthropic_error(fault: ApiError, request_id: str) -> dict[str, Any]:
    """Return Anthropic's error object. It has no param field, so the message must name the field at fault."""
    kind = _ANTHROPIC_TYPES.get(fault.status) or (
        "invalid_request_error" if fault.status < 500 else "api_error"
    )
    error: dict[str, Any] = {"type": kind, "message": fault.message}
    if fault.code in _CODES_FOR_SDKS:
        error["details"] = {"error_code": fault.code}
    return {"type": "error", "error": error, "request_id": request_id}


def _told(fault: ApiError, scope: Scope) -> tuple[ApiError, dict[str, Any]]:
    """Note an error in the request's log record; return it in the request's words, and its object."""
    record, path = record_in(scope), scope["path"]
    renamed = fault.renamed(record.field_names)
    record.note(fault.code or fault.type, renamed.param)
    told = renamed.worded(path)
    if speaks_anthropic(path):
        return told, anthropic_error(told, record.id)
    return told, ollama_error(told) if speaks_ollama(path) else told.body()


def error_frame(fault: ApiError, scope: Scope) -> bytes:
    """Return an error in its API's format, as the last event of a stream that has sent only comments so far.

    scope: the request's; the error's code is noted in its log record.
    """
    _, body = _told(fault, scope)
    if speaks_ollama(scope["path"]):
        return to_json(body) + b"\n"
    if scope["path"] == "/v1/responses":
        body = {"sequence_number": 0, **body["error"], "type": "error"}
    return (b"event: error\n" if "type" in body else b"") + b"data: " + to_json(body) + b"\n\n"


def error_response(fault: ApiError, scope: Scope) -> JSONResponse:
    """Make the HTTP response for an error, in the format of the request's path.

    scope: the request's; the error's code is noted in its log record.
    """
    told, body = _told(fault, scope)
    return JSONResponse(body, told.status, told.headers)
