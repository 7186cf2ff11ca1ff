"""All metrics. GET /metrics serves what is listed here; docs/metrics.md is generated from it."""

from reprise.server.metrics.process_metrics import (
    ENGINE,
    LOOP,
    MEMORY,
    MODELS,
    NGRAMS,
    PREFIXES,
    RANKS,
    RESPONSES,
    TIME,
)
from reprise.server.metrics.request_metrics import DRAFTS, EMBEDDINGS, REQUESTS, SEQUENCES

GROUPS = (
    REQUESTS,
    SEQUENCES,
    DRAFTS,
    ENGINE,
    EMBEDDINGS,
    TIME,
    LOOP,
    MODELS,
    RANKS,
    PREFIXES,
    NGRAMS,
    RESPONSES,
    MEMORY,
)
