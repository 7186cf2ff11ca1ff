"""LFM2-VL's tower, a SigLIP 2 for images of any shape: positions are a square table, resized to each image.

Large images come as tiles and a small picture of the whole, each of which is an image of its own here.
"""

import mlx.core as mx
import numpy as np

from reprise.engine.vision.gemma import siglip_layers
from reprise.engine.vision.layers import ACTIVATIONS
from reprise.engine.vision.tower import Config, Grid, Tower, in_blocks
from reprise.engine.vision.weights import CHANNELS, Weights

PROJECTOR_EPS = 1e-5


class Lfm2Tower(Tower):
    """The tower of LFM2-VL and LFM2.5-VL, a SigLIP 2 for images of any shape.

    Positions are a square table, resized to each image. Large images come as tiles and a small picture of the
    whole, each of which is an image of its own here.
    """

    family = "lfm2"

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = config["vision_config"]
        self.merge_size = int(config.get("downsample_factor", 2))
        self.eps = float(vision.get("layer_norm_eps", 1e-6))
        # Some files have the weights of a norm that is not used.
        self.is_normal = bool(config.get("projector_use_layernorm", True))
        self.activation = ACTIVATIONS[config.get("projector_hidden_act", "gelu")]
        self.layers = siglip_layers(vision, self.eps)

    def shape_of(self, grid: Grid) -> tuple[int, ...]:
        """Return the shape of an image's pixels, (patches, side * side * channels)."""
        return self.num_patches(grid), CHANNELS * self.patch_size**2

    def embed(self, patches: np.ndarray) -> mx.array:
        """Return the states (1, some, width) of patches (some, side * side * channels)."""
        normal = self.normalization.apply_behind(patches).astype(self.weights.dtype)
        return self.weights.linear("embeddings.patch_embedding", normal)[None]

    def place(self, x: mx.array, grid: Grid) -> mx.array:
        """Add positions from the table, resized to the grid."""
        table = self.weights.table("embeddings.position_embedding", x.shape[-1])
        return x + resized(table, grid).astype(x.dtype)

    def plan(self, grid: Grid) -> None:
        """Return nothing, as the embedding holds the positions."""

    def merge(self, x: mx.array, grid: Grid) -> mx.array:
        """Return the tokens' states (tokens, hidden), each of a block of patches."""
        x = self.weights.layer_norm("post_layernorm", x, self.eps)
        x = in_blocks(x, grid, self.merge_size).flatten(1)
        if self.is_normal:
            x = self.weights.layer_norm("multi_modal_projector.layer_norm", x, PROJECTOR_EPS)
        inner = self.activation(self.weights.linear("multi_modal_projector.linear_1", x))
        return self.weights.linear("multi_modal_projector.linear_2", inner)


def resized(table: mx.array, grid: Grid) -> mx.array:
    """Resize a square table (side * side, width) to a grid: (patches, width) float32."""
    side = int(table.shape[0] ** 0.5)
    rows, columns = (mx.array(_shares(length, side)) for length in grid)
    wide = rows @ table.astype(mx.float32).reshape(side, -1)
    return (columns @ wide.reshape(grid[0], side, -1)).flatten(0, 1)


def _shares(length: int, side: int) -> np.ndarray:
    """Return how much of each of side places goes into each of length ones: (length, side), in float32.

    Bilinear, and over a wider span where places become fewer, as PyTorch does with antialias.
    """
    centers = (np.arange(length) + 0.5) * side / length
    distances = np.abs(np.arange(side) + 0.5 - centers[:, None]) / max(side / length, 1)
    shares: np.ndarray = np.maximum(0, 1 - distances)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares.astype(np.float32)
