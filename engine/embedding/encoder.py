"""BERT and those that followed it (see design.py) in MLX: one encoder, and the names of its weights.

token, type and position embeddings -> norm -> layers: attention, feed forward -> states
"""

import re
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import LayerNorm

from reprise.engine.embedding.design import ACTIVATIONS, Config, Design, find_design
from reprise.engine.embedding.masks import Masks, attend_less_with_distance, attend_near, attend_to_all

_NAMES = {
    "embeddings.norm": r"embeddings\.LayerNorm|emb_ln",
    "embeddings.tokens": r"embeddings\.(word|tok)_embeddings",
    "embeddings.positions": r"embeddings\.position_embeddings",
    "embeddings.types": r"embeddings\.token_type_embeddings",
    "layers.": r"encoder\.layers?\.",
    "attention.": r"attention\.self\.|mixer\.|attn\.",
    "attention.out": r"attention\.(output\.dense|out_proj|o_proj|Wo)",
    "attention_norm": r"attention\.output\.LayerNorm|attn_norm|attn_ln|norm1",
    "norm": r"output\.LayerNorm|mlp_norm|mlp_ln|mlp\.layernorm|norm2",
    "gate": r"mlp\.fc12",
    "up": r"intermediate\.dense|mlp\.fc11?",
    "down": r"output\.dense|mlp\.(fc2|down_proj|Wo|wo)",
    "classifier.": r"head\.",
    "classifier.out": r"classifier\.out_proj",
    ".weight": r"\.gamma",
    ".bias": r"\.beta",
}
"""Names of parts of an encoder, and patterns of those that checkpoints give them, in order."""

_JOINED = {
    "attention.Wqkv": ("attention.query", "attention.key", "attention.value"),
    "attention.qkv_proj": ("attention.query", "attention.key", "attention.value"),
    "mlp.Wi": ("gate", "up"),
    "mlp.gated_layers": ("gate", "up"),
    "mlp.up_gate_proj": ("up", "gate"),
}
"""Weights that some checkpoints keep as one, and those that they are here, in the order of their rows."""

_PREFIXES = ("bert.", "roberta.", "model.", "new.")
_UNUSED = ("pooler.", "cls.", "lm_head.", "decoder.", "embeddings.position_ids")


class Attention(Module):
    """Attention of every token to all tokens of its text, or, if is_local, to those nearby."""

    def __init__(self, config: Config, design: Design, *, is_local: bool) -> None:
        super().__init__()
        self.num_heads = config["num_attention_heads"]
        self.query, self.key, self.value, self.out = (
            Linear(config["hidden_size"], config["hidden_size"]) for _ in range(4)
        )
        self._is_local, self._base, self._scale = is_local, design.bases[is_local], design.position_scale

    def __call__(self, hidden: mx.array, masks: Masks, cache: Any = None) -> mx.array:
        """Return the outcome of attention, (texts, tokens, size). hidden: the states, of the same shape.

        cache: says where these tokens stand in the text, and gives all keys and values; None for all tokens.
        """
        num_texts, num_tokens, size = hidden.shape

        def split(states: mx.array) -> mx.array:
            return states.reshape(num_texts, num_tokens, self.num_heads, -1).transpose(0, 2, 1, 3)

        queries, keys, values = split(self.query(hidden)), split(self.key(hidden)), split(self.value(hidden))
        if self._base:
            offset = cache.offset if cache else 0
            queries, keys = self._rotate(queries, offset), self._rotate(keys, offset)
        if cache:
            keys, values = cache.update_and_fetch(keys, values)
        scale = queries.shape[-1] ** -0.5
        found = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=masks[self._is_local]
        )
        return self.out(found.transpose(0, 2, 1, 3).reshape(num_texts, num_tokens, size))

    def _rotate(self, states: mx.array, offset: int) -> mx.array:
        return mx.fast.rope(
            states, states.shape[-1], traditional=False, base=self._base, scale=self._scale, offset=offset
        )


class Layer(Module):
    """One layer: attention and a feed-forward network."""

    def __init__(self, config: Config, design: Design, index: int) -> None:
        super().__init__()
        size, inner = config["hidden_size"], config["intermediate_size"]
        self.attention = Attention(config, design, is_local=index in design.local)
        if not (design.norms_first and index == 0):
            self.attention_norm = LayerNorm(size, config["layer_norm_eps"])
        if design.is_gated:
            self.gate = Linear(size, inner)
        self.up, self.down = Linear(size, inner), Linear(inner, size)
        self.norm = LayerNorm(size, config["layer_norm_eps"])
        self._activation = ACTIVATIONS[config["hidden_act"]]
        self._norms_first = design.norms_first

    def __call__(self, hidden: mx.array, masks: Masks, cache: Any = None) -> mx.array:
        """Return the states after this layer, (texts, tokens, size). hidden: those before it.

        cache: see Attention.
        """
        if self._norms_first:
            # The first layer has no norm of its own: its states come from that of the embeddings.
            normed = self.attention_norm(hidden) if "attention_norm" in self else hidden
            hidden = hidden + self.attention(normed, masks, cache)
            return hidden + self._feed_forward(self.norm(hidden))
        hidden = self.attention_norm(hidden + self.attention(hidden, masks, cache))
        after: mx.array = self.norm(hidden + self._feed_forward(hidden))
        return after

    def _feed_forward(self, hidden: mx.array) -> mx.array:
        if "gate" in self:
            return self.down(self._activation(self.gate(hidden)) * self.up(hidden))
        return self.down(self._activation(self.up(hidden)))


class Embeddings(Module):
    """The sum of the embeddings of a token, its type and its position."""

    def __init__(self, config: Config, design: Design) -> None:
        super().__init__()
        size = config["hidden_size"]
        self.tokens = Embedding(config["vocab_size"], size)
        if config["type_vocab_size"]:
            self.types = Embedding(config["type_vocab_size"], size)
        if design.positions == "learned":
            self.positions = Embedding(config["max_position_embeddings"], size)
        self.norm = LayerNorm(size, config["layer_norm_eps"])
        self._first_position = design.first_position

    def __call__(self, tokens: mx.array, types: mx.array) -> mx.array:
        """Return the states before the first layer, (texts, tokens, size). tokens, types: (texts, tokens)."""
        first = self.tokens(tokens)
        if "types" in self:
            first = first + self.types(types)
        if "positions" in self:
            first = first + self.positions(mx.arange(tokens.shape[1]) + self._first_position)
        normed: mx.array = self.norm(first)
        return normed


class Classifier(Module):
    """The layers that turn a pair's last states into its score."""

    def __init__(self, config: Config, design: Design) -> None:
        super().__init__()
        size = config["hidden_size"]
        self.dense, self.out = Linear(size, size), Linear(size, 1)
        if design.norms_first:
            self.norm = LayerNorm(size, config["layer_norm_eps"])
        self._pools_mean = config.get("classifier_pooling") == "mean"
        self._activation = ACTIVATIONS[config.get("classifier_activation", "gelu")]

    def __call__(self, states: mx.array) -> mx.array:
        """Return the logit of a document's relevance to a query, (1,). states: (tokens, size) of both."""
        pooled = states.mean(axis=0, keepdims=True) if self._pools_mean else states[:1]
        rated = self.dense(pooled)
        rated = self.norm(self._activation(rated)) if "norm" in self else mx.tanh(rated)
        return self.out(rated)[0]


class Encoder(Module):
    """A whole encoder. ranks: whether it rates pairs of texts, instead of making vectors."""

    def __init__(self, config: Config, *, ranks: bool = False) -> None:
        super().__init__()
        self._design = design = find_design(config)
        self.embeddings = Embeddings(config, design)
        self.layers = [Layer(config, design, index) for index in range(config["num_hidden_layers"])]
        if design.norms_first:
            self.final_norm = LayerNorm(config["hidden_size"], config["layer_norm_eps"])
        if ranks:
            self.classifier = Classifier(config, design)
        for path, part in self.named_modules():
            if path.rpartition(".")[2] in design.unbiased and not path.startswith("classifier.out"):
                part.pop("bias", None)

    def begin(self, tokens: mx.array, types: mx.array, num_tokens: mx.array) -> tuple[mx.array, Masks]:
        """Return the states before the first layer, (texts, tokens, size), and the masks.

        tokens, types: (texts, tokens) token ids and token types, padded at the end.
        num_tokens: (texts,) tokens without padding.
        """
        hidden, width = self.embeddings(tokens, types), tokens.shape[1]
        if self._design.positions == "alibi":
            num_heads = self.layers[0].attention.num_heads
            whole = attend_less_with_distance(num_tokens, width, num_heads, hidden.dtype)
        else:
            whole = attend_to_all(num_tokens, width)
        window = self._design.window
        return hidden, Masks(whole, attend_near(num_tokens, width, window) if window else whole)

    def end(self, hidden: mx.array) -> mx.array:
        """Return the states after the last layer, with the norm that follows it, if any."""
        states: mx.array = self.final_norm(hidden) if "final_norm" in self else hidden
        return states

    def rate(self, states: mx.array) -> mx.array:
        """Return the logit of a document's relevance to a query, (1,). states: (tokens, size) of both."""
        return self.classifier(states)


def rename(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Rename a checkpoint's weights to the names of Encoder, and leave out heads for other tasks."""
    found, ranks = {}, any(key.startswith("classifier.") for key in weights)
    for given, array in weights.items():
        name = next((given.removeprefix(one) for one in _PREFIXES if given.startswith(one)), given)
        if name.startswith("pooler.dense") and ranks:
            # BERT's classifier takes what its pooler makes; RoBERTa's has a layer of its own.
            name = name.replace("pooler.dense", "classifier.dense")
        elif name in ("classifier.weight", "classifier.bias", "classifier.scales", "classifier.biases"):
            name = name.replace("classifier.", "classifier.out.")
        if name.startswith(_UNUSED) or (name.startswith("head.") and not ranks):
            continue
        for ours, theirs in _NAMES.items():
            name = re.sub(theirs, ours, name)
        joined = next((one for one in _JOINED if one in name), None)
        parts = _JOINED[joined] if joined else ("",)
        for part, rows in zip(parts, mx.split(array, len(parts)), strict=True):
            found[name.replace(joined, part) if joined else name] = rows
    return found
