"""Write errors in the API's own format: Anthropic's under /v1/messages, Ollama's under /api, else OpenAI's.

An ApiError has its status and OpenAI's error object; the request's path decides which format is sent.
"""

from typing import Any, Literal

from fastapi.responses import JSONResponse
from pydantic import BaseModel
from pydantic_core import to_json
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


def _told(fault: ApiError, scope: Scope) -> ApiError:
    """Note an error in the request's log record; return it in the words and names of the request."""
    record = record_in(scope)
    renamed = fault.renamed(record.field_names)
    record.note(fault.code or fault.type, renamed.param)
    return renamed.worded(scope["path"])


def error_frame(fault: ApiError, scope: Scope) -> bytes:
    """Return the event with which a stream ends that has had nothing but comments, in its API's format.

    scope: the request's; the error's code is noted in its log record.
    """
    record = record_in(scope)
    fault = _told(fault, scope)
    if speaks_anthropic(scope["path"]):
        return b"event: error\ndata: " + to_json(anthropic_error(fault, record.id)) + b"\n\n"
    if speaks_ollama(scope["path"]):
        return to_json(ollama_error(fault)) + b"\n"
    if scope["path"] == "/v1/responses":
        error = {"type": "error", "sequence_number": 0, **fault.body()["error"]}
        return b"event: error\ndata: " + to_json(error | {"type": "error"}) + b"\n\n"
    return b"data: " + to_json(fault.body()) + b"\n\n"


def error_response(fault: ApiError, scope: Scope) -> JSONResponse:
    """Make the HTTP response for an error, in the format of the request's path.

    scope: the request's; the error's code is noted in its log record.
    """
    record = record_in(scope)
    fault = _told(fault, scope)
    body: dict[str, Any] = fault.body()
    if speaks_anthropic(scope["path"]):
        body = anthropic_error(fault, record.id)
    elif speaks_ollama(scope["path"]):
        body = ollama_error(fault)
    return JSONResponse(body, fault.status, fault.headers)
