"""Answers to requests whose body nobody is going to read."""

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from server.errors import ApiError
from server.http.error_format import error_response

LINGER_S = 5.0
"""How long a client may go on sending what nobody reads."""


async def refuse(
    fault: ApiError, scope: Scope, receive: Receive, send: Send, *, lingers: bool = True
) -> None:
    """Answer with an error before the body was read.

    lingers: take what the client is still sending, since it would lose the answer if the connection just
        closed. Who asks before sending needs only the answer.
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
