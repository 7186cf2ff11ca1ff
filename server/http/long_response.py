"""Long answers, of which the client reads one part before the next is sent."""

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

PART_BYTES = 256 * 2**10


class LongResponse(Response):
    """A JSON body that may have 100 MB and more, sent in parts.

    Sent at once, the body would be copied on the event loop, and would count as unread output, which is
    limited for each address.
    """

    media_type = "application/json"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        """Send the body in parts. See Response."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for start in range(0, len(self.body), PART_BYTES):
            end = start + PART_BYTES
            part = {"body": bytes(self.body[start:end]), "more_body": end < len(self.body)}
            await send({"type": "http.response.body", **part})
            # A client that reads at once would keep the loop from others.
            await asyncio.sleep(0)
