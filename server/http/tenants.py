"""Find who sent a request: its tenant, for sharing drafts, and its key's digest, to find stored text."""

from starlette.requests import HTTPConnection

from reprise.config.settings import Settings
from reprise.server.fair_queue import OWNER
from reprise.server.http.api_keys import digest, sent_keys


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
