"""Who may use the server: those with a key, who call it by a name of its own."""

import ipaddress
import re

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from config.settings import Settings
from server.errors import ApiError, ForbiddenError, UnauthorizedError, shortened
from server.http.api_keys import ApiKeys, sent_keys
from server.http.refusal import refuse
from server.http.tenants import OWNER

OPEN_PATHS = frozenset({"/health"})
"""What those who watch may ask without a key."""
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:@/?#\[\]\s]+))(?::[0-9]*)?")


class Access:
    """ASGI middleware: lets in who has a key, if there are any, and no web page by way of a name of its own.

    A page can give its own name the address of this machine, and then read from a local server as if that
    were its site. Its requests bear that name, so over loopback only names of this machine are taken.
    """

    def __init__(self, app: ASGIApp, settings: Settings, keys: ApiKeys) -> None:
        self.app = app
        self._keys = keys
        self._names = frozenset(name.lower() for name in ("localhost", settings.host, *settings.allowed_host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        fault = self._fault(scope) if scope["type"] == "http" else None
        if fault is None:
            await self.app(scope, receive, send)
        else:
            await refuse(fault, scope, receive, send)

    def _fault(self, scope: Scope) -> ApiError | None:
        host = Headers(scope=scope).get("host")
        if host is not None and _came_over_loopback(scope) and not self._is_own(host):
            return ForbiddenError(
                f"This server is not '{shortened(host)}'. Call it localhost, or start it with --allowed-host "
                "and this name.",
                code="host_not_allowed",
            )
        if self._keys and scope["path"] not in OPEN_PATHS:
            given = sent_keys(HTTPConnection(scope))
            if not given:
                return UnauthorizedError(
                    "There is no API key. Send one of this server's in the header Authorization: Bearer KEY.",
                    code="missing_api_key",
                )
            owner = self._keys.find(given)
            if owner is None:
                return UnauthorizedError("The API key is none of this server's.", code="invalid_api_key")
            scope[OWNER] = owner
        return None

    def _is_own(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        # No name server has a say in what an address means.
        name = (match[1] or match[2]).lower().removesuffix(".")
        return name in self._names or name.endswith(".localhost") or _address(name) is not None


def is_loopback(host: str) -> bool:
    """Whether an address, not a name, can be reached from its own machine alone."""
    address = _address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def _came_over_loopback(scope: Scope) -> bool:
    server = scope.get("server")
    return server is not None and is_loopback(server[0])


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
