"""Models that decode, used to embed: the states after mlx-lm's own layers.

No token attends to a later one, so padding at the end needs no mask. Models that attend in both directions
(gte-Qwen2) say so in their configuration.
"""

from functools import partial
from typing import Any

import mlx.core as mx

from engine.kv_cache.per_row import Caches, make_caches
from engine.model.loading import ModelError

DECODERS = frozenset({"qwen2", "qwen3", "llama", "mistral"})
"""Model types whose layers are called alike: with states and a mask."""


class Decoder:
    """The body of a model. layers: called with the states and the mask.

    Raises ModelError for layers that need more than that.
    """

    def __init__(self, model: Any, config: dict[str, Any]) -> None:
        body = model.model
        if any(getattr(layer, "use_sliding", False) for layer in body.layers):
            raise ModelError(f"{config.get('model_type')} models with sliding windows cannot embed here yet")
        self.layers = body.layers
        self._embed, self._norm = body.embed_tokens, body.norm
        self._is_causal = config.get("is_causal", True)
        self._make_caches = partial(make_caches, model)

    def make_caches(self) -> Caches | None:
        """Return empty caches for what texts begin with; None if tokens attend to later ones."""
        return self._make_caches() if self._is_causal else None

    def begin(self, tokens: mx.array, _: mx.array, num_tokens: mx.array) -> tuple[mx.array, mx.array | str]:
        """Return the states before the first layer, and the mask. See Encoder.begin()."""
        mask = mx.arange(tokens.shape[1])[None] < num_tokens[:, None]
        return self._embed(tokens), "causal" if self._is_causal else mask[:, None, None]

    def end(self, hidden: mx.array) -> mx.array:
        """Return the states after the last layer and the norm."""
        states: mx.array = self._norm(hidden)
        return states
