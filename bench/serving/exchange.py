"""One streamed HTTP request, with the time of every read.

The client often shares two cores with the server, so work that it does during a stream slows the server down.
So each read is stored with its time, and parsed by h11 only after the round. The request
asks for "Connection: close", so the end of the connection marks the end of the response.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from urllib.parse import urlsplit

import h11

IDLE_LIMIT_S = 300.0
"""A request fails after this long without data."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """Everything received for one request.

    started, ended: perf_counter() when connecting began and when the connection was over.
    reads: (perf_counter(), bytes) of each read.
    fault: why the connection failed, if it did.
    """

    started: float
    ended: float
    reads: tuple[tuple[float, bytes], ...]
    fault: str | None = None


class _Recorder(asyncio.Protocol):
    """Stores all data until the server closes the connection."""

    def __init__(self) -> None:
        self.reads: list[tuple[float, bytes]] = []
        self.closed: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        """Store data with its time."""
        self.reads.append((perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        """Wake the waiting request."""
        if not self.closed.done():
            self.closed.set_result(exc)


async def post(
    url: str, body: bytes, idle_limit_s: float = IDLE_LIMIT_S, api_key: str | None = None
) -> Transcript:
    """Send body as JSON to url and record the response until the connection ends.

    api_key: sent as a bearer token.
    Each request opens its own connection, and the time to connect is part of the measurement.
    """
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"{key}Accept: text/event-stream\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    loop = asyncio.get_running_loop()
    started = perf_counter()
    try:
        transport, recorder = await loop.create_connection(
            _Recorder, host, parts.port or (443 if secure else 80), ssl=secure or None
        )
    except OSError as refused:
        return Transcript(started, perf_counter(), (), f"cannot connect: {refused}")
    try:
        transport.write(head + body)
        fault = await _wait(recorder, idle_limit_s)
    finally:
        transport.abort()
    return Transcript(started, perf_counter(), tuple(recorder.reads), fault)


async def _wait(recorder: _Recorder, idle_limit_s: float) -> str | None:
    """Wait for the end of the connection; return what went wrong, or None."""
    while not recorder.closed.done():
        seen = len(recorder.reads)
        await asyncio.wait({recorder.closed}, timeout=idle_limit_s)
        if not recorder.closed.done() and len(recorder.reads) == seen:
            return f"no data for {idle_limit_s:g} s"
    lost = recorder.closed.result()
    return f"connection lost: {lost}" if lost else None


class NotHttpError(ValueError):
    """The bytes are not an HTTP/1 response; the message quotes the first unexpected ones."""


class Response:
    """Incremental parser of an HTTP/1 response, whose body may end with the connection."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.body = bytearray()
        self._line = b""
        self._connection = h11.Connection(h11.CLIENT)
        # h11 reads a response only after a request; post() wrote the real one.
        self._connection.send(h11.Request(method="POST", target="/", headers=[("Host", "")]))
        self._connection.send(h11.EndOfMessage())

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Parse the next read; yield the lines of the body that it completes, without line ends.

        Raises NotHttpError.
        """
        try:
            self._connection.receive_data(data)
            while (event := self._connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Response):
                    self.status = event.status_code
                if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    return
                if isinstance(event, h11.Data):
                    self.body += event.data
                    *lines, self._line = (self._line + event.data).split(b"\n")
                    yield from (line.rstrip(b"\r") for line in lines)
        except h11.RemoteProtocolError as fault:
            raise NotHttpError(f"the response is not HTTP, {fault}: {data[:80]!r}") from None
