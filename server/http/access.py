"""Check each request's API key and Host header, and find out whose request it is."""

import hashlib
import hmac
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from reprise.config.access import KEY
from reprise.config.loopback import address_of, is_loopback
from reprise.config.setting import SettingsError
from reprise.config.settings import Settings
from reprise.server.errors import ApiError, ForbiddenError, UnauthorizedError, shortened
from reprise.server.executor import OWNER
from reprise.server.http.error_responses import refuse


class ApiKeys:
    """The valid API keys. Without any, clients need no key."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(dict.fromkeys(map(digest, keys)))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def check(self, request: HTTPConnection) -> str:
        """Return the digest of the valid key that a client sent. Raises UnauthorizedError if none is."""
        given = sent_keys(request)
        if not given:
            raise UnauthorizedError(
                "This server requires an API key. Send one in the header Authorization: Bearer KEY.",
                code="missing_api_key",
            )
        owner = self._find(given)
        if owner is None:
            raise UnauthorizedError(
                "The API key is not valid. Send one of the keys that the server was started with "
                "(--api-key, --api-key-file).",
                code="invalid_api_key",
            )
        return owner

    def _find(self, sent: Iterable[str]) -> str | None:
        """Return the digest of the first valid key, or None. Takes constant time for each key sent."""
        for key in sent:
            sent_digest = digest(key)
            matches = [known for known in self._digests if hmac.compare_digest(known, sent_digest)]
            if matches:
                return matches[0]
        return None


def load_keys(settings: Settings) -> ApiKeys:
    """Load the keys of --api-key and --api-key-file. Raises SettingsError if the file has no usable keys."""
    return ApiKeys((*settings.api_key, *_read(settings.api_key_file)))


def sent_keys(request: HTTPConnection) -> list[str]:
    """Return the keys that a client sent, valid or not: OpenAI's way (Bearer) first, then Anthropic's."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, request.headers.get("x-api-key", "").strip()) if key]


def digest(key: str) -> str:
    """Return the SHA-256 digest that replaces a key wherever it could end up in a log or a file."""
    return hashlib.sha256(key.encode()).hexdigest()


def _read(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"cannot read the API keys in {file} (api_key_file): {reason}") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    keys = [(number, line) for number, line in lines if line and not line.startswith("#")]
    for number, key in keys:
        if not KEY.fullmatch(key):
            raise SettingsError(
                f"line {number} of {file} (api_key_file) is not a valid API key; a key is visible ASCII "
                "characters without spaces"
            )
    if not keys:
        raise SettingsError(f"{file} (api_key_file) has no keys; write one key per line")
    return [key for _, key in keys]


def tenant_of(request: HTTPConnection, settings: Settings) -> str:
    """Return the tenant whose texts may be drafted for the request.

    With --ngram-scope process all requests have the tenant ""; with api-key, see key_digest().
    """
    return "" if settings.ngram_scope == "process" else key_digest(request)


def key_digest(request: HTTPConnection) -> str:
    """Return the digest of the request's checked API key, or of the key it sent if the server has no keys.

    Empty if it sent none. Never the key itself: engine requests may end up in a log or a file.
    """
    owner: str | None = request.scope.get(OWNER)
    if owner is not None:
        return owner
    unchecked = sent_keys(request)
    return digest(unchecked[0]) if unchecked else ""


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
