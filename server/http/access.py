"""Check each request's API key and Host header."""

import re
import socket

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from reprise.config.loopback import address_of, is_loopback
from reprise.config.settings import Settings
from reprise.server.errors import ApiError, ForbiddenError, UnauthorizedError, shortened
from reprise.server.fair_queue import OWNER
from reprise.server.http.api_keys import ApiKeys
from reprise.server.http.errors.refusal import refuse

OPEN_PATHS = frozenset({"/health"})
"""Paths that need no API key, so that monitoring works without one."""
PAGE = "/ui"
"""The page and its files need none either: they ask for one, and have nothing to show without."""
_PRIVATE = (".localhost", ".local", ".internal")
"""Ends of names that no public DNS answers: this machine's, its network's (mDNS), and those of containers."""
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:@/?#\[\]\s]+))(?::[0-9]*)?")


class Access:
    """ASGI middleware that checks API keys, if there are any, and the Host header of loopback requests.

    The Host check stops DNS rebinding: a web page can make its own domain name resolve to 127.0.0.1 and
    then read from a local server as if it were part of the page's own site. The Host header of such a request
    has the page's domain, so over loopback only this server's own names are accepted.
    """

    def __init__(self, app: ASGIApp, settings: Settings, keys: ApiKeys) -> None:
        self.app = app
        self._keys = keys
        machine = socket.gethostname()
        own = ("localhost", machine, machine.partition(".")[0], settings.host, *settings.allowed_host)
        self._names = frozenset(name.lower() for name in own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if it is allowed; else send the error."""
        fault = self._fault(scope) if scope["type"] == "http" else None
        if fault is None:
            await self.app(scope, receive, send)
        else:
            await refuse(fault, scope, receive, send)

    def _fault(self, scope: Scope) -> ApiError | None:
        host = Headers(scope=scope).get("host")
        if host is not None and _came_over_loopback(scope) and not self._is_own_name(host):
            return ForbiddenError(
                f"The Host header '{shortened(host)}' is not one of this server's names. Use localhost, or "
                "start the server with --allowed-host and this name.",
                code="host_not_allowed",
            )
        if self._keys and not _is_open(scope):
            try:
                scope[OWNER] = self._keys.check(HTTPConnection(scope))
            except UnauthorizedError as fault:
                return fault
        return None

    def _is_own_name(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match[1] or match[2]).lower().removesuffix(".")
        # An IP address is safe: no DNS lookup decides what it means.
        return name in self._names or name.endswith(_PRIVATE) or address_of(name) is not None


def _is_open(scope: Scope) -> bool:
    path = scope["path"]
    return path in OPEN_PATHS or f"{path}/".startswith(f"{PAGE}/") or wants_page(scope)


def wants_page(scope: Scope) -> bool:
    """Return whether a browser asks for /, where others get a list of endpoints."""
    return scope["path"] == "/" and "text/html" in Headers(scope=scope).get("accept", "")


def _came_over_loopback(scope: Scope) -> bool:
    server = scope.get("server")
    return server is not None and is_loopback(server[0])
