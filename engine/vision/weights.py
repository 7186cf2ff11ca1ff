"""A tower's arrays in a model folder, published or converted to MLX, quantised or not."""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import mlx.core as mx

CHANNELS = 3

Activation = Callable[[mx.array], mx.array]

_RENAMED = (
    ("model.", ""),
    ("visual.", "vision_tower."),
    ("vision_tower.vision_model.", "vision_tower."),
    ("vision_tower.", ""),
)
"""How the names of one layout become those of the next, in order, by their beginnings."""

_PARTS = ("vision_tower.", "visual.", "multi_modal_projector.", "embed_vision.")
"""Beginnings of the names of all that a tower has."""


def read_arrays(folder: Path) -> dict[str, mx.array]:
    """Return the arrays in a model folder by name, lazy, so that none is read yet."""
    arrays: dict[str, mx.array] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        held = mx.load(str(file))
        assert isinstance(held, dict)
        arrays |= held
    return arrays


def read_weights(folder: Path) -> "Weights":
    """Return the arrays of the tower in a model folder."""
    arrays = read_arrays(folder)
    return Weights({plain_name(name): array for name, array in arrays.items() if is_of_tower(name)})


def is_of_tower(name: str) -> bool:
    """Return whether an array of this name belongs to a tower."""
    return name.removeprefix("model.").startswith(_PARTS)


def plain_name(name: str) -> str:
    """Return a tower array's name in Weights: its name in the file without the model's prefix."""
    for beginning, replacement in _RENAMED:
        if name.startswith(beginning):
            name = replacement + name.removeprefix(beginning)
    # Gemma 4's layers have bounds, and their weights a layer further down.
    return name.replace("_proj.linear.", "_proj.")


class Weights:
    """A model's arrays by name, such as a tower's, and its linear layers, tables and norms."""

    def __init__(self, arrays: dict[str, mx.array]) -> None:
        self.arrays = arrays

    @cached_property
    def dtype(self) -> mx.Dtype:
        """The type that the tower computes in: that of its first array that is not quantised."""
        plain = (array for name, array in self.arrays.items() if self._is_plain(name))
        return next(array.dtype for array in plain if mx.issubdtype(array.dtype, mx.floating))

    def _is_plain(self, name: str) -> bool:
        layer, _, kind = name.rpartition(".")
        return kind not in ("scales", "biases") and f"{layer}.scales" not in self.arrays

    def __getitem__(self, name: str) -> mx.array:
        return self.arrays[name]

    def linear(self, name: str, x: mx.array) -> mx.array:
        """Return x @ weight.T + bias: (..., inputs) -> (..., outputs). A layer without bias adds none.

        A layer that has bounds clips x and the result.
        """
        x = self._clip(name, "input", x)
        if f"{name}.scales" in self.arrays:
            size, bits, mode = self.packing(name, x.shape[-1])
            y = mx.quantized_matmul(x, *self._packed(name), True, size, bits, mode)
        else:
            y = x @ self.arrays[f"{name}.weight"].T
        bias = self.arrays.get(f"{name}.bias")
        return self._clip(name, "output", y if bias is None else y + bias)

    def feed_forward(self, into: str, out: str, activation: Activation, x: mx.array) -> mx.array:
        """Apply two layers to x, with the activation between them."""
        return self.linear(out, activation(self.linear(into, x)))

    def patches(self, name: str, x: mx.array) -> mx.array:
        """Return the convolution of patches (n, channels * pixels), which do not overlap: (n, outputs)."""
        weight = self.arrays[f"{name}.weight"]
        # PyTorch has channels before pixels, MLX behind them. Converters do not agree about Conv3d.
        if weight.ndim > 2 and weight.shape[1] != CHANNELS:
            weight = mx.moveaxis(weight, -1, 1)
        y = x @ weight.reshape(weight.shape[0], -1).T
        bias = self.arrays.get(f"{name}.bias")
        return y if bias is None else y + bias

    def table(self, name: str, width: int) -> mx.array:
        """Return an embedding's whole table (n, width), not quantised."""
        if f"{name}.scales" not in self.arrays:
            return self.arrays[f"{name}.weight"]
        size, bits, mode = self.packing(name, width)
        return mx.dequantize(*self._packed(name), size, bits, mode)

    def layer_norm(self, name: str, x: mx.array, eps: float) -> mx.array:
        """Return x (..., width) with mean 0 and variance 1, times the weight, plus the bias."""
        return mx.fast.layer_norm(x, self.arrays[f"{name}.weight"], self.arrays[f"{name}.bias"], eps)

    def rms_norm(self, name: str, x: mx.array, eps: float) -> mx.array:
        """Return x (..., width) with root mean square 1, times the weight."""
        return mx.fast.rms_norm(x, self.arrays[f"{name}.weight"], eps)

    def _clip(self, name: str, end: str, x: mx.array) -> mx.array:
        if f"{name}.{end}_min" not in self.arrays:
            return x
        return mx.clip(x, self.arrays[f"{name}.{end}_min"], self.arrays[f"{name}.{end}_max"]).astype(x.dtype)

    def _packed(self, name: str) -> tuple[mx.array, mx.array, mx.array | None]:
        kinds = ("weight", "scales", "biases")
        weight, scales, biases = (self.arrays.get(f"{name}.{kind}") for kind in kinds)
        assert weight is not None and scales is not None
        return weight, scales, biases

    def packing(self, name: str, width: int) -> tuple[int, int, str]:
        """Return the group size, bits and mode of a quantised layer. width: the numbers that it takes."""
        # Every layer may have its own, and config.json names exceptions by names that differ between
        # converters. The shapes say the same. Only affine scales have a bias beside them.
        weight, scales, biases = self._packed(name)
        size, bits = width // scales.shape[-1], weight.shape[-1] * 32 // width
        if biases is not None:
            return size, bits, "affine"
        return size, bits, "nvfp4" if size == 16 else f"mxfp{bits}"
