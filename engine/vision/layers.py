"""The parts of all towers' layers: attention over one image's patches, rotation, feed forward."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from mlx.nn.layers.activations import gelu, gelu_approx, gelu_fast_approx, silu

from reprise.engine.vision.weights import Weights

ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu_approx,
    "quick_gelu": gelu_fast_approx,
    "silu": silu,
}

FUSED_WIDTHS = (64, 80, 128)
"""Widths of a head for which Metal computes attention without a table of all scores."""

QUERIES = 128
"""Patches that attend at once where scores are a table: its rows."""

TASKS = 16
"""Arrays that are held at once: MLX lets ten tasks wait for the processor, some of which have two."""

Rotation = tuple[mx.array, mx.array]
"""Cosines and sines (patches, 1, parts, 1, pairs); see rotate()."""


@dataclass(frozen=True)
class Layers:
    """The structure of a family's layers, and the names of their weights.

    prefix: the part of names before a layer's number. width: of a head. norm: Weights.layer_norm or rms_norm.
    norms: the norm before attention and the one before the feed forward. projections: a single one for
        queries, keys and values together, or three. feed_forward: in and out, or gate, in and out.
    norms_after: the norm after attention and the one after the feed forward, if the layers have these.
    norms_of_heads: the norms of queries and keys, if the layers have these; values then have one without a
        weight, and scores are not scaled.
    """

    prefix: str
    count: int
    heads: int
    width: int
    norm: Callable[[Weights, str, mx.array, float], mx.array]
    eps: float
    activation: Callable[[mx.array], mx.array]
    norms: tuple[str, str]
    projections: tuple[str, ...]
    out: str
    feed_forward: tuple[str, ...]
    norms_after: tuple[str, str] | None = None
    norms_of_heads: tuple[str, str] | None = None

    def apply(
        self,
        weights: Weights,
        index: int,
        x: mx.array,
        rotation: Rotation | None,
        mask: mx.array | None = None,
    ) -> mx.array:
        """Apply layer `index` to states x (groups, patches, width). Patches attend only within a group.

        mask: (groups, 1, 1, patches), True for patches that exist.
        """
        name = f"{self.prefix}{index}."
        y = self._normal(weights, name, self.norms, 0, x)
        y = self._attention(weights, name, y, rotation, mask)
        x = x + self._normal(weights, name, self.norms_after, 0, y)
        y = self._feed_forward(weights, name, self._normal(weights, name, self.norms, 1, x))
        return x + self._normal(weights, name, self.norms_after, 1, y)

    def _normal(
        self, weights: Weights, name: str, norms: tuple[str, str] | None, which: int, x: mx.array
    ) -> mx.array:
        return self.norm(weights, name + norms[which], x, self.eps) if norms else x

    def _attention(
        self, weights: Weights, name: str, x: mx.array, rotation: Rotation | None, mask: mx.array | None
    ) -> mx.array:
        parts = [weights.linear(name + projection, x) for projection in self.projections]
        if len(parts) == 1:
            parts = list(mx.split(parts[0], 3, axis=-1))
        queries, keys, values = (part.reshape(*x.shape[:2], -1, self.width) for part in parts)
        scale = self.width**-0.5
        if self.norms_of_heads:
            queries = self._normal(weights, name, self.norms_of_heads, 0, queries)
            keys = self._normal(weights, name, self.norms_of_heads, 1, keys)
            values, scale = mx.fast.rms_norm(values, None, self.eps), 1.0
        if rotation:
            queries, keys = rotate(queries, rotation), rotate(keys, rotation)
        y = attend(queries, keys, values, scale, mask)
        return weights.linear(name + self.out, y)

    def _feed_forward(self, weights: Weights, name: str, x: mx.array) -> mx.array:
        *gates, into, out = (name + layer for layer in self.feed_forward)
        if not gates:
            return weights.linear(out, self.activation(weights.linear(into, x)))
        return weights.linear(out, self.activation(weights.linear(gates[0], x)) * weights.linear(into, x))


def attend(
    queries: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | None = None
) -> mx.array:
    """Return attention of all patches to all: (groups, patches, heads * width).

    queries, keys, values: (groups, patches, heads, width).
    mask: (groups, 1, 1, patches), True for keys that count.
    """
    width = queries.shape[-1]
    fused = next((fused for fused in FUSED_WIDTHS if width <= fused), width)
    padding = [(0, 0)] * 3 + [(0, fused - width)]
    queries, keys, values = (mx.pad(x, padding).swapaxes(1, 2) for x in (queries, keys, values))
    pieces: list[mx.array] = []
    together = queries.shape[2] if is_fused(fused) else QUERIES
    for start in range(0, queries.shape[2], together):
        some = queries[:, :, start : start + together]
        # MLX would compute the scores of all pieces before it uses any.
        some = mx.depends(some, pieces[-1]) if pieces else some
        pieces.append(mx.fast.scaled_dot_product_attention(some, keys, values, scale=scale, mask=mask))
    attended = mx.concatenate(pieces, axis=2)[..., :width].swapaxes(1, 2)
    return attended.flatten(2)


def is_fused(width: int) -> bool:
    """Return whether the device computes attention of heads of this width without a table of scores."""
    return mx.default_device().type == mx.DeviceType.gpu and width <= FUSED_WIDTHS[-1]


def rotation_of(angles: np.ndarray, parts: int = 1) -> Rotation:
    """Return the rotation by angles (patches, parts * pairs). parts: parts of a head, each turned alone."""
    turned = mx.array(angles.astype(np.float32)).reshape(len(angles), 1, parts, 1, -1)
    return mx.cos(turned), mx.sin(turned)


def rotate(x: mx.array, rotation: Rotation) -> mx.array:
    """Rotate x (groups, patches, heads, width): pairs from the first and second half of each part.

    Computed in float32, as transformers does.
    """
    cos, sin = (table.reshape(*x.shape[:2], *table.shape[1:]) for table in rotation)
    pairs = x.astype(mx.float32).reshape(*x.shape[:3], cos.shape[3], 2, cos.shape[-1])
    first, second = pairs[..., :1, :], pairs[..., 1:, :]
    turned = mx.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-2)
    return turned.reshape(x.shape).astype(x.dtype)


def places_of(grid: tuple[int, int], merge: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns (patches,) of a grid's patches; those of one token are side by side."""
    rows, columns = np.indices(grid)
    order = (grid[0] // merge, merge, grid[1] // merge, merge)
    return rows.reshape(order).swapaxes(1, 2).ravel(), columns.reshape(order).swapaxes(1, 2).ravel()


def frequencies(base: float, width: int) -> np.ndarray:
    """Return the angles (width / 2,) by which one place turns the pairs of a part of `width` numbers."""
    return base ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def interpolate(table: mx.array, corners: np.ndarray, shares: np.ndarray) -> mx.array:
    """Return for each patch a weighted sum of a table's rows: (patches, width) float32.

    table: (rows, width). corners: (patches, k) indices of the rows. shares: (patches, k) their weights.
    """
    rows = table[mx.array(corners.astype(np.int32))].astype(mx.float32)
    return (rows * mx.array(shares.astype(np.float32))[:, :, None]).sum(axis=1)
