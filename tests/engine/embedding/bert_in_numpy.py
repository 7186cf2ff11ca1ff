"""BERT, RoBERTa and jina's BERT in numpy and float64, written from their papers: an oracle of the encoder."""

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

erf = np.vectorize(math.erf)

SLOPES_OF_6 = (1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8)
"""Of six heads: those of four heads, then every second one of eight heads (Press et al. 2021)."""


class BertInNumpy:
    """One text at a time, without padding. Weights by transformers' names."""

    def __init__(self, folder: Path):
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = {
            name.removeprefix("bert.").removeprefix("roberta."): array
            for name, array in load_file(folder / "model.safetensors").items()
        }

    def states(self, tokens, types=None):
        """Return (tokens, size) the states after the last layer."""
        config, weights = self.config, self.weights
        first = 0 if config["model_type"] == "bert" else config["pad_token_id"] + 1
        hidden = weights["embeddings.word_embeddings.weight"][list(tokens)].astype(np.float64)
        if "embeddings.position_embeddings.weight" in weights:
            hidden = hidden + weights["embeddings.position_embeddings.weight"][first : first + len(tokens)]
        hidden = hidden + weights["embeddings.token_type_embeddings.weight"][list(types or [0] * len(tokens))]
        hidden = self._norm(hidden, "embeddings.LayerNorm")
        for index in range(config["num_hidden_layers"]):
            hidden = self._layer(hidden, f"encoder.layer.{index}")
        return hidden

    def mean(self, tokens, first=0):
        """Return the mean of the states from one on, with the length 1."""
        vector = self.states(tokens)[first:].mean(axis=0)
        return vector / np.linalg.norm(vector)

    def score(self, tokens, types):
        """Return what the classifier makes of a pair, between 0 and 1."""
        state, is_bert = self.states(tokens, types)[0], self.config["model_type"] == "bert"
        dense, out = (
            ("pooler.dense", "classifier") if is_bert else ("classifier.dense", "classifier.out_proj")
        )
        return 1 / (1 + np.exp(-self._linear(np.tanh(self._linear(state, dense)), out)[0]))

    def _layer(self, hidden, name):
        attended = self._linear(
            self._attend(hidden, f"{name}.attention.self"), f"{name}.attention.output.dense"
        )
        hidden = self._norm(hidden + attended, f"{name}.attention.output.LayerNorm")
        if f"{name}.mlp.wo.weight" in self.weights:
            gate, up = np.split(hidden @ self.weights[f"{name}.mlp.gated_layers.weight"].T, 2, axis=-1)
            hidden = hidden + self._linear(self._gelu(gate) * up, f"{name}.mlp.wo")
            return self._norm(hidden, f"{name}.mlp.layernorm")
        inner = self._gelu(self._linear(hidden, f"{name}.intermediate.dense"))
        return self._norm(hidden + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _attend(self, hidden, name):
        heads, size = self.config["num_attention_heads"], hidden.shape[-1]
        made = [self._linear(hidden, f"{name}.{kind}") for kind in ("query", "key", "value")]
        found = []
        for head in range(heads):
            part = slice(head * size // heads, (head + 1) * size // heads)
            query, key, value = (states[:, part] for states in made)
            scores = query @ key.T / math.sqrt(size // heads)
            if self.config.get("position_embedding_type") == "alibi":
                at = np.arange(len(hidden))
                scores = scores - SLOPES_OF_6[head] * np.abs(at[:, None] - at)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            found.append(weights / weights.sum(axis=-1, keepdims=True) @ value)
        return np.concatenate(found, axis=-1)

    def _gelu(self, states):
        return states * 0.5 * (1 + erf(states / math.sqrt(2)))

    def _linear(self, states, name):
        return states @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _norm(self, states, name):
        centered = states - states.mean(axis=-1, keepdims=True)
        scaled = centered / np.sqrt(centered.var(axis=-1, keepdims=True) + self.config["layer_norm_eps"])
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
