"""Reads a body whole before the app sees the request, and no further than the limit."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.error_shapes import error_response
from server.errors import BodyTooLargeError

LINGER_S = 5.0


class BodyLimit:
    """ASGI middleware: a larger body gets a 413, whether its length was declared or not."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > self.max_body_bytes:
            # Who asks before sending needs only the answer; the rest have begun to send.
            await self._refuse(scope, receive, send, is_sending=b"expect" not in headers)
            return
        body = bytearray()
        more_body = True
        while more_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more_body = message.get("more_body", False)
            if len(body) > self.max_body_bytes:
                await self._refuse(scope, receive, send, is_sending=more_body)
                return
        await self.app(scope, _replaying(bytes(body), receive), send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, is_sending: bool) -> None:
        """Answer 413. A client that is still sending would lose the answer if the connection just closed."""
        fault = BodyTooLargeError(self.max_body_bytes)
        response = error_response(fault, scope)
        await send(
            {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
        )
        await send({"type": "http.response.body", "body": response.body, "more_body": True})
        if is_sending:
            try:
                async with asyncio.timeout(LINGER_S):
                    while (await receive()).get("more_body", False):
                        pass
            except TimeoutError:
                pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


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
