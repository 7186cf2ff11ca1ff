"""Convert a text's hidden states into its vector: pool, dense layers, cut, normalize. In float32.

Every text is pooled by itself, so that its vector cannot depend on those beside it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
from mlx.nn.layers.activations import gelu, relu, silu

from reprise.engine.interface.embeddings import Dense, Recipe
from reprise.engine.interface.errors import ModelError

ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "Identity": lambda states: states,
    "Tanh": mx.tanh,
    "GELU": gelu,
    "ReLU": relu,
    "SiLU": silu,
    "Sigmoid": mx.sigmoid,
}

MIN_NORM = 1e-12
"""Norm by which a shorter vector is divided, as torch does."""

Stage = Callable[[mx.array], mx.array]


class VectorMaker:
    """Makes vectors by a recipe. dense: its dense layers, as load_dense() returns them."""

    def __init__(self, recipe: Recipe, dense: Sequence[Stage] = ()) -> None:
        self._recipe, self._dense = recipe, dense

    def make(self, states: mx.array, first_pooled: int = 0, dimensions: int | None = None) -> mx.array:
        """Return the vector of a text, (dimensions,) float32.

        states: (tokens, size) after the last layer. first_pooled: index of the first token that is pooled.
        dimensions: how many numbers of the vector to keep; None for all.
        """
        vector = self._pool(states.astype(mx.float32), first_pooled)
        for stage in self._dense:
            vector = stage(vector[None])[0]
        vector = vector[:dimensions]
        if self._recipe.normalizes:
            vector = vector / mx.maximum(mx.sqrt(vector.square().sum()), MIN_NORM)
        return vector

    def _pool(self, states: mx.array, first: int) -> mx.array:
        match self._recipe.pooling:
            case "cls":
                return states[0]
            case "last":
                return states[-1]
            case "max":
                return states[first:].max(axis=0)
            case "mean":
                return states[first:].mean(axis=0)


def load_dense(layers: Sequence[Dense], size: int) -> list[Stage]:
    """Load the dense layers after pooling. size: that of the pooled states. Raises ModelError."""
    stages = []
    for layer in layers:
        stage, size = _load_layer(layer, size)
        stages.append(stage)
    return stages


def _load_layer(layer: Dense, size: int) -> tuple[Stage, int]:
    """Return what a layer does, and the size of its result. size: of what it takes."""
    if layer.activation not in ACTIVATIONS:
        raise ModelError(f"{layer.folder} has the activation {layer.activation}, which is not known here")
    loaded = read_weights(layer.folder)
    if (weight := loaded.get(f"{layer.name}.weight")) is None:
        raise ModelError(f"{layer.folder} has no weights {layer.name}, which follow its pooling")
    if (scales := loaded.get(f"{layer.name}.scales")) is not None:
        group_size, bits = size // scales.shape[-1], 32 * weight.shape[-1] // size
        biases = loaded.get(f"{layer.name}.biases")
        weight = mx.dequantize(weight, scales, biases, group_size=group_size, bits=bits)
    weight = weight.astype(mx.float32)
    bias = loaded[f"{layer.name}.bias"].astype(mx.float32) if layer.has_bias else mx.zeros(len(weight))
    activation = ACTIVATIONS[layer.activation]
    mx.eval(weight, bias)
    return lambda states: activation(mx.addmm(bias, states, weight.T)), len(weight)


def read_weights(folder: Path) -> dict[str, mx.array]:
    """Return the weights in a folder by their names; MLX reads each when it is first used."""
    found: dict[str, mx.array] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        loaded = mx.load(str(file))
        assert isinstance(loaded, dict)
        found |= loaded
    return found
