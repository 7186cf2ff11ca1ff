"""Per request: id, normalized path, log record, metrics. Also the list of endpoints, and 500 for bugs."""

import asyncio
import re
import secrets
import time
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reprise.engine.interface.errors import EngineError
from reprise.server.errors import (
    CLIENT_CLOSED_REQUEST,
    BadRequestError,
    RequestFailedError,
    from_engine,
    requested_name,
)
from reprise.server.http.error_responses import error_response, speaks_anthropic
from reprise.server.logs import LOGGER, RequestRecord, as_header, attach_record, log_request, record_in
from reprise.server.metrics.registry import Metrics

REQUEST_ID = "x-request-id"
IGNORED, RELAXED = "x-reprise-ignored", "x-reprise-relaxed"
"""The headers that name what of a request had no effect, and what of its schemas is not enforced."""
ID_PATTERN = "[!-~]{1,128}"
"""Valid request ids. They are written to the log and sent back in a header."""
_ID = re.compile(ID_PATTERN)
_FRONT = re.compile("/+(?:v1/+)*")
UNPREFIXED = frozenset({"chat", "completions", "embeddings", "messages", "models", "responses"})
"""Beginnings of paths that are served without /v1 in front, too."""


def record_of(request: HTTPConnection) -> RequestRecord:
    """Return the log record of a request."""
    return record_in(request.scope)


def note_ignored(request: HTTPConnection, what: Iterable[str]) -> None:
    """Note the parts of a request that have no effect, for the log and the header x-reprise-ignored."""
    record = record_of(request)
    # Once each, though a request may be prepared twice.
    record.ignored = list(dict.fromkeys([*record.ignored, *what]))


def note_relaxed(request: HTTPConnection, what: Iterable[str]) -> None:
    """Note the parts of a request's schemas that are not enforced, for the response's header."""
    record = record_of(request)
    record.relaxed += (requested_name(path, record.field_names) for path in what)


async def check_request_id(request: Request) -> None:
    """Raise BadRequestError if the client sent an invalid request id. A dependency of every route."""
    if request.headers.get(REQUEST_ID, record_of(request).id) != record_of(request).id:
        raise BadRequestError(
            "The header X-Request-Id must be 1 to 128 visible ASCII characters without spaces. Leave it out "
            "to let the server make an id.",
            param=REQUEST_ID,
            code="invalid_request_id",
        )


def with_prefix(path: str) -> str:
    """Return the path with /v1 in front, if other servers serve the endpoint without it."""
    _, first, *_ = f"{path}/".split("/", 2)
    return f"/v1{path}" if first in UNPREFIXED else path


def tidied(path: str) -> str:
    """Return the path without a second /v1, doubled slashes and a slash at its end.

    Slashes in a model's name stay, and so does the page's last one, from which its files are found.
    """
    front = _FRONT.match(path)
    rest = path[front.end() :] if front else ""
    if front is None or rest.startswith("ui/"):
        return path
    if not rest.startswith("models/"):
        rest = re.sub("//+", "/", rest)
    start = "/v1/" if "v1" in front[0] else "/"
    return (start + rest).rstrip("/") or "/"


ENDPOINTS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /infill",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "POST /v1/responses/compact",
    "GET /v1/responses/{id}",
    "DELETE /v1/responses/{id}",
    "POST /v1/responses/{id}/cancel",
    "GET /v1/responses/{id}/input_items",
    "POST /api/chat",
    "POST /api/generate",
    "GET /api/tags",
    "POST /api/show",
    "GET /api/ps",
    "POST /api/pull",
    "GET /api/version",
    "POST /api/embed",
    "POST /api/embeddings",
    "POST /api/create",
    "POST /api/copy",
    "POST /api/push",
    "POST /api/blobs/{digest}",
    "DELETE /api/delete",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "POST /rerank",
    "POST /v2/rerank",
    "POST /tokenize",
    "POST /detokenize",
    "GET /tokenizer_info",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "POST /v1/models/load",
    "POST /v1/models/unload",
    "POST /v1/models/pull",
    "GET /v1/ngram-mod",
    "POST /v1/ngram-mod/reset",
    "POST /v1/ngram-mod/save",
    "POST /v1/ngram-mod/load",
    "GET /v1/connect",
    "GET /v1/requests",
    "GET /metrics",
    "GET /health",
)
_PATHS = tuple(dict.fromkeys(endpoint.split()[1] for endpoint in ENDPOINTS))
_OPEN_ENDED = tuple(path for path in reversed(_PATHS) if "{" in path)
"""Paths with a parameter. Of two with the same prefix, the longer one comes first."""


def endpoint_of(path: str) -> str:
    """Return a path's endpoint label; "other" for unknown paths, as labels must stay few."""
    if path in _PATHS:
        return path
    for known in _OPEN_ENDED:
        if path.startswith(known.partition("{")[0]) and path.endswith(known.partition("}")[2]):
            return known
    return "other"


class RequestLog:
    """The outermost ASGI middleware: request id, log line, metrics, HEAD, and the handler of last resort."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, then log and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        known = tidied(scope["path"])
        is_tidied, scope["path"] = known != scope["path"], with_prefix(known)
        start_s = time.perf_counter()
        # A path may contain any character, but must not start a new line in the log.
        path = scope["path"].encode("unicode_escape").decode()[:200]
        given, unique = Headers(scope=scope).get(REQUEST_ID), secrets.token_hex(12)
        request_id = given if given is not None and _ID.fullmatch(given) else f"req-{unique}"
        record = RequestRecord(request_id, unique, f"{scope['method']} {path}")
        attach_record(scope, record)
        if is_tidied:
            note_ignored(Request(scope), ["path (understood)"])
        self.metrics.begin_request()

        is_head = scope["method"] == "HEAD"
        # HEAD is answered as GET, without the body. Claude Code probes a server with it.
        inner = {**scope, "method": "GET"} if is_head else scope

        async def send_with_id(message: Message) -> None:
            if is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            if message["type"] == "http.response.start":
                record.status = message["status"]
                own = {REQUEST_ID: record.id}
                own["request-id"] = record.id if speaks_anthropic(scope["path"]) else ""
                own |= {IGNORED: as_header(record.ignored), RELAXED: as_header(record.relaxed)}
                MutableHeaders(scope=message).update({name: value for name, value in own.items() if value})
            await send(message)

        try:
            await self.app(inner, receive, send_with_id)
        except asyncio.CancelledError:
            # The drain time is over: requests without a response yet get a 503.
            if not record.status:
                stopping = EngineError("draining", "The server is shutting down.")
                response = error_response(from_engine(stopping), scope)
                await response(scope, receive, send_with_id)
        # A bug: the traceback is logged, the client gets a 500, other requests are not affected.
        except Exception:
            LOGGER.exception("%s %s failed", record.id, record.endpoint)
            if record.status:
                raise
            response = error_response(RequestFailedError.internal(record.id), scope)
            await response(scope, receive, send_with_id)
        finally:
            record.status = record.status or CLIENT_CLOSED_REQUEST
            record.total_ms = (time.perf_counter() - start_s) * 1000
            self.metrics.end_request(endpoint_of(scope["path"]), record)
            log_request(record)
