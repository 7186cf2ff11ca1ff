"""Whose request it is: what was said is drafted, and what was kept is found, for the same tenant alone."""

from starlette.requests import HTTPConnection

from config.settings import Settings
from server.http.api_keys import digest, sent_keys

OWNER = "reprise.owner"
"""Where a request's scope has the digest of the key that let it in."""


def tenant_of(request: HTTPConnection, settings: Settings) -> str:
    """Whose words may be drafted for the request: those of its key's holder, or everybody's.

    With --ngram-scope process everybody is the same tenant, "".
    """
    return "" if settings.ngram_scope == "process" else key_digest(request)


def key_digest(request: HTTPConnection) -> str:
    """A digest of the API key that let the request in; where none is needed, of the one that it names.

    Empty without one. Never the key itself: what stands in an order may end up in a log or a file.
    """
    owner: str | None = request.scope.get(OWNER)
    if owner is not None:
        return owner
    claimed = sent_keys(request)
    return digest(claimed[0]) if claimed else ""
