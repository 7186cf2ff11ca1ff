"""Find who sent a request: its tenant, for sharing drafts, its key's digest, for stored text, its client."""

from starlette.requests import HTTPConnection

from config.settings import Settings
from server.http.api_keys import digest, sent_keys

OWNER = "reprise.owner"
"""Name of the entry in a request's scope that holds the digest of its checked API key."""


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


def client_of(request: HTTPConnection) -> str:
    """Return the client whose requests share limits: the digest of its checked API key, or else its address.

    A key that was not checked does not count: a client could send a new one with every request.
    """
    owner: str | None = request.scope.get(OWNER)
    if owner is not None:
        return owner
    return request.client.host if request.client else ""
