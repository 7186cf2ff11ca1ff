"""Qwen's towers: patches in blocks of 2x2 that become one token, and rotation by row and column.

Qwen3-VL has positions too, interpolated from a square table, and hands states from within its tower to the
first layers of the language model. Qwen3.5 and 3.6 do not do that. In most layers of Qwen2.5-VL patches
attend to those of their window alone.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from reprise.engine.vision.layers import (
    ACTIVATIONS,
    Layers,
    Portion,
    Rotation,
    Stage,
    frequencies,
    interpolate,
    places_of,
    rotation_of,
)
from reprise.engine.vision.tower import CLIP, Config, Grid, Tower
from reprise.engine.vision.weights import CHANNELS, Weights

QWEN_EPS = 1e-6
QWEN_ROPE_BASE = 10_000.0


class QwenTower(Tower):
    """The common part of Qwen's towers: patches in blocks of 2x2 that become one token, rotated by place."""

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = config["vision_config"]
        self.merge_size = int(vision.get("spatial_merge_size", 2))
        self.width = int(vision["hidden_size"])
        self.frames = int(vision.get("temporal_patch_size", 2))

    def positions(self, grid: Grid) -> np.ndarray:
        """Return time, row and column of an image's tokens: (3, tokens). All have the same time."""
        rows, columns = np.indices((grid[0] // self.merge_size, grid[1] // self.merge_size))
        return np.stack([np.zeros_like(rows), rows, columns]).reshape(3, -1).astype(np.int32)

    def shape_of(self, grid: Grid) -> tuple[int, ...]:
        """Return the shape of an image's pixels, (patches, channels * side * side)."""
        return self.num_patches(grid), CHANNELS * self.patch_size**2

    def rows_together(self, grid: Grid) -> int:  # noqa: ARG002
        """Return the patches of a token: they follow each other."""
        return self.merge_size**2

    def embed(self, patches: np.ndarray) -> mx.array:
        """Return the states (1, some, width) of some patches.

        patches: (some, channels * frames * side * side), in the order of tokens; or without frames, as all
            frames are the same.
        """
        normal = self.normalization.apply(patches.reshape(len(patches), CHANNELS, -1, self.patch_size**2))
        whole = mx.broadcast_to(normal, (*normal.shape[:2], self.frames, normal.shape[3])).flatten(1)
        return self.weights.patches("patch_embed.proj", whole.astype(self.weights.dtype))[None]

    def rotation(self, grid: Grid) -> Rotation:
        """Return the rotation of the patches: half of the pairs by row, half by column."""
        turns = frequencies(QWEN_ROPE_BASE, self.layers.width // 2)
        axes = places_of(grid, self.merge_size)
        return rotation_of(np.concatenate([places[:, None] * turns for places in axes], axis=1))

    def join(self, x: mx.array, into: str, out: str) -> mx.array:
        """Merge blocks of patches x into tokens' states (tokens, hidden), by the layers `into` and `out`."""
        joined = x.reshape(-1, self.width * self.merge_size**2)
        return self.weights.linear(out, ACTIVATIONS["gelu"](self.weights.linear(into, joined)))


class Qwen3Tower(QwenTower):
    """The tower of Qwen3-VL, Qwen3.5 and Qwen3.6, with experts or without.

    Qwen3-VL has positions too, interpolated from a square table, and hands states from within its tower to the
    first layers of the language model. Qwen3.5 and 3.6 do not do that.
    """

    family = "qwen3"

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = config["vision_config"]
        self.deep = list(vision.get("deepstack_visual_indexes") or ())
        self.layers = Layers(
            prefix="blocks.",
            count=int(vision["depth"]),
            heads=int(vision["num_heads"]),
            width=self.width // int(vision["num_heads"]),
            norm=Weights.layer_norm,
            eps=QWEN_EPS,
            activation=ACTIVATIONS[vision.get("hidden_act", "gelu_pytorch_tanh")],
            norms=("norm1", "norm2"),
            projections=("attn.qkv",),
            out="attn.proj",
            feed_forward=("mlp.linear_fc1", "mlp.linear_fc2"),
        )

    def place(self, x: mx.array, grid: Grid) -> mx.array:
        """Add positions to the states of patches (1, patches, width)."""
        table = self.weights.table("pos_embed", self.width)
        side = int(table.shape[0] ** 0.5)
        axes = [
            _between(places * (side - 1) / max(length - 1, 1), side)
            for places, length in zip(places_of(grid, self.merge_size), grid, strict=True)
        ]
        (rows, row_shares), (columns, column_shares) = axes
        corners = (rows[:, :, None] * side + columns[:, None, :]).reshape(x.shape[1], 4)
        shares = (row_shares[:, :, None] * column_shares[:, None, :]).reshape(x.shape[1], 4)
        return x + interpolate(table, corners, shares).astype(x.dtype)

    def plan(self, grid: Grid) -> Rotation:
        """Return the rotation of the patches."""
        return self.rotation(grid)

    def looks_deep(self, index: int) -> bool:
        """Whether a layer has a merger of its own."""
        return index in self.deep

    def look_deep(self, index: int, x: mx.array, grid: Grid) -> mx.array:  # noqa: ARG002
        """Return tokens' states for the language model after a layer that has a merger."""
        name = f"deepstack_merger_list.{self.deep.index(index)}"
        # These norms span a whole token, the last one a patch.
        joined = x.reshape(-1, self.width * self.merge_size**2)
        normal = self.weights.layer_norm(f"{name}.norm", joined, QWEN_EPS)
        return self.join(normal, f"{name}.linear_fc1", f"{name}.linear_fc2")

    def merge(self, x: mx.array, grid: Grid) -> mx.array:  # noqa: ARG002
        """Return tokens' states (tokens, hidden)."""
        normal = self.weights.layer_norm("merger.norm", x, QWEN_EPS)
        return self.join(normal, "merger.linear_fc1", "merger.linear_fc2")


def _between(exact: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two whole places (n, 2) around each exact one on an axis, and their shares."""
    lower = np.floor(exact).astype(np.int64)
    places = np.stack([lower, np.minimum(lower + 1, side - 1)], axis=1)
    return places, np.stack([1 - (exact - lower), exact - lower], axis=1)


@dataclass(frozen=True)
class Windows:
    """An image cut into windows of one size, with empty places at the edges.

    taken: (windows, places) index of the patch at each place of a window; 0 where there is none.
    back: (patches,) index of each patch's place. filled: (windows, 1, 1, places) False where no patch is.
    rotation: for patches in their order. rotation_of_places: for the places of windows.
    """

    taken: mx.array
    back: mx.array
    filled: mx.array
    rotation: Rotation
    rotation_of_places: Rotation


class Qwen25Tower(QwenTower):
    """The tower of Qwen2.5-VL. In most layers patches attend to those of their window alone."""

    family = "qwen2.5"
    default_normalization = CLIP

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = config["vision_config"]
        self.whole_layers = frozenset(vision.get("fullatt_block_indexes", (7, 15, 23, 31)))
        self.window = int(vision.get("window_size", 112)) // self.patch_size // self.merge_size
        heads = int(vision["num_heads"])
        self.layers = Layers(
            prefix="blocks.",
            count=int(vision.get("depth", 32)),
            heads=heads,
            width=self.width // heads,
            norm=Weights.rms_norm,
            eps=QWEN_EPS,
            activation=ACTIVATIONS[vision.get("hidden_act", "silu")],
            norms=("norm1", "norm2"),
            projections=("attn.qkv",),
            out="attn.proj",
            feed_forward=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        )

    def plan(self, grid: Grid) -> Windows:
        """Cut an image's grid into windows."""
        rows, columns = (side // self.merge_size for side in grid)
        numbers = np.pad(
            np.arange(rows * columns).reshape(rows, columns),
            [(0, -rows % self.window), (0, -columns % self.window)],
            constant_values=-1,
        )
        down, across = (side // self.window for side in numbers.shape)
        tokens = (
            numbers.reshape(down, self.window, across, self.window).swapaxes(1, 2).reshape(down * across, -1)
        )
        size = self.merge_size**2
        patches = (tokens[:, :, None] * size + np.arange(size)).reshape(down * across, -1)
        filled, taken = patches >= 0, np.maximum(patches, 0)
        rotation = self.rotation(grid)
        cos, sin = (table[mx.array(taken.ravel())] for table in rotation)
        # The numbers of empty places are negative.
        back = np.argsort(patches.ravel(), kind="stable")[filled.size - filled.sum() :]
        return Windows(mx.array(taken), mx.array(back), mx.array(filled)[:, None, None], rotation, (cos, sin))

    def layer_stages(self, index: int, grid: Grid) -> Sequence[Stage]:
        """Return the stages of a layer, in most of which windows are not parted."""
        down, across = (-(-side // (self.merge_size * self.window)) for side in grid)
        if index in self.whole_layers:
            return super().layer_stages(index, grid)
        return self.layers.stages(self.weights, down * across, (self.merge_size * self.window) ** 2)

    def layer(
        self, index: int, x: mx.array, plan: Windows, portion: Portion
    ) -> Generator[Sequence[mx.array], None, mx.array]:
        """Compute a layer in slices, and return the states (1, patches, width) after it."""
        if index in self.whole_layers:
            return (yield from super().layer(index, x, plan.rotation, portion))
        windows, rotation = x[0][plan.taken], plan.rotation_of_places
        y = yield from self.layers.run(self.weights, index, windows, rotation, portion, plan.filled)
        return y.reshape(-1, self.width)[plan.back][None]

    def merge(self, x: mx.array, grid: Grid) -> mx.array:  # noqa: ARG002
        """Return tokens' states (tokens, hidden)."""
        return self.join(self.weights.rms_norm("merger.ln_q", x, QWEN_EPS), "merger.mlp.0", "merger.mlp.2")
