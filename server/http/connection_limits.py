"""Limits of connections: number, slowness and size; and whose input is parsed next."""

import asyncio
import json
import resource
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from httptools import HttpParserUpgrade, HttpRequestParser
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from reprise.engine.interface.spans import span
from reprise.server.errors import BadRequestError, UnavailableError, retry_after
from reprise.server.logs import LOGGER

MAX_ACCEPTED, MAX_UNACCEPTED = 16, 2048
"""Maximum connections that the event loop takes in one turn, and that wait in the system for that."""
LOG_S = 60.0
"""Seconds between log lines about the limit."""
MAX_REFUSED = 64
"""Maximum connections beyond the limit that are told so; others are closed without a word."""
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
_HOST, _UPGRADE = b"host", b"upgrade"
ROUND_S = 0.005
REQUEST_S = 0.001
"""How long a round of the event loop parses and starts requests, and what a starting request counts in it."""


class Rounds:
    """Divides the parsing of input and the starting of requests into rounds of one event loop.

    Remaining work waits for the next round, addresses in rotation. clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._spent_s = 0.0
        self._has_next = self._is_doing = False

    @property
    def has_time(self) -> bool:
        """Whether an action may run now: within do(), or if the round has time and no action waits."""
        return self._is_doing or (not self._waiting and self._spent_s < ROUND_S)

    def do(self, action: Callable[[], None], more_s: float = 0.0) -> None:
        """Run an action in this round. more_s: seconds to add for work that it starts elsewhere."""
        start_s, is_within = self._clock(), self._is_doing
        self._is_doing = True
        try:
            action()
        finally:
            self._is_doing = is_within
            self._spent_s += self._clock() - start_s + more_s
            self._plan_next()

    def wait(self, address: str, action: Callable[[], None], more_s: float = 0.0) -> None:
        """Run an action in a later round, addresses in rotation."""
        self._waiting.setdefault(address, deque()).append(partial(self.do, action, more_s))
        self._plan_next()

    def _plan_next(self) -> None:
        if not self._has_next:
            self._has_next = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a round with the waiting actions."""
        self._has_next, self._spent_s = False, 0.0
        while self._waiting and self._spent_s < ROUND_S:
            address, kept = self._waiting.popitem(last=False)
            first = kept.popleft()
            if kept:
                # To the end: all others come first.
                self._waiting[address] = kept
            first()


def max_connections() -> int:
    """Return how many connections may be open: three quarters of the file limit. The rest is for models."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (limit if limit > 0 else 4096) * 3 // 4


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    fault = UnavailableError(
        f"All {max_connections()} connections of this server are in use. Try again later, or start it with "
        "more open files (ulimit -n).",
        code="too_many_connections",
        headers=retry_after(1.0) | {"Connection": "close"},
    )
    # Not in any API's format: the request has not been looked at.
    await JSONResponse(fault.body(), fault.status, fault.headers)(scope, receive, send)


class _Parser(HttpRequestParser):
    """Parser that goes on in HTTP/1.1 after a request for another protocol, such as Java's for HTTP/2.

    HttpRequestParser takes what follows such a head for that protocol. So the head is read again without it.
    """

    def __init__(self, connection: "Connection") -> None:
        super().__init__(connection)
        # As uvicorn has it: a request is answered, whatever follows the last one.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._connection = connection

    def feed_data(self, data: Any) -> None:
        """See HttpRequestParser."""
        while True:
            try:
                super().feed_data(data)
                return
            except HttpParserUpgrade as wish:
                head = self._connection.take_plain_head()
                if not head:
                    raise
                # From the start: the parser may have taken the head for the last one.
                self.__init__(self._connection)  # type: ignore[misc]
                data = head + bytes(data[wish.args[0] :])


class Connection(HttpToolsProtocol, asyncio.BufferedProtocol):
    """uvicorn's HTTP/1.1 protocol, with limits on times, on counts, and on output that clients leave unread.

    At the limit, a new connection replaces the longest-idle one of the address with the most idle
    connections. If all have requests, a request on the new connection gets a 503.

    timeout_s: headers must be complete this long after connecting or after a later request's first byte, and
        the client must read some of the waiting output in that time, or the connection is closed.
    buffer: receives input. rounds: decides when to parse it. An event loop's connections share both.
    """

    connections: "set[Connection]"  # type: ignore[assignment]
    _logged_at = -LOG_S

    def __init__(self, *, timeout_s: float, buffer: bytearray, rounds: Rounds, **options: Any) -> None:
        super().__init__(**options)
        self.parser = _Parser(self)
        self._plain_head = b""
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
        """Start the timeout of the first request, and make room for the connection."""
        super().connection_made(transport)
        self._start_head_timer()
        self.idle_since = self.loop.time()
        num_beyond = len(self.connections) - max_connections()
        if num_beyond <= 0:
            return
        if self.idle_since - Connection._logged_at >= LOG_S:
            Connection._logged_at = self.idle_since
            LOGGER.warning(
                "%d connections are open, the most for this limit of open files: idle ones are closed for "
                "new ones, and if none is idle, requests get a 503",
                len(self.connections),
            )
        if idle := self._find_idle():
            idle.transport.abort()
        elif num_beyond > MAX_REFUSED:
            transport.abort()
        else:
            self.app = _refuse

    def on_response_complete(self) -> None:
        """Note the time at which the connection became idle."""
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def _find_idle(self) -> "Connection | None":
        idle: dict[str, list[Connection]] = {}
        for one in self.connections:
            if one is not self and not one._is_answering and not one.transport.is_closing():
                idle.setdefault(one.client_host, []).append(one)
        most = max(idle.values(), key=len, default=[])
        return min(most, key=lambda one: one.idle_since, default=None)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - a buffered protocol's method
        """Return the buffer into which the transport reads."""
        return self._buffer

    @span("connections")
    def buffer_updated(self, nbytes: int) -> None:
        """Parse the buffer's input now or in a later round; nothing more is read until then."""
        if self._rounds.has_time:
            self._rounds.do(partial(self.data_received, self._buffer[:nbytes]))  # type: ignore[arg-type]
        else:
            self.transport.pause_reading()
            self._rounds.wait(self.client_host, partial(self._parse_kept, bytes(self._buffer[:nbytes])))

    @span("connections")
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
        super().data_received(data)
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
        """Keep a header; drop trailers, which nothing here reads."""
        if not self._has_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Serve the request. Raises ValueError if the request is invalid; uvicorn then sends a 400."""
        if self.parser.should_upgrade() and any(name == _UPGRADE for name, _ in self.headers):
            first = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
            kept = [b"%b: %b\r\n" % header for header in self.headers if header[0] != _UPGRADE]
            self._plain_head = b"%b %b HTTP/%b\r\n%b\r\n" % (*first, b"".join(kept))
            return
        self._has_head = True
        num_bytes = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        num_hosts = sum(name == _HOST for name, _ in self.headers)
        is_named = num_hosts == 1 or (num_hosts == 0 and self.parser.get_http_version() == "1.0")
        if num_bytes > MAX_HEAD_BYTES or not is_named:
            raise ValueError
        if len(self.pipeline) >= MAX_PIPELINED:
            most = f"At most {MAX_PIPELINED} requests of a connection may wait"
            self._fault = f"{most}. Read the answers first."
            raise ValueError
        super().on_headers_complete()

    def take_plain_head(self) -> bytes:
        """Return the last head without its wish for another protocol, once; else b""."""
        head, self._plain_head = self._plain_head, b""
        return head

    def on_body(self, body: bytes) -> None:
        """Add a chunk to the body. Raises ValueError if there are too many small chunks."""
        self._num_chunks += 1
        self._body_bytes += len(body)
        if self._num_chunks > MAX_SMALL_CHUNKS + self._body_bytes // SMALL_CHUNK_BYTES:
            most = f"more than {MAX_SMALL_CHUNKS} chunks of less than {SMALL_CHUNK_BYTES} bytes"
            self._fault = f"The body has {most}. Send larger chunks."
            raise ValueError
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        if self._plain_head:
            # It is read again, with its body.
            return
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
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[400] + head % len(body) + body)
        self.transport.close()

    def pause_writing(self) -> None:
        """Wait until the client reads. Close a connection of an address with too much unread output."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._timeout_s, self._check_reading, self._num_unread)
        others = [one for one in self.connections if one.client_host == self.client_host]
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
        """Log nothing: requests to upgrade the protocol are ignored."""

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._timeout_s, self.transport.close)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


async def _without_chunks(
    app: ASGIApp, cycle: RequestResponseCycle, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve an HTTP/1.0 request, without chunks: a body of unknown length ends with its connection."""
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


def uvicorn_config(app: ASGIApp, timeout_s: float, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration for the app. options: see uvicorn.Config."""
    http: Any = partial(Connection, timeout_s=timeout_s, buffer=bytearray(READ_BYTES), rounds=Rounds())
    quiet: dict[str, Any] = {"access_log": False, "log_config": None, "server_header": False}
    return uvicorn.Config(app, http=http, ws="none", **quiet, **options)
