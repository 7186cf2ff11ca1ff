"""Client connections: the HTTP protocol class, and the uvicorn configuration that uses it."""

import asyncio
import json
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from server.errors import BadRequestError
from server.http.connection_limit import ConnectionLimit

MAX_HEAD_BYTES = 32 * 2**10
"""Maximum bytes of a request line and headers together. Checked only while they are still incomplete."""


class Connection(ConnectionLimit, H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with a timeout for the request line and headers.

    head_timeout_s: seconds from connecting, or from the first byte of a later request, to the end of the
        headers. Then the connection is closed.
    """

    def __init__(self, *, head_timeout_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Stop the timeout once the headers are complete; start it at a later request's first byte."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_head_timer()
        elif self._head_timer is None:
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._stop_head_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP with an error in OpenAI's format, then close the connection."""
        fault = BadRequestError(
            f"{msg} Send plain HTTP/1.1, not HTTPS, with at most {MAX_HEAD_BYTES} bytes of headers.",
            code="invalid_http",
        )
        body = json.dumps(fault.body()).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        response = h11.Response(status_code=400, headers=[*headers, ("Connection", "close")])
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._head_timeout_s, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def uvicorn_config(app: ASGIApp, head_timeout_s: float, **options: Any) -> uvicorn.Config:
    """Return the configuration with which uvicorn serves the app. options: see uvicorn.Config."""
    make_connection: Any = partial(Connection, head_timeout_s=head_timeout_s)
    return uvicorn.Config(
        app,
        http=make_connection,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        **options,
    )
