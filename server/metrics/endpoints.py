"""All endpoints: the list that GET / returns, and the endpoint labels of metrics."""

ENDPOINTS = (
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /infill",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "POST /v1/responses/compact",
    "GET /v1/responses/{id}",
    "DELETE /v1/responses/{id}",
    "POST /v1/responses/{id}/cancel",
    "GET /v1/responses/{id}/input_items",
    "POST /api/chat",
    "POST /api/generate",
    "GET /api/tags",
    "POST /api/show",
    "GET /api/ps",
    "POST /api/pull",
    "GET /api/version",
    "POST /api/embed",
    "POST /api/embeddings",
    "POST /api/create",
    "POST /api/copy",
    "POST /api/push",
    "POST /api/blobs/{digest}",
    "DELETE /api/delete",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "POST /rerank",
    "POST /v2/rerank",
    "POST /tokenize",
    "POST /detokenize",
    "GET /tokenizer_info",
    "GET /v1/models",
    "GET /v1/models/{name}",
    "POST /v1/models/load",
    "POST /v1/models/unload",
    "POST /v1/models/pull",
    "GET /v1/ngram-mod",
    "POST /v1/ngram-mod/reset",
    "POST /v1/ngram-mod/save",
    "POST /v1/ngram-mod/load",
    "GET /v1/connect",
    "GET /v1/requests",
    "GET /metrics",
    "GET /health",
)
_PATHS = tuple(dict.fromkeys(endpoint.split()[1] for endpoint in ENDPOINTS))
_OPEN_ENDED = tuple(path for path in reversed(_PATHS) if "{" in path)
"""Paths with a parameter. Of two with the same prefix, the longer one comes first."""


def endpoint_of(path: str) -> str:
    """Return the endpoint label of a path, or "other" for any unknown path, as labels must stay few."""
    if path in _PATHS:
        return path
    return next((known for known in _OPEN_ENDED if _fits(path, known)), "other")


def _fits(path: str, known: str) -> bool:
    return path.startswith(known.partition("{")[0]) and path.endswith(known.partition("}")[2])
