"""Keep the number of connections below the limit of open files, so that everyone can still connect.

Above that limit the system refuses files and connections alike, whoever asks. mlx-lm sets it to 2,048.
"""

import asyncio
import resource
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from reprise.server.errors import UnavailableError, retry_after
from reprise.server.logs import LOGGER

MAX_ACCEPTED = 16
"""Maximum connections that the event loop takes in one turn; finding an idle one takes a millisecond."""
MAX_UNACCEPTED = 2048
"""Maximum connections that wait in the system for that; a client beyond them tries again after a second."""
LOG_S = 60.0
"""Seconds between log lines about the limit."""
MAX_REFUSED = 64
"""Maximum connections beyond the limit that are told so; others are closed without a word."""


def max_connections() -> int:
    """Return how many connections may be open: three quarters of the open files. The rest is for models."""
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


class ConnectionLimit(asyncio.Protocol):
    """Mixin of uvicorn's protocols: while all places are taken, a new connection takes an idle one's place.

    The idle connection closed is the one that has had no request for longest, from the address with the most
    idle connections. If none is idle, a request on the new connection gets a 503.
    """

    connections: set[Any]
    transport: asyncio.Transport
    cycle: Any
    app: Any
    client: tuple[str, int] | None
    loop: asyncio.AbstractEventLoop
    idle_since: float
    _logged_at = -LOG_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for the connection."""
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        num_beyond = len(self.connections) - max_connections()
        if num_beyond <= 0:
            return
        self._log(len(self.connections))
        if idle := self._find_idle():
            idle.transport.abort()
        elif num_beyond > MAX_REFUSED:
            transport.abort()
        else:
            self.app = _refuse

    def on_response_complete(self) -> None:
        """Note the time at which the connection became idle."""
        self.idle_since = self.loop.time()
        super().on_response_complete()  # type: ignore[misc]

    def _find_idle(self) -> "ConnectionLimit | None":
        idle: dict[str, list[ConnectionLimit]] = {}
        for one in self.connections - {self}:
            if (one.cycle is None or one.cycle.response_complete) and not one.transport.is_closing():
                idle.setdefault(one.client[0] if one.client else "", []).append(one)
        most = max(idle.values(), key=len, default=[])
        return min(most, key=lambda one: one.idle_since, default=None)

    def _log(self, num_connections: int) -> None:
        now = self.loop.time()
        if now - ConnectionLimit._logged_at >= LOG_S:
            ConnectionLimit._logged_at = now
            LOGGER.warning(
                "%d connections are open, the most for this limit of open files: idle ones are closed for "
                "new ones, and if none is idle, requests get a 503",
                num_connections,
            )
