"""Gives each request an id, its line in the log, its count, and a 500 where the server itself is at fault."""

import asyncio
import re
import secrets
import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.request import EngineError
from server.errors import CLIENT_CLOSED_REQUEST, BadRequestError, RequestFailedError, from_engine
from server.http.error_format import error_response, speaks_anthropic
from server.logs import LOGGER, RequestRecord, attach_record, log_request, record_in
from server.metrics.registry import Metrics

REQUEST_ID = "x-request-id"
ID_PATTERN = "[!-~]{1,128}"
"""What a client may call its request: it is written into the log, and sent back in a header."""
_ID = re.compile(ID_PATTERN)


def record_of(request: HTTPConnection) -> RequestRecord:
    """The log record of the request that is being served."""
    return record_in(request.scope)


async def check_request_id(request: Request) -> None:
    """Raise BadRequestError for an id that the log does not take. A dependency of every route."""
    if request.headers.get(REQUEST_ID, record_of(request).id) != record_of(request).id:
        raise BadRequestError(
            "The header X-Request-Id must be 1 to 128 visible ASCII characters, without spaces; without it "
            "the server makes an id.",
            param=REQUEST_ID,
            code="invalid_request_id",
        )


class RequestLog:
    """ASGI middleware, outermost: id, log line, count, last resort."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start_s = time.perf_counter()
        # A path may hold any character; in the log it must not start a new line.
        path = scope["path"].encode("unicode_escape").decode()[:200]
        given, unique = Headers(scope=scope).get(REQUEST_ID), secrets.token_hex(12)
        request_id = given if given is not None and _ID.fullmatch(given) else f"req-{unique}"
        record = RequestRecord(request_id, unique, f"{scope['method']} {path}")
        attach_record(scope, record)
        self.metrics.begin_request()

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = record.id
                if speaks_anthropic(scope["path"]):
                    headers["request-id"] = record.id
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        except asyncio.CancelledError:
            # The drain is over; who is not served by now is told so.
            if not record.status:
                stopping = EngineError("draining", "The server is shutting down.")
                response = error_response(from_engine(stopping), scope)
                await response(scope, receive, send_with_id)
        # A fault of the server's own: the log gets the trace, the client a 500, the others notice nothing.
        except Exception:
            LOGGER.exception("%s %s failed", record.id, record.endpoint)
            if record.status:
                raise
            response = error_response(RequestFailedError.internal(record.id), scope)
            await response(scope, receive, send_with_id)
        finally:
            record.status = record.status or CLIENT_CLOSED_REQUEST
            total_s = time.perf_counter() - start_s
            record.total_ms = total_s * 1000
            has_generated = record.finish_reason is not None
            spent_s = total_s if has_generated else None
            self.metrics.end_request(scope["path"], record.status, record.error, spent_s)
            log_request(record)
