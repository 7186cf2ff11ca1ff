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
    key = _key_of(request)
    # Never the key itself: what stands in an order may end up in a log or a file.
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


def _key_of(request: HTTPConnection) -> str:
    """The key as OpenAI's clients send it, else as Anthropic's do; the same key is the same tenant."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    bearer = key.strip() if kind.lower() == "bearer" else ""
    return bearer or request.headers.get("x-api-key", "").strip()
