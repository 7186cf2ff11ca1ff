"""Answer every request with a 503 that says how far the start is, until the server itself listens."""

import secrets
import socket
import threading
import time

import uvicorn
from fastapi.responses import JSONResponse
from starlette.datastructures import MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from reprise.config.settings import Settings
from reprise.server.errors import UnavailableError, retry_after
from reprise.server.http.access import Access, load_keys
from reprise.server.http.connection import uvicorn_config
from reprise.server.http.error_responses import refuse
from reprise.server.http.request_log import REQUEST_ID, with_prefix
from reprise.server.logs import RequestRecord, attach_record

RETRY_AFTER_S = 5.0
LAST_BYTES_S = 1
"""Seconds that connections get to end before the server itself takes over."""


class WhileLoading:
    """Answers requests on a bound socket, on a thread, from the first advance() to the context's end.

    GET /health gets the phase of the start and its share done as fields, other requests an error that names
    them. Keys and Host headers are checked. The socket stays open: connections wait for the server itself.
    """

    def __init__(self, settings: Settings, bound: socket.socket) -> None:
        self._phase, self._share = "", 0.0
        self._access = Access(self._answer, settings, load_keys(settings))
        options = {"interface": "asgi3", "lifespan": "off", "backlog": 256}
        self._server = uvicorn.Server(
            uvicorn_config(
                self._serve, settings.body_timeout_s, timeout_graceful_shutdown=LAST_BYTES_S, **options
            )
        )
        self._bound = bound
        self._thread = threading.Thread(target=self._run, name="while-loading", daemon=True)

    def __enter__(self) -> "WhileLoading":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._server.run([self._bound.dup()])

    def advance(self, what: str, share: float) -> None:
        """Note the phase of the start and the share of it that is done, in [0, 1]; at the first, listen."""
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
