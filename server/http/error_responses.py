"""Send every error in the format of the request's API: as a response, or as the last event of a stream.

Which errors there are: server/errors.py.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from pydantic_core import to_json
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from reprise.server.errors import (
    CLIENT_CLOSED_REQUEST,
    ApiError,
    ClientGoneError,
    RequestFailedError,
    shortened,
)
from reprise.server.logs import LOGGER, record_in

HAS_BEGUN = "reprise.has_begun"
"""Name of the entry in a request's scope that tells whether a part of its response has been sent."""
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""Anthropic's error types by status. Others: invalid_request_error below 500, api_error from 500 on."""


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


def speaks_anthropic(path: str) -> bool:
    """Return whether a path belongs to Anthropic's API."""
    return f"{path}/".startswith("/v1/messages/")


def ollama_error(fault: ApiError) -> dict[str, str]:
    """Return Ollama's error object, which has nothing but the message."""
    return {"error": fault.message}


def anthropic_error(fault: ApiError, request_id: str) -> dict[str, Any]:
    """Return Anthropic's error object. It has no param field, so the message must name the field at fault."""
    kind = "invalid_request_error" if fault.status < 500 else "api_error"
    error: dict[str, Any] = {"type": _ANTHROPIC_TYPES.get(fault.status, kind), "message": fault.message}
    # Anthropic's SDKs react to this code: they send the whole conversation instead.
    if fault.code == "thread_unsupported_request":
        error["details"] = {"error_code": fault.code}
    return {"type": "error", "error": error, "request_id": request_id}


def note_error(fault: ApiError, scope: Scope) -> ApiError:
    """Record an error for the log; return it with the request's field names and its API's wording."""
    record = record_in(scope)
    renamed = fault.renamed(record.field_names)
    record.note(fault.code or fault.type, renamed.param)
    return renamed.worded(scope["path"])


def internal_error(scope: Scope) -> ApiError:
    """Log the bug being handled in a running stream; record and return the error."""
    record = record_in(scope)
    LOGGER.exception("%s %s failed in its stream", record.id, record.endpoint)
    return note_error(RequestFailedError.internal(record.id), scope)


def _body_of(told: ApiError, scope: Scope) -> dict[str, Any]:
    if speaks_anthropic(scope["path"]):
        return anthropic_error(told, record_in(scope).id)
    return ollama_error(told) if speaks_ollama(scope["path"]) else told.body()


def server_sent_event(data: bytes, kind: str = "") -> bytes:
    """Return an event of a stream. data: JSON. kind: the event's name, if the API has names."""
    return (f"event: {kind}\n".encode() if kind else b"") + b"data: " + data + b"\n\n"


def error_frame(told: ApiError, scope: Scope) -> bytes:
    """Return an error, as note_error() returned it, in its API's format, as the last event of a stream."""
    body = _body_of(told, scope)
    if speaks_ollama(scope["path"]):
        return to_json(body) + b"\n"
    if scope["path"] == "/v1/responses":
        # The model still loads; later ResponsePresenter has more to say.
        body = {"sequence_number": 0, **body["error"], "type": "error"}
    return server_sent_event(to_json(body), body.get("type", ""))


def error_response(fault: ApiError, scope: Scope) -> Response:
    """Make an error's response, or the last event of a running stream. Records the error for the log."""
    told = note_error(fault, scope)
    if scope.get(HAS_BEGUN):
        return Response(error_frame(told, scope))
    return JSONResponse(_body_of(told, scope), told.status, told.headers)


LINGER_S = 5.0
"""Maximum time for which the rest of a refused body is read and dropped."""


async def refuse(
    fault: ApiError, scope: Scope, receive: Receive, send: Send, *, lingers: bool = True
) -> None:
    """Send an error for a request whose body has not been read.

    lingers: read and drop what the client is still sending, or it would lose the response. Not after
        `Expect: 100-continue`, where it sends nothing.
    """
    response = error_response(fault, scope)
    head = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await send(head)
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    if lingers and "expect" not in Headers(scope=scope):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _allowed_methods(scope: Scope, routes: Sequence[Route]) -> str:
    """Return the methods of all routes that match a path; routes without parameters take precedence."""
    matching = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
    exact = [route for route in matching if route.path == scope["path"]]
    methods = {method for route in exact or matching for method in route.methods or ()}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def install_error_handlers(app: FastAPI, routes: Sequence[Route]) -> None:
    """Answer each exception with an error object in its API's format. routes: for the methods of a path."""

    @app.exception_handler(ApiError)
    async def api_error(request: Request, fault: ApiError) -> Response:
        return error_response(fault, request.scope)

    @app.exception_handler(ClientGoneError)
    async def client_gone(_: Request, __: ClientGoneError) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(HTTPException)
    async def http_exception(request: Request, fault: HTTPException) -> Response:
        path = shortened(request.url.path, 200)
        if fault.status_code == 404:
            status, code, headers = 404, "unknown_url", {}
            message = f"There is no endpoint {request.method} {path}. GET / lists the endpoints."
        elif fault.status_code == 405 and "sec-websocket-key" in request.headers:
            # Codex then sends its requests over HTTP at once, rather than after several tries.
            status, code = 426, "websocket_not_supported"
            message = f"{path} is not served as a WebSocket. Use HTTP."
            headers = {"Upgrade": "HTTP/1.1", "Connection": "Upgrade"}
        else:
            allowed = _allowed_methods(request.scope, routes)
            status, code, headers = fault.status_code, "method_not_allowed", {"Allow": allowed}
            message = f"{request.method} {path}: {fault.detail}. Use {allowed}."
        error = ApiError(message, status=status, code=code, headers=headers)
        return error_response(error, request.scope)
