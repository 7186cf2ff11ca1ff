"""Models that decode, used to embed or to rank: the states after mlx-lm's own layers.

No token attends to a later one, so padding at the end needs no mask. Models that attend in both directions
say so in their configuration (gte-Qwen2), or do whenever they embed (EmbeddingGemma).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from reprise.engine.embedding.masks import Mask, Masks, attend_before, attend_near, attend_to_all
from reprise.engine.kv_cache.per_row import Caches, make_caches
from reprise.engine.model.files.purpose import GEMMA

DECODERS = frozenset({"qwen2", "qwen3", "llama", "mistral", GEMMA})
"""Model types whose layers are called alike: with states and a mask."""

Answers = tuple[int, int]
"""The tokens of yes and no."""


class Decoder:
    """The body of a model that decodes, as a model that embeds or ranks.

    layers: functions of the states and the masks, one per layer.
    max_tokens: the longest text; None if nothing limits it.
    answers: the ids of the tokens yes and no, for a model that ranks; else None.
    """

    def __init__(
        self, model: Any, config: dict[str, Any], max_tokens: int | None, answers: Answers | None = None
    ) -> None:
        body, is_gemma = model.model, config.get("model_type") == GEMMA
        is_local, window = find_local(config), int(config.get("sliding_window") or 0)
        self.layers = [_masked(*pair) for pair in zip(body.layers, is_local, strict=True)]
        self._embed, self._norm = body.embed_tokens, body.norm
        self._scale = config["hidden_size"] ** 0.5 if is_gemma else 1
        sees_all = config.get("use_bidirectional_attention", is_gemma)
        self._is_causal = config.get("is_causal", not sees_all)
        # e5-mistral has a window as long as its longest text.
        holds_all = self._is_causal and max_tokens is not None and max_tokens <= window
        self._window = window if any(is_local) and not holds_all else 0
        self._make_caches = partial(make_caches, model)
        self._yes_not_no = _difference(model, answers) if answers else None

    def make_caches(self) -> Caches | None:
        """Return empty caches for heads of texts; None if tokens see later tokens, or only a window."""
        return self._make_caches() if self._is_causal and not self._window else None

    def begin(self, tokens: mx.array, _: mx.array, num_tokens: mx.array) -> tuple[mx.array, Masks]:
        """Return the states before the first layer, and the masks. See Encoder.begin()."""
        hidden, width = self._embed(tokens), tokens.shape[1]
        hidden = hidden * mx.array(self._scale, hidden.dtype)
        whole: Mask = "causal" if self._is_causal else attend_to_all(num_tokens, width)
        if not self._window:
            return hidden, Masks(whole, whole)
        if self._is_causal:
            return hidden, Masks(whole, attend_before(width, self._window))
        # What is called a window of both directions has half of it on either side.
        return hidden, Masks(whole, attend_near(num_tokens, width, self._window // 2))

    def end(self, hidden: mx.array) -> mx.array:
        """Return the states after the last layer and the norm."""
        states: mx.array = self._norm(hidden)
        return states

    def rate(self, states: mx.array) -> mx.array:
        """Return the score of a pair, (1,): the logit of yes as the next token, less that of no.

        states: (tokens, size) after the last layer.
        """
        assert self._yes_not_no is not None
        return states[-1:].astype(mx.float32) @ self._yes_not_no


def find_local(config: dict[str, Any]) -> list[bool]:
    """Return, for each layer, whether its tokens attend to a window only."""
    num_layers, kind = config["num_hidden_layers"], config.get("model_type")
    if kinds := config.get("layer_types"):
        return [one == "sliding_attention" for one in kinds]
    if kind == GEMMA:
        every = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
        return [(index + 1) % every > 0 for index in range(num_layers)]
    if kind == "mistral":
        return [bool(config.get("sliding_window"))] * num_layers
    first = config.get("max_window_layers", 0) if config.get("use_sliding_window") else num_layers
    return [index >= first for index in range(num_layers)]


def _masked(layer: Any, kind: int) -> Callable[..., mx.array]:
    """Return what calls a layer with its mask. kind: index of Masks."""
    return lambda hidden, masks, *before: layer(hidden, masks[kind], *before)


def _difference(model: Any, answers: Answers) -> mx.array:
    """Return (size, 1) the rows of the output head for yes, less those for no."""
    head = model.lm_head if "lm_head" in model else model.model.embed_tokens
    ids = mx.array(answers)
    rows = head.weight[ids]
    if "scales" in head:
        biases = head.biases[ids] if "biases" in head else None
        rows = mx.dequantize(
            rows, head.scales[ids], biases, group_size=head.group_size, bits=head.bits, mode=head.mode
        )
    rows = rows.astype(mx.float32)
    difference: mx.array = rows[0] - rows[1]
    return difference[:, None]
