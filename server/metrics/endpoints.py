"""Every address there is, for people who are new and for the labels of metrics."""

ENDPOINTS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "GET /v1/responses/{id}",
    "DELETE /v1/responses/{id}",
    "GET /v1/responses/{id}/input_items",
    "POST /v1/embeddings",
    "POST /tokenize",
    "POST /detokenize",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "GET /v1/ngram-mod",
    "POST /v1/ngram-mod/reset",
    "POST /v1/ngram-mod/save",
    "POST /v1/ngram-mod/load",
    "GET /metrics",
    "GET /health",
)
_PATHS = tuple(dict.fromkeys(endpoint.split()[1] for endpoint in ENDPOINTS))
_OPEN_ENDED = tuple(path for path in reversed(_PATHS) if "{" in path)
"""The longer of two that begin alike stands first."""


def endpoint_of(path: str) -> str:
    """The address that a path means, or "other": clients may ask for any path, and labels must stay few."""
    if path in _PATHS:
        return path
    return next((known for known in _OPEN_ENDED if _fits(path, known)), "other")


def _fits(path: str, known: str) -> bool:
    return path.startswith(known.partition("{")[0]) and path.endswith(known.partition("}")[2])
