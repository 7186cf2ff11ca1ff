"""The API keys that let clients in, compared by their digests."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from starlette.requests import HTTPConnection

from config.access import KEY
from config.setting import SettingsError
from config.settings import Settings


class ApiKeys:
    """Every key that is in force; none means that everybody is let in."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(dict.fromkeys(map(digest, keys)))

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, given: Iterable[str]) -> str | None:
        """The digest of the first given key that is in force. How long that takes says nothing of any key."""
        for key in given:
            asked = digest(key)
            same = [known for known in self._digests if hmac.compare_digest(known, asked)]
            if same:
                return same[0]
        return None


def load_keys(settings: Settings) -> ApiKeys:
    """The keys of the settings and of their file. Raises SettingsError for a file that has none."""
    return ApiKeys((*settings.api_key, *_read(settings.api_key_file)))


def sent_keys(request: HTTPConnection) -> list[str]:
    """The keys that a client sent, as OpenAI's clients do and then as Anthropic's; perhaps of no use."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    bearer = key.strip() if kind.lower() == "bearer" else ""
    return [key for key in (bearer, request.headers.get("x-api-key", "").strip()) if key]


def digest(key: str) -> str:
    """What stands for a key wherever it could end up in a log or a file."""
    return hashlib.sha256(key.encode()).hexdigest()


def _read(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not text"
        raise SettingsError(f"cannot read the keys in {file} (api_key_file): {reason}") from None
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    keys = [(number, line) for number, line in lines if line and not line.startswith("#")]
    for number, key in keys:
        if not KEY.fullmatch(key):
            raise SettingsError(
                f"line {number} of {file} (api_key_file) is no key: visible ASCII characters without spaces"
            )
    if not keys:
        raise SettingsError(f"{file} (api_key_file) has no keys: write one in each line")
    return [key for _, key in keys]
