"""Whose request it is. The one place to change when this server gets API keys of its own."""

import hashlib

from starlette.requests import HTTPConnection

from config.settings import Settings


def tenant_of(request: HTTPConnection, settings: Settings) -> str:
    """Whose words may be drafted for the request: those of its key's holder, or everybody's.

    With --ngram-scope process everybody is the same tenant, "".
    """
    return "" if settings.ngram_scope == "process" else key_digest(request)


def key_digest(request: HTTPConnection) -> str:
    """A digest of the API key that the client sent, checked by nobody yet; empty without one."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    key = key.strip()
    # Never the key itself: what stands in an order may end up in a log or a file.
    return hashlib.sha256(key.encode()).hexdigest() if kind.lower() == "bearer" and key else ""
