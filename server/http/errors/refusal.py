"""Send an error before a request's body has been read."""

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from reprise.server.errors import ApiError
from reprise.server.http.errors.error_format import error_response

LINGER_S = 5.0
"""Maximum time for which the rest of a refused body is read and dropped."""


async def refuse(
    fault: ApiError, scope: Scope, receive: Receive, send: Send, *, lingers: bool = True
) -> None:
    """Send an error for a request whose body has not been read.

    lingers: read and drop what the client is still sending, since closing the connection at once would
        make the client lose the response. Nothing is read from a client that sent `Expect: 100-continue`:
        it waits for permission before it sends its body.
    """
    response = error_response(fault, scope)
    await send(
        {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    )
    await send({"type": "http.response.body", "body": response.body, "more_body": True})
    if lingers and "expect" not in Headers(scope=scope):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
    await send({"type": "http.response.body", "body": b"", "more_body": False})
