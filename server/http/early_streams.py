"""Begin a stream before its route has anything to send, and release what a request holds once it is answered.

A stream whose model is still loading begins at once, with comments. From then on the status is 200, so an
error is the stream's last event.
"""

from collections.abc import Callable
from contextlib import ExitStack

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reprise.server.errors import RequestFailedError
from reprise.server.http.error_responses import HAS_BEGUN, error_frame
from reprise.server.logs import LOGGER, record_in

_STREAM = "reprise.early_stream"
_HELD = "reprise.held"
_HEADERS = [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]


class EarlyStream:
    """Sends a request's response; its beginning may be sent before the response is made."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send

    async def write(self, frame: bytes, content_type: str, *, is_last: bool = False) -> None:
        """Send a frame, after the head if this is the first."""
        if not self._scope.get(HAS_BEGUN):
            self._scope[HAS_BEGUN] = True
            headers = [(b"content-type", content_type.encode()), *_HEADERS]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send({"type": "http.response.body", "body": frame, "more_body": not is_last})

    async def send(self, message: Message) -> None:
        """Send a message of the response, but no second head."""
        if message["type"] != "http.response.start" or not self._scope.get(HAS_BEGUN):
            await self._send(message)


class EarlyStreams:
    """ASGI middleware around the routes. See early_stream() and end_later()."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        stream = scope[_STREAM] = EarlyStream(scope, send)
        with ExitStack() as held:
            scope[_HELD] = held
            try:
                await self.app(scope, receive, stream.send)
            except Exception:
                if not scope.get(HAS_BEGUN):
                    raise
                # A bug in the server. The status has been sent already.
                record = record_in(scope)
                LOGGER.exception("%s %s failed in its stream", record.id, record.endpoint)
                frame = error_frame(RequestFailedError.internal(record.id), scope)
                await stream.write(frame, "", is_last=True)


def early_stream(request: HTTPConnection) -> EarlyStream:
    """Return what begins the request's response before its route does."""
    stream: EarlyStream = request.scope[_STREAM]
    return stream


def end_later(request: HTTPConnection, end: Callable[[], None]) -> None:
    """Call end() once the request's response has been sent, or its client has left."""
    held: ExitStack = request.scope[_HELD]
    held.callback(end)
