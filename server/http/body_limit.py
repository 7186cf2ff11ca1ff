"""Read each request's body before the app sees it, within limits of size and time."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reprise.server.errors import ApiError, BodyTimeoutError, BodyTooLargeError, HeadersTooLargeError
from reprise.server.http.content_encoding import coding_of, decoded
from reprise.server.http.errors.refusal import refuse

MAX_HEADERS = 100


class BodyLimit:
    """ASGI middleware that refuses large bodies (413), slow bodies (408) and too many headers (431).

    The size limit holds with and without a Content-Length header, and also for the decoded body.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, body_timeout_s: float) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body and pass the request on, or send an error."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            coding = self._check_headers(Headers(scope=scope))
        except ApiError as fault:
            await refuse(fault, scope, receive, send)
            return
        body = bytearray()
        more_body = True
        try:
            async with asyncio.timeout(self.body_timeout_s):
                while more_body and len(body) <= self.max_body_bytes:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return
                    body += message.get("body", b"")
                    more_body = message.get("more_body", False)
        except TimeoutError:
            await refuse(BodyTimeoutError(self.body_timeout_s), scope, receive, send, lingers=False)
            return
        try:
            if len(body) > self.max_body_bytes:
                raise BodyTooLargeError(self.max_body_bytes)
            whole = bytes(body) if coding is None else await decoded(bytes(body), coding, self.max_body_bytes)
        except ApiError as fault:
            await refuse(fault, scope, receive, send, lingers=more_body)
            return
        await self.app(scope, _replaying(whole, receive), send)

    def _check_headers(self, headers: Headers) -> str | None:
        """Return how the body is encoded. Raises ApiError if the headers announce what is refused."""
        if (num_headers := len(headers)) > MAX_HEADERS:
            raise HeadersTooLargeError(num_headers, MAX_HEADERS)
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > self.max_body_bytes:
            raise BodyTooLargeError(self.max_body_bytes)
        return coding_of(headers.get("content-encoding", ""))


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return a receive() that first replays the body, then waits for what follows it: a disconnect."""
    is_sent = False

    async def replay() -> Message:
        nonlocal is_sent
        if not is_sent:
            is_sent = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
