"""Every address there is, for people who are new and for the labels of metrics."""

ENDPOINTS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /v1/ngram-mod",
    "POST /v1/ngram-mod/reset",
    "POST /v1/ngram-mod/save",
    "POST /v1/ngram-mod/load",
    "GET /metrics",
    "GET /health",
)
_PATHS = tuple(endpoint.split()[1] for endpoint in ENDPOINTS)
_OPEN_ENDED = {path.partition("{")[0]: path for path in _PATHS if "{" in path}


def endpoint_of(path: str) -> str:
    """The address that a path means, or "other": clients may ask for any path, and labels must stay few."""
    if path in _PATHS:
        return path
    return next((known for start, known in _OPEN_ENDED.items() if path.startswith(start)), "other")
