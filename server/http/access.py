"""Who may send requests: API keys, Host headers (against DNS rebinding), and web pages' origins (CORS)."""

import hashlib
import hmac
import re
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from reprise.config.loopback import address_of, is_loopback
from reprise.config.setting import SettingsError
from reprise.config.settings import KEY, Settings
from reprise.server.errors import ApiError, ForbiddenError, shortened
from reprise.server.http.error_responses import refuse
from reprise.server.http.executor import OWNER
from reprise.server.http.request_log import IGNORED, RELAXED


def load_keys(settings: Settings) -> tuple[str, ...]:
    """Return the digests of the valid API keys, those in files included. Without any, none is needed.

    Raises SettingsError if a file has no usable keys.
    """
    return tuple(dict.fromkeys(map(digest, (key for given in settings.api_key for key in _read(given)))))


def _owner_of(keys: Sequence[str], request: HTTPConnection) -> str:
    """Return the digest of the client's valid key. Raises ApiError if it sent none."""
    given = sent_keys(request)
    # All keys are compared, so the time that it takes tells nothing of them.
    matches = [known for sent in map(digest, given) for known in keys if hmac.compare_digest(known, sent)]
    if matches:
        return matches[0]
    code = "missing_api_key"
    message = "This server requires an API key. Send one in the header Authorization: Bearer KEY."
    if given:
        code = "invalid_api_key"
        message = (
            "The API key is not valid. Send one of the keys that the server was started with (--api-key)."
        )
    raise ApiError(message, status=401, code=code, headers={"WWW-Authenticate": "Bearer"})


def sent_keys(request: HTTPConnection) -> list[str]:
    """Return the keys that a client sent, valid or not: OpenAI's way (Bearer) first, then Anthropic's."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, request.headers.get("x-api-key", "").strip()) if key]


def digest(key: str) -> str:
    """Return the SHA-256 digest that replaces a key in logs and files."""
    return hashlib.sha256(key.encode()).hexdigest()


def _read(given: str) -> list[str]:
    """Return a key as it is given, or the keys in @FILE."""
    if not given.startswith("@"):
        return [given]
    file = Path(given[1:]).expanduser()
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise SettingsError(f"cannot read the API keys in {file} (api_key): {reason}") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    keys = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if wrong := [number for number, key in keys if not KEY.fullmatch(key)]:
        raise SettingsError(
            f"line {wrong[0]} of {file} (api_key) is not a valid API key; a key is visible ASCII "
            "characters without spaces"
        )
    if not keys:
        raise SettingsError(f"{file} (api_key) has no keys; write one key per line")
    return [key for _, key in keys]


def key_digest(request: HTTPConnection) -> str:
    """Return the digest of the request's checked API key, or else of the key it sent; "" if it sent none."""
    owner: str | None = request.scope.get(OWNER)
    return owner if owner is not None else next(map(digest, sent_keys(request)), "")


OPEN_PATHS = frozenset({"/health"})
"""Paths that need no API key. Neither do the page and its files: they ask for one."""
CORS: dict[str, Any] = {
    "allow_methods": ("GET", "POST", "DELETE"),
    "allow_headers": ("*",),
    "expose_headers": ("x-request-id", "request-id", "retry-after", "x-should-retry", IGNORED, RELAXED),
    # Browsers ask for this before a public site's page may reach a server on a private network.
    "allow_private_network": True,
}
"""What web pages of the sites in --cors-origin may send and read."""
_PRIVATE = (".localhost", ".local", ".internal")
"""Ends of names that no public DNS answers: this machine's, its network's (mDNS), and those of containers."""
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:@/?#\[\]\s]+))(?::[0-9]*)?")


class Access:
    """ASGI middleware that checks API keys, if there are any, and the Host header of loopback requests.

    The Host check stops DNS rebinding: a web page whose domain name resolves to 127.0.0.1 sends that name, so
    over loopback only this server's own names are accepted.
    """

    def __init__(self, app: ASGIApp, settings: Settings, keys: Sequence[str]) -> None:
        self.app = app
        self._keys = keys
        machine = socket.gethostname()
        own = ("localhost", machine, machine.partition(".")[0], settings.host, *settings.allowed_host)
        self._names = frozenset(name.lower() for name in own)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if it is allowed; else send the error."""
        try:
            if scope["type"] == "http":
                self._check(scope)
        except ApiError as fault:
            await refuse(fault, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        host, server = Headers(scope=scope).get("host"), scope.get("server")
        if host is not None and server and is_loopback(server[0]) and not self._is_own_name(host):
            raise ForbiddenError(
                f"The Host header '{shortened(host)}' is not one of this server's names. Use localhost, or "
                "start the server with --allowed-host and this name.",
                code="host_not_allowed",
            )
        path = scope["path"]
        is_open = path in OPEN_PATHS or f"{path}/".startswith("/ui/") or wants_page(scope)
        if self._keys and not is_open:
            scope[OWNER] = _owner_of(self._keys, HTTPConnection(scope))

    def _is_own_name(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match[1] or match[2]).lower().removesuffix(".")
        # An IP address is safe: no DNS lookup decides what it means.
        return name in self._names or name.endswith(_PRIVATE) or address_of(name) is not None


def wants_page(scope: Scope) -> bool:
    """Return whether a browser asks for /, where others get a list of endpoints."""
    return scope["path"] == "/" and "text/html" in Headers(scope=scope).get("accept", "")
