"""Qwen's towers: patches in blocks of 2x2 that become one token, and rotation by row and column.

Qwen3-VL has positions too, interpolated from a square table, and hands states from within its tower to the
first layers of the language model. Qwen3.5 and 3.6 do not do that.
"""

import mlx.core as mx
import numpy as np

from engine.interface.images import PromptImage
from engine.vision.layers import (
    ACTIVATIONS,
    Layers,
    Rotation,
    frequencies,
    interpolate,
    places_of,
    rotation_of,
)
from engine.vision.tower import Config, Grid, Tower
from engine.vision.weights import CHANNELS, Weights

EPS = 1e-6
ROPE_BASE = 10_000.0


class Qwen3Tower(Tower):
    """Qwen3-VL, Qwen3.5 and Qwen3.6, with experts or without."""

    family = "qwen3"

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = config["vision_config"]
        self.width = int(vision["hidden_size"])
        self.frames = int(vision.get("temporal_patch_size", 2))
        self.deep = list(vision.get("deepstack_visual_indexes") or ())
        self.layers = Layers(
            prefix="blocks.",
            count=int(vision["depth"]),
            heads=int(vision["num_heads"]),
            width=self.width // int(vision["num_heads"]),
            norm=Weights.layer_norm,
            eps=EPS,
            activation=ACTIVATIONS[vision.get("hidden_act", "gelu_pytorch_tanh")],
            norms=("norm1", "norm2"),
            projections=("attn.qkv",),
            out="attn.proj",
            feed_forward=("mlp.linear_fc1", "mlp.linear_fc2"),
        )

    def positions(self, grid: Grid) -> np.ndarray:
        """Return time, row and column (3, tokens) of an image's tokens; all are at one time."""
        rows, columns = np.indices((grid[0] // self.merge_size, grid[1] // self.merge_size))
        return np.stack([np.zeros_like(rows), rows, columns]).reshape(3, -1).astype(np.int32)

    def blank(self, grid: Grid) -> PromptImage:
        """Return a black image of a grid."""
        shape = (self.num_patches(grid), CHANNELS * self.patch_size**2)
        return PromptImage(0, self.num_tokens(grid), grid, bytes(shape[0] * shape[1]), shape, b"")

    def embed(self, pixels: np.ndarray, grid: Grid) -> mx.array:
        """Return the states (1, patches, width) before the first layer.

        pixels: (patches, channels * frames * side * side), in the order of tokens, or without frames, which
            are all the same.
        """
        patches = pixels.reshape(len(pixels), CHANNELS, -1, self.patch_size**2)
        if len(patches) != self.num_patches(grid) or any(side % self.merge_size for side in grid):
            raise ValueError(f"{len(patches)} patches are no image of {grid[1]}x{grid[0]}")
        normal = self.normalization.apply(patches)
        whole = mx.broadcast_to(normal, (*normal.shape[:2], self.frames, normal.shape[3])).flatten(1)
        x = self.weights.patches("patch_embed.proj", whole.astype(self.weights.dtype))
        return self.place(x, grid)[None]

    def place(self, x: mx.array, grid: Grid) -> mx.array:
        """Return patches (patches, width) with their positions."""
        table = self.weights.table("pos_embed", self.width)
        side = int(table.shape[0] ** 0.5)
        axes = [
            _between(places * (side - 1) / max(length - 1, 1), side)
            for places, length in zip(places_of(grid, self.merge_size), grid, strict=True)
        ]
        (rows, row_shares), (columns, column_shares) = axes
        corners = (rows[:, :, None] * side + columns[:, None, :]).reshape(len(x), 4)
        shares = (row_shares[:, :, None] * column_shares[:, None, :]).reshape(len(x), 4)
        return x + interpolate(table, corners, shares).astype(x.dtype)

    def plan(self, grid: Grid) -> Rotation:
        """Return the rotation of the patches: half of the pairs by row, half by column."""
        turns = frequencies(ROPE_BASE, self.layers.width // 2)
        axes = places_of(grid, self.merge_size)
        return rotation_of(np.concatenate([places[:, None] * turns for places in axes], axis=1))

    def look_deep(self, index: int, x: mx.array) -> list[mx.array]:
        """Return the states after some layers, as the tokens that they become."""
        if index not in self.deep:
            return []
        name = f"deepstack_merger_list.{self.deep.index(index)}"
        # These norms span a whole token, the last one a patch.
        joined = x.reshape(-1, self.width * self.merge_size**2)
        return [self._join(name, self.weights.layer_norm(f"{name}.norm", joined, EPS))]

    def merge(self, x: mx.array, grid: Grid) -> mx.array:  # noqa: ARG002
        """Return tokens' states (tokens, hidden)."""
        return self._join("merger", self.weights.layer_norm("merger.norm", x, EPS))

    def _join(self, name: str, x: mx.array) -> mx.array:
        joined = x.reshape(-1, self.width * self.merge_size**2)
        inner = ACTIVATIONS["gelu"](self.weights.linear(f"{name}.linear_fc1", joined))
        return self.weights.linear(f"{name}.linear_fc2", inner)


def _between(exact: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two whole places (n, 2) around each exact one on an axis, and their shares."""
    lower = np.floor(exact).astype(np.int64)
    places = np.stack([lower, np.minimum(lower + 1, side - 1)], axis=1)
    return places, np.stack([1 - (exact - lower), exact - lower], axis=1)
