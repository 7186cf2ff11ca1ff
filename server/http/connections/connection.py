"""Client connections: the HTTP protocol class, and the uvicorn configuration that uses it."""

import asyncio
import json
import re
from functools import partial
from typing import Any

import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from reprise.engine.interface.stations import station
from reprise.server.errors import BadRequestError
from reprise.server.http.connections.connection_limit import ConnectionLimit
from reprise.server.http.connections.rounds import REQUEST_S, Rounds
from reprise.server.logs import LOGGER

MAX_HEAD_BYTES = 32 * 2**10
"""Maximum bytes of a request line and headers together."""
READ_BYTES = 32 * 2**10
"""Maximum bytes that are read of a connection before others come next: under 5 ms of work."""
MAX_SMALL_CHUNKS, SMALL_CHUNK_BYTES = 4096, 64
"""How many chunks a body may have beyond one for every SMALL_CHUNK_BYTES: each costs as much as any."""
MAX_PIPELINED = 16
"""Maximum requests that a connection may have waiting for the answer to the one before."""
MAX_UNREAD_BYTES = 64 * 2**20
"""Maximum bytes of answers that one address leaves unread. Beyond, the connection with the most is closed."""
_INVALID = f"Send plain HTTP/1.1, not HTTPS, with at most {MAX_HEAD_BYTES} bytes of headers."
_HOST = b"host"
_UPGRADE, _OF_SAME_LENGTH = re.compile(rb"(?<=\r\n)upgrade(?=[ \t]*:)", re.IGNORECASE), b"ignored"


class Connection(ConnectionLimit, HttpToolsProtocol, asyncio.BufferedProtocol):
    """uvicorn's HTTP/1.1 protocol, with limits on times, on counts, and on output that clients leave unread.

    timeout_s: seconds that a client has from connecting, or from the first byte of a later request, to the
        end of the headers; also the seconds within which it must read some of the output that waits for it.
        Then the connection is closed.
    buffer: takes the input of all connections of an event loop. rounds: decide, also for all of them, when
        input is parsed.
    """

    def __init__(self, *, timeout_s: float, buffer: bytearray, rounds: Rounds, **options: Any) -> None:
        super().__init__(**options)
        self._timeout_s = timeout_s
        self._rounds = rounds
        self._buffer = memoryview(buffer)
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._has_head = False
        self._head_bytes = 0
        self._num_chunks = self._body_bytes = 0
        self._fault = _INVALID

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._start_head_timer()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - a buffered protocol's method
        """Return the buffer into which the transport reads."""
        return self._buffer

    @station("connections")
    def buffer_updated(self, nbytes: int) -> None:
        """Parse the input in the buffer, now or in a later round; until then nothing more is read."""
        if self._rounds.has_time:
            self._rounds.do(partial(self.data_received, self._buffer[:nbytes]))  # type: ignore[arg-type]
        else:
            self.transport.pause_reading()
            self._rounds.wait(self.client_host, partial(self._parse_kept, bytes(self._buffer[:nbytes])))

    @station("connections")
    def _parse_kept(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.data_received(data)
        # Else much of a body waits for the request's handler, which has it read on.
        if not self.flow.read_paused:
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Parse input; stop the timeout after the headers, and start it at a later request's first byte."""
        self._head_bytes += len(data)
        super().data_received(data if self._has_head else _without_upgrade(bytes(data)))
        if self.transport.is_closing() or self._is_answering:
            self._stop_head_timer()
        elif self._head_bytes > MAX_HEAD_BYTES and not self._has_head:
            self.send_400_response(_INVALID)
        # Also for the rest of a body whose request has been refused.
        elif self._head_timer is None:
            self._start_head_timer()

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._has_head = False
        self._head_bytes = self._num_chunks = self._body_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; drop those that follow the body, which nothing here reads."""
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Serve the request. Raises ValueError if the request is invalid; uvicorn then sends a 400."""
        self._has_head = True
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        num_hosts = sum(name == _HOST for name, _ in self.headers)
        is_named = num_hosts == 1 or (num_hosts == 0 and self.parser.get_http_version() == "1.0")
        if num_bytes > MAX_HEAD_BYTES or not is_named:
            raise ValueError
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fault = (
                f"At most {MAX_PIPELINED} requests of a connection may wait. Read the answers first."
            )
            raise ValueError
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Add a chunk to the body. Raises ValueError if there are too many small chunks."""
        self._num_chunks += 1
        self._body_bytes += len(body)
        if self._num_chunks > MAX_SMALL_CHUNKS + self._body_bytes // SMALL_CHUNK_BYTES:
            self._fault = (
                f"The body has more than {MAX_SMALL_CHUNKS} chunks of less than {SMALL_CHUNK_BYTES} bytes. "
                "Send larger chunks."
            )
            raise ValueError
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._has_head = False
        self._head_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeouts."""
        self._stop_head_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer invalid HTTP with an error in OpenAI's format, then close the connection."""
        said = f"{msg} {self._fault}" if msg != self._fault else msg
        body = json.dumps(BadRequestError(said, code="invalid_http").body()).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(
            body
        )
        self.transport.write(STATUS_LINE[400] + head + body)
        self.transport.close()

    def pause_writing(self) -> None:
        """Wait until the client reads; close the connection if it reads nothing for timeout_s.

        If the connections of the client's address have too much unread, close the one that has the most.
        """
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._timeout_s, self._check_reading, self._num_unread)
        others = [
            one
            for one in self.connections
            if isinstance(one, Connection) and one.client_host == self.client_host
        ]
        if sum(one._num_unread for one in others) > MAX_UNREAD_BYTES:
            max(others, key=lambda one: one._num_unread)._give_up("more than the limit of one address")

    def resume_writing(self) -> None:
        """Stop waiting for the client to read."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = partial(_without_chunks, app, cycle)
        start = partial(super()._start_asgi_task, cycle, app)
        if self._rounds.has_time:
            self._rounds.do(start, REQUEST_S)
        else:
            self._rounds.wait(self.client_host, start, REQUEST_S)

    @property
    def _is_answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def client_host(self) -> str:
        """The client's address."""
        return self.client[0] if self.client else ""

    @property
    def _num_unread(self) -> int:
        return self.transport.get_write_buffer_size()

    def _check_reading(self, num_before: int) -> None:
        """Close the connection if nothing has been read since the last check."""
        if self._num_unread >= num_before:
            self._give_up(f"nothing of it in {self._timeout_s:g} s")
        else:
            self._write_timer = self.loop.call_later(self._timeout_s, self._check_reading, self._num_unread)

    def _give_up(self, why: str) -> None:
        LOGGER.warning(
            "a client at %s leaves %d bytes of an answer unread, %s: its connection is closed",
            self.client_host,
            self._num_unread,
            why,
        )
        self.transport.abort()

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: the request is answered as if it had not asked for another protocol."""

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._timeout_s, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


async def _without_chunks(
    app: ASGIApp, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve a request of HTTP/1.0, which has no chunks: a body of unknown length ends with its connection."""

    is_sized = True

    async def send_plainly(message: Message) -> None:
        nonlocal is_sized
        if message["type"] == "http.response.start":
            is_sized = "content-length" in Headers(scope=message)
            cycle.chunked_encoding = None if is_sized else False
        elif not is_sized:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_plainly)


def _without_upgrade(data: bytes) -> bytes:
    """Return the beginning of a request without its wish for another protocol, which may be denied.

    The parser takes what follows such a head for the other protocol, so the body would be lost. Java's client
    wishes for HTTP/2 in each first request.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(_OF_SAME_LENGTH, head) + end + body


def uvicorn_config(app: ASGIApp, timeout_s: float, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration for the app. options: see uvicorn.Config."""
    make_connection: Any = partial(
        Connection, timeout_s=timeout_s, buffer=bytearray(READ_BYTES), rounds=Rounds()
    )
    return uvicorn.Config(
        app,
        http=make_connection,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        **options,
    )
