"""Load API keys, and refuse requests without a valid one; keys are compared by their digests."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from starlette.requests import HTTPConnection

from reprise.config.access import KEY
from reprise.config.setting import SettingsError
from reprise.config.settings import Settings
from reprise.server.errors import UnauthorizedError


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
