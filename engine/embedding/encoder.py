"""BERT and its relatives (RoBERTa, XLM-RoBERTa, CamemBERT) in MLX.

    token, position and type embeddings -> norm -> layers: attention -> norm -> feed forward -> norm

The norm follows each sum. RoBERTa counts positions from the padding token's id + 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class EncoderSizes:
    """The sizes of an encoder, as its configuration has them. first_position: of a text's first token."""

    hidden: int
    heads: int
    layers: int
    inner: int
    vocabulary: int
    positions: int
    types: int
    norm_eps: float
    activation: str
    first_position: int

    @classmethod
    def of(cls, config: dict[str, Any]) -> "EncoderSizes":
        """Read the sizes from a configuration. Raises ModelError for what is not known here."""
        activation = str(config.get("hidden_act", "gelu"))
        if activation not in ACTIVATIONS:
            raise ModelError(f"the activation {activation} is not known here")
        if config.get("position_embedding_type", "absolute") != "absolute":
            raise ModelError(f"positions of type {config['position_embedding_type']} are not known here")
        return cls(
            hidden=int(config["hidden_size"]),
            heads=int(config["num_attention_heads"]),
            layers=int(config["num_hidden_layers"]),
            inner=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            positions=int(config["max_position_embeddings"]),
            types=int(config.get("type_vocab_size", 2)),
            norm_eps=float(config.get("layer_norm_eps", 1e-12)),
            activation=activation,
            first_position=find_first_position(config),
        )


class Attention(Module):
    """Attention of every token to all tokens of its text."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.num_heads = sizes.heads
        self.query, self.key, self.value, self.out = (Linear(sizes.hidden, sizes.hidden) for _ in range(4))

    def __call__(self, hidden: mx.array, mask: mx.array) -> mx.array:
        """Return what each token attends to. hidden: (texts, tokens, size). mask: (texts, 1, 1, tokens)."""
        num_texts, num_tokens, size = hidden.shape

        def split(states: mx.array) -> mx.array:
            return states.reshape(num_texts, num_tokens, self.num_heads, -1).transpose(0, 2, 1, 3)

        queries, keys, values = split(self.query(hidden)), split(self.key(hidden)), split(self.value(hidden))
        scale = queries.shape[-1] ** -0.5
        found = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
        return self.out(found.transpose(0, 2, 1, 3).reshape(num_texts, num_tokens, size))


class Layer(Module):
    """One layer: attention and a feed-forward network."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.attention = Attention(sizes)
        self.attention_norm = LayerNorm(sizes.hidden, sizes.norm_eps)
        self.up = Linear(sizes.hidden, sizes.inner)
        self.down = Linear(sizes.inner, sizes.hidden)
        self.norm = LayerNorm(sizes.hidden, sizes.norm_eps)
        self._activation = ACTIVATIONS[sizes.activation]

    def __call__(self, hidden: mx.array, mask: mx.array) -> mx.array:
        """Return the states after this layer. See Attention for shapes."""
        hidden = self.attention_norm(hidden + self.attention(hidden, mask))
        after: mx.array = self.norm(hidden + self.down(self._activation(self.up(hidden))))
        return after


class Embeddings(Module):
    """The sum of what a token, its position and its type stand for."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.tokens = Embedding(sizes.vocabulary, sizes.hidden)
        self.positions = Embedding(sizes.positions, sizes.hidden)
        self.types = Embedding(sizes.types, sizes.hidden)
        self.norm = LayerNorm(sizes.hidden, sizes.norm_eps)

    def __call__(self, tokens: mx.array, types: mx.array, first_position: int) -> mx.array:
        """Return the first states. tokens, types: (texts, tokens)."""
        positions = mx.arange(first_position, first_position + tokens.shape[1])
        first: mx.array = self.norm(self.tokens(tokens) + self.types(types) + self.positions(positions))
        return first


class Classifier(Module):
    """Rates a pair of texts by the state of the first token."""

    def __init__(self, sizes: EncoderSizes) -> None:
        super().__init__()
        self.dense = Linear(sizes.hidden, sizes.hidden)
        self.out = Linear(sizes.hidden, 1)

    def __call__(self, states: mx.array) -> mx.array:
        """Return (1,) the logit of a pair. states: (size,) of its first token."""
        return self.out(mx.tanh(self.dense(states[None])))[0]


class Encoder(Module):
    """A whole encoder. ranks: whether it rates pairs of texts."""

    def __init__(self, sizes: EncoderSizes, *, ranks: bool = False) -> None:
        super().__init__()
        self.embeddings = Embeddings(sizes)
        self.layers = [Layer(sizes) for _ in range(sizes.layers)]
        if ranks:
            self.classifier = Classifier(sizes)
        self._first_position = sizes.first_position

    def begin(self, tokens: mx.array, types: mx.array, num_tokens: mx.array) -> tuple[mx.array, mx.array]:
        """Return the states before the first layer, and the mask of what is a token and not padding.

        tokens, types: (texts, tokens), padded at the end. num_tokens: (texts,).
        """
        mask = mx.arange(tokens.shape[1])[None] < num_tokens[:, None]
        return self.embeddings(tokens, types, self._first_position), mask[:, None, None]


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
