"""Answer every request with a 503 that says how far the start is, until the server itself listens."""

import secrets
import socket
import threading
from types import TracebackType

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
"""When a client should ask again: a start takes from seconds to minutes."""

LAST_BYTES_S = 1
"""Seconds that connections get to end before the server itself takes over."""

MAX_CONNECTIONS = 256
"""Connections that wait to be accepted."""


class WhileLoading:
    """Answers requests on a bound socket, on a thread of its own, from the first phase to the context's end.

    GET /health gets the present phase of the start and its share done, as fields; any other request gets an
    error that names them. Keys and Host headers are checked as later. Connections that come between this and
    the server's own listening wait for that.

    bound: stays open, and goes on listening, after the context.
    """

    def __init__(self, settings: Settings, bound: socket.socket) -> None:
        self._bound = bound
        self._phase, self._share = "", 0.0
        self._access = Access(self._answer, settings, load_keys(settings))
        config = uvicorn_config(
            self._serve,
            settings.body_timeout_s,
            interface="asgi3",
            lifespan="off",
            backlog=MAX_CONNECTIONS,
            timeout_graceful_shutdown=LAST_BYTES_S,
        )
        self._server = _Listening(config)
        self._thread = threading.Thread(target=self._run, name="while-loading", daemon=True)

    def __enter__(self) -> "WhileLoading":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()

    def advance(self, what: str, share: float) -> None:
        """Note the present phase, and the share of it that is done, in [0, 1]; the first one is waited for.

        Called on one thread.
        """
        self._phase, self._share = what, share
        if not self._server.listens.is_set():
            self._thread.start()
            self._server.listens.wait()

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._bound.dup()])
        finally:
            self._server.listens.set()

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


class _Listening(uvicorn.Server):
    """A uvicorn server that tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        await super().startup(sockets)
        self.listens.set()
