"""Answer requests before their model is loaded: with a 503, or with a stream that begins at once.

While the server starts, WhileLoading answers every request with a 503 that reports the progress. Later, the
stream of a request whose model must be loaded first begins with comments (EarlyStreams). Its status is then
200, so an error is the stream's last event.
"""

import contextlib
import secrets
import socket
import threading
import time
from collections.abc import Callable

import uvicorn
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reprise.config.settings import Settings
from reprise.server.errors import UnavailableError, retry_after
from reprise.server.http.access import Access, load_keys
from reprise.server.http.body import BODY_TIMEOUT_S
from reprise.server.http.connection_limits import uvicorn_config
from reprise.server.http.error_responses import HAS_BEGUN, error_frame, internal_error, refuse
from reprise.server.http.request_log import REQUEST_ID, with_prefix
from reprise.server.logs import RequestRecord, attach_record

RETRY_AFTER_S = 5.0
LAST_BYTES_S = 1
"""Seconds that connections get to end before the server itself takes over."""


class WhileLoading:
    """Answers requests on a bound socket, on a thread, from the first advance() to the context's end.

    GET /health has the phase of the start and its share done as fields; other requests get an error with
    them. Keys and Host headers are checked. The socket stays open: connections wait for the server itself.
    """

    def __init__(self, settings: Settings, bound: socket.socket) -> None:
        self._phase, self._share = "", 0.0
        self._access = Access(self._answer, settings, load_keys(settings))
        config = uvicorn_config(
            self._serve,
            BODY_TIMEOUT_S,
            interface="asgi3",
            lifespan="off",
            backlog=256,
            timeout_graceful_shutdown=LAST_BYTES_S,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=lambda: self._server.run([bound.dup()]), name="while-loading", daemon=True
        )

    def __enter__(self) -> "WhileLoading":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()

    def advance(self, what: str, share: float) -> None:
        """Record the phase of the start and its share done, in [0, 1]. The first call starts listening."""
        self._phase, self._share = what, share
        if self._thread.ident is None:
            self._thread.start()
            while self._thread.is_alive() and not self._server.started:
                time.sleep(0.01)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = with_prefix(scope["path"])
        unique = secrets.token_hex(12)
        record = RequestRecord(f"req-{unique}", unique, scope["path"])
        attach_record(scope, record)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = record.id
            await send(message)

        await self._access(scope, receive, send_with_id)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        phase, share, headers = self._phase, self._share, retry_after(RETRY_AFTER_S)
        if scope["path"] == "/health":
            body = {"status": "loading", "running": 0, "waiting": 0, "phase": phase, "progress": share}
            await JSONResponse(body, 503, headers)(scope, receive, send)
            return
        message = f"The model is still loading: {phase}, {100 * share:.0f} %. Try again soon."
        await refuse(UnavailableError(message, code="loading", headers=headers), scope, receive, send)


_WRITE = "reprise.write_early"
_HELD = "reprise.held"
_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class EarlyStreams:
    """ASGI middleware around the routes: lets a response begin before its route has made it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def write(frame: bytes, content_type: str, *, is_last: bool = False) -> None:
            if not scope.get(HAS_BEGUN):
                scope[HAS_BEGUN] = True
                headers = [(b"content-type", content_type.encode()), *_HEADERS]
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": frame, "more_body": not is_last})

        async def send_rest(message: Message) -> None:
            if message["type"] != "http.response.start" or not scope.get(HAS_BEGUN):
                await send(message)

        scope[_WRITE] = write
        with contextlib.ExitStack() as held:
            scope[_HELD] = held
            try:
                await self.app(scope, receive, send_rest)
            except Exception:
                if not scope.get(HAS_BEGUN):
                    raise
                # A bug in the server. The status has been sent already.
                await write(error_frame(internal_error(scope), scope), "", is_last=True)


async def write_early(request: HTTPConnection, frame: bytes, content_type: str) -> None:
    """Send a frame of the request's response ahead of its route; the first call sends the headers."""
    await request.scope[_WRITE](frame, content_type)


def end_later(request: HTTPConnection, end: Callable[[], None]) -> None:
    """Call end() once the request's response has been sent, or its client has left."""
    request.scope[_HELD].callback(end)
