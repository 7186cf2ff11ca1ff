"""Reads a body whole before the app sees the request, no further than the limit and no longer."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import BodyTimeoutError, BodyTooLargeError, HeadersTooLargeError
from server.http.refusal import refuse

MAX_HEADERS = 100


class BodyLimit:
    """ASGI middleware: a larger body gets a 413, whether its length was declared or not; a slow one a 408."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, body_timeout_s: float) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if (num_headers := len(scope["headers"])) > MAX_HEADERS:
            await refuse(HeadersTooLargeError(num_headers, MAX_HEADERS), scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self.max_body_bytes:
            await refuse(BodyTooLargeError(self.max_body_bytes), scope, receive, send)
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
        if len(body) > self.max_body_bytes:
            await refuse(BodyTooLargeError(self.max_body_bytes), scope, receive, send, lingers=more_body)
            return
        await self.app(scope, _replaying(bytes(body), receive), send)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """A receive that first gives the body that was read, then what comes after it: a disconnect."""
    is_given = False

    async def replay() -> Message:
        nonlocal is_given
        if not is_given:
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay
