"""One connection of a client, and how uvicorn is set up to serve it."""

import asyncio
import json
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from server.errors import BadRequestError

MAX_HEAD_BYTES = 32 * 2**10
"""Of a request's first line and headers, as far as they come in several pieces."""


class Connection(H11Protocol):
    """uvicorn's, but a client that never gets to the end of its headers is let go of.

    head_timeout_s: how long it has, from when it connects, or from the first byte of a later request.
    """

    def __init__(self, *, head_timeout_s: float, **given: Any) -> None:
        super().__init__(**given)
        self._head_timeout_s = head_timeout_s
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio.Protocol."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._forget_head()
        elif self._head_timer is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._forget_head()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, in OpenAI's shape."""
        fault = BadRequestError(
            f"{msg} It must be HTTP/1.1, with at most {MAX_HEAD_BYTES} bytes of headers.", code="invalid_http"
        )
        body = json.dumps(fault.body()).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        answer = h11.Response(status_code=400, headers=[*headers, ("Connection", "close")])
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._head_timeout_s, self.transport.close)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def uvicorn_config(app: ASGIApp, head_timeout_s: float, **options: Any) -> uvicorn.Config:
    """How uvicorn serves the app. options: see uvicorn.Config."""
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
