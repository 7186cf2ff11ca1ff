"""BERT and its relatives (RoBERTa, XLM-RoBERTa, CamemBERT) in MLX.

    token, position and type embeddings -> norm -> layers: attention -> norm -> feed forward -> norm

The norm follows each sum. RoBERTa counts positions from the padding token's id + 1.
"""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import gelu, gelu_approx, relu, silu
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import LayerNorm

from engine.model.loading import ModelError
from engine.model.recipe import find_first_position

ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "gelu": gelu,
    "gelu_new": gelu_approx,
    "gelu_pytorch_tanh": gelu_approx,
    "relu": relu,
    "silu": silu,
}

_NAMES = (
    ("embeddings.LayerNorm", "embeddings.norm"),
    ("embeddings.word_embeddings", "embeddings.tokens"),
    ("embeddings.position_embeddings", "embeddings.positions"),
    ("embeddings.token_type_embeddings", "embeddings.types"),
    ("encoder.layer.", "layers."),
    ("attention.self.", "attention."),
    ("attention.output.dense", "attention.out"),
    ("attention.output.LayerNorm", "attention_norm"),
    ("intermediate.dense", "up"),
    ("output.dense", "down"),
    ("output.LayerNorm", "norm"),
    (".gamma", ".weight"),
    (".beta", ".bias"),
)
"""Parts of the names that transformers gives weights, and what they are called here, in order."""

_PREFIXES = ("bert.", "roberta.", "model.")
_UNUSED = ("pooler.", "cls.", "lm_head.", "embeddings.position_ids")


Config = dict[str, Any]
"""The fields of config.json, with defaults for missing ones; see complete()."""


def complete(config: Config) -> Config:
    """Return a configuration with all that an encoder needs. Raises ModelError for what is not known here."""
    whole = {
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
    } | config
    if whole["hidden_act"] not in ACTIVATIONS:
        raise ModelError(f"the activation {whole['hidden_act']} is not known here")
    if whole["position_embedding_type"] != "absolute":
        raise ModelError(f"positions of type {whole['position_embedding_type']} are not known here")
    return whole


class Attention(Module):
    """Attention of every token to all tokens of its text."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.num_heads = config["num_attention_heads"]
        self.query, self.key, self.value, self.out = (
            Linear(config["hidden_size"], config["hidden_size"]) for _ in range(4)
        )

    def __call__(self, hidden: mx.array, mask: mx.array) -> mx.array:
        """Return the output of each token. hidden: (texts, tokens, size). mask: (texts, 1, 1, tokens)."""
        num_texts, num_tokens, size = hidden.shape

        def split(states: mx.array) -> mx.array:
            return states.reshape(num_texts, num_tokens, self.num_heads, -1).transpose(0, 2, 1, 3)

        queries, keys, values = split(self.query(hidden)), split(self.key(hidden)), split(self.value(hidden))
        scale = queries.shape[-1] ** -0.5
        found = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
        return self.out(found.transpose(0, 2, 1, 3).reshape(num_texts, num_tokens, size))


class Layer(Module):
    """One layer: attention and a feed-forward network."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = LayerNorm(config["hidden_size"], config["layer_norm_eps"])
        self.up = Linear(config["hidden_size"], config["intermediate_size"])
        self.down = Linear(config["intermediate_size"], config["hidden_size"])
        self.norm = LayerNorm(config["hidden_size"], config["layer_norm_eps"])
        self._activation = ACTIVATIONS[config["hidden_act"]]

    def __call__(self, hidden: mx.array, mask: mx.array) -> mx.array:
        """Return the states after this layer. See Attention for shapes."""
        hidden = self.attention_norm(hidden + self.attention(hidden, mask))
        after: mx.array = self.norm(hidden + self.down(self._activation(self.up(hidden))))
        return after


class Embeddings(Module):
    """The sum of what a token, its position and its type stand for."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tokens = Embedding(config["vocab_size"], config["hidden_size"])
        self.positions = Embedding(config["max_position_embeddings"], config["hidden_size"])
        self.types = Embedding(config["type_vocab_size"], config["hidden_size"])
        self.norm = LayerNorm(config["hidden_size"], config["layer_norm_eps"])

    def __call__(self, tokens: mx.array, types: mx.array, first_position: int) -> mx.array:
        """Return the first states. tokens, types: (texts, tokens)."""
        positions = mx.arange(first_position, first_position + tokens.shape[1])
        first: mx.array = self.norm(self.tokens(tokens) + self.types(types) + self.positions(positions))
        return first


class Classifier(Module):
    """Rates a pair of texts by the state of the first token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.dense = Linear(config["hidden_size"], config["hidden_size"])
        self.out = Linear(config["hidden_size"], 1)

    def __call__(self, states: mx.array) -> mx.array:
        """Return (1,) the logit of a pair. states: (size,) of its first token."""
        return self.out(mx.tanh(self.dense(states[None])))[0]


class Encoder(Module):
    """A whole encoder. ranks: whether it rates pairs of texts."""

    def __init__(self, config: Config, *, ranks: bool = False) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = [Layer(config) for _ in range(config["num_hidden_layers"])]
        if ranks:
            self.classifier = Classifier(config)
        self._first_position = find_first_position(config)

    def begin(self, tokens: mx.array, types: mx.array, num_tokens: mx.array) -> tuple[mx.array, mx.array]:
        """Return the states before the first layer, and the mask of what is a token and not padding.

        tokens, types: (texts, tokens), padded at the end. num_tokens: (texts,).
        """
        mask = mx.arange(tokens.shape[1])[None] < num_tokens[:, None]
        return self.embeddings(tokens, types, self._first_position), mask[:, None, None]

    def end(self, hidden: mx.array) -> mx.array:
        """Return the states as they are: a layer ends with its norm."""
        return hidden


def rename(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return the weights of a checkpoint of transformers by the names used here, without other heads."""
    found = {}
    for given, array in weights.items():
        name = next((given.removeprefix(one) for one in _PREFIXES if given.startswith(one)), given)
        if name.startswith("pooler.dense") and any(key.startswith("classifier.") for key in weights):
            # BERT's classifier takes what its pooler makes; RoBERTa's has a layer of its own.
            name = name.replace("pooler.dense", "classifier.dense")
        elif name in ("classifier.weight", "classifier.bias", "classifier.scales", "classifier.biases"):
            name = name.replace("classifier.", "classifier.out.")
        name = name.replace("classifier.out_proj", "classifier.out")
        if name.startswith(_UNUSED):
            continue
        for theirs, ours in _NAMES:
            name = name.replace(theirs, ours)
        found[name] = array
    return found
