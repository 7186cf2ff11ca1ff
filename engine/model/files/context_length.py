"""Read from a model's configuration how many tokens its context has."""

from typing import Any

CONTEXT_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "seq_length",
    "model_max_length",
)
"""Configuration keys of the longest sequence that a model was made for."""


def find_context_tokens(config: dict[str, Any]) -> int | None:
    """Return the longest sequence the model was made for; None if no usual configuration key names it.

    It is at most 2**31 - 1. Raises ValueError for a value that is no number.
    """
    for part in (config.get("text_config") or {}, config):
        for key in CONTEXT_KEYS:
            if part.get(key):
                return min(int(part[key]), 2**31 - 1)
    return None
