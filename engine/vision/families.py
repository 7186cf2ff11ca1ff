"""The towers of each family: Gemma, LFM2-VL, Pixtral with Mistral 3, and Qwen."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import mlx.core as mx
import numpy as np

from reprise.engine.interface.images import PromptImage
from reprise.engine.vision.layers import (
    ACTIVATIONS,
    Layers,
    Portion,
    Rotation,
    Stage,
    frequencies,
    places_of,
    rotation_of,
)
from reprise.engine.vision.tower import CLIP, Config, Grid, Tower, in_blocks, mean_of_blocks
from reprise.engine.vision.weights import CHANNELS, Weights


class SiglipTower(Tower):
    """The common part of towers with SigLIP layers and a full table of positions."""

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = {"hidden_act": "gelu_pytorch_tanh"} | config["vision_config"]
        self.eps = float(vision.get("layer_norm_eps", 1e-6))
        self.layers = Layers.of(
            vision,
            prefix="encoder.layers.",
            norm=Weights.layer_norm,
            eps=self.eps,
            norms=("layer_norm1", "layer_norm2"),
            projections=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            out="self_attn.out_proj",
            feed_forward=("mlp.fc1", "mlp.fc2"),
        )


class Gemma3Tower(SiglipTower):
    """The tower of Gemma 3 of 4B parameters and more."""

    family = "gemma3"
    sees_whole_image = True

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        self.side = int(config["vision_config"]["image_size"]) // self.patch_size
        self.merge_size = self.side // int(config.get("mm_tokens_per_image", 256) ** 0.5)

    def blank(self, grid: Grid) -> PromptImage:  # noqa: ARG002
        """Return a black image of the only size that the tower takes."""
        return super().blank((self.side, self.side))

    def check(self, pixels: np.ndarray, grid: Grid) -> None:
        """Raise ValueError unless an image has the fixed size, and its pixels fit the grid."""
        if grid != (self.side, self.side):
            raise ValueError(f"an image has {self.side}x{self.side} patches here, not {grid[1]}x{grid[0]}")
        super().check(pixels, grid)

    def _embed(self, patches: np.ndarray) -> mx.array:
        normal = self.normalization.apply(patches).flatten(1)
        return self.weights.patches("embeddings.patch_embedding", normal.astype(self.weights.dtype))[None]

    def _place(self, x: mx.array, grid: Grid) -> mx.array:  # noqa: ARG002
        return x + self.weights.table("embeddings.position_embedding", x.shape[-1])

    def _merge(self, x: mx.array, grid: Grid) -> mx.array:
        """Average the patches of each block, and project the means: (blocks, hidden)."""
        x = self.weights.layer_norm("post_layernorm", x, self.eps)
        means = mean_of_blocks(x, grid, self.merge_size)
        scale = 1 + self.weights["multi_modal_projector.mm_soft_emb_norm.weight"].astype(mx.float32)
        normal = mx.fast.rms_norm(means, scale, self.eps).astype(x.dtype)
        return normal @ self.weights["multi_modal_projector.mm_input_projection_weight"]


GEMMA4: Config = {
    "num_hidden_layers": 16,
    "num_attention_heads": 12,
    "head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
}
"""Defaults of Gemma 4's configurations."""


class Gemma4Tower(Tower):
    """The tower of Gemma 4. The unified models have none."""

    family = "gemma4"
    default_normalization = ((0.0,) * CHANNELS, (1.0,) * CHANNELS)
    takes_patches = True

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = GEMMA4 | config["vision_config"]
        # In the layers with a window alone.
        self.sees_whole_image = config["text_config"].get("use_bidirectional_attention") == "vision"
        self.merge_size = int(vision.get("pooling_kernel_size", 3))
        self.is_standardized = bool(vision.get("standardize"))
        self.rope_base = float((vision.get("rope_parameters") or {}).get("rope_theta", 100))
        if not vision.get("use_clipped_linears"):
            bounds = ("_min", "_max")
            weights.arrays = {k: v for k, v in weights.arrays.items() if not k.endswith(bounds)}
        self.layers = Layers.of(
            vision,
            prefix="encoder.layers.",
            norm=Weights.rms_norm,
            eps=float(vision.get("rms_norm_eps", 1e-6)),
            norms=("input_layernorm", "pre_feedforward_layernorm"),
            projections=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            out="self_attn.o_proj",
            feed_forward=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
            norms_after=("post_attention_layernorm", "post_feedforward_layernorm"),
            norms_of_heads=("self_attn.q_norm", "self_attn.k_norm"),
        )

    def _embed(self, patches: np.ndarray) -> mx.array:
        normal = self.normalization.apply_behind(patches)
        scaled = (2 * (normal - 0.5)).astype(self.weights.dtype)
        return self.weights.linear("patch_embedder.input_proj", scaled)[None]

    def _place(self, x: mx.array, grid: Grid) -> mx.array:
        """Add positions by column and by row."""
        table = self.weights["patch_embedder.position_embedding_table"]
        rows, columns = (mx.array(places) for places in places_of(grid))
        return x + table[0][columns] + table[1][rows]

    def _plan(self, grid: Grid) -> Rotation:
        """Return the patches' rotary embedding: half of a head by column, half by row."""
        turns = frequencies(self.rope_base, self.layers.width // 2)
        rows, columns = places_of(grid)
        angles = np.concatenate([columns[:, None] * turns, rows[:, None] * turns], axis=1)
        return rotation_of(angles, parts=2)

    def _merge(self, x: mx.array, grid: Grid) -> mx.array:
        """Return the tokens' states (tokens, hidden): projected means of blocks of patches."""
        means = mean_of_blocks(x, grid, self.merge_size).astype(x.dtype)
        # They may exceed what float16 holds.
        large = means.astype(mx.float32) * x.shape[-1] ** 0.5
        if self.is_standardized:
            large = (large - self.weights["std_bias"]) * self.weights["std_scale"]
        normal = mx.fast.rms_norm(large.astype(x.dtype), None, self.layers.eps)
        return self.weights.linear("embed_vision.embedding_projection", normal)


PROJECTOR = ("multi_modal_projector.linear_1", "multi_modal_projector.linear_2")
PROJECTOR_EPS = 1e-5


class Lfm2Tower(SiglipTower):
    """The tower of LFM2-VL and LFM2.5-VL: a SigLIP 2 for images of any aspect ratio.

    Positions are a square table, resized to each image. A large image comes as tiles and a small copy of the
    whole, which are separate images here.
    """

    family = "lfm2"
    takes_patches = True

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        self.merge_size = int(config.get("downsample_factor", 2))
        # Some files have the weights of a norm that is not used.
        self.is_normal = bool(config.get("projector_use_layernorm", True))
        self.activation = ACTIVATIONS[config.get("projector_hidden_act", "gelu")]

    def _embed(self, patches: np.ndarray) -> mx.array:
        normal = self.normalization.apply_behind(patches).astype(self.weights.dtype)
        return self.weights.linear("embeddings.patch_embedding", normal)[None]

    def _place(self, x: mx.array, grid: Grid) -> mx.array:
        """Add positions from the table, resized to the grid."""
        table = self.weights.table("embeddings.position_embedding", x.shape[-1])
        return x + resized(table, grid).astype(x.dtype)

    def _merge(self, x: mx.array, grid: Grid) -> mx.array:
        x = self.weights.layer_norm("post_layernorm", x, self.eps)
        x = in_blocks(x, grid, self.merge_size).flatten(1)
        if self.is_normal:
            x = self.weights.layer_norm("multi_modal_projector.layer_norm", x, PROJECTOR_EPS)
        return self.weights.feed_forward(*PROJECTOR, self.activation, x)


def resized(table: mx.array, grid: Grid) -> mx.array:
    """Resize a square table (side * side, width) to a grid: (patches, width) float32."""
    side = int(table.shape[0] ** 0.5)
    rows, columns = (mx.array(_shares(length, side)) for length in grid)
    wide = rows @ table.astype(mx.float32).reshape(side, -1)
    return (columns @ wide.reshape(grid[0], side, -1)).flatten(0, 1)


def _shares(length: int, side: int) -> np.ndarray:
    """Return the weights for resizing `side` places to `length`: (length, side), in float32.

    Bilinear, with PyTorch's antialias when shrinking.
    """
    centers = (np.arange(length) + 0.5) * side / length
    distances = np.abs(np.arange(side) + 0.5 - centers[:, None]) / max(side / length, 1)
    shares: np.ndarray = np.maximum(0, 1 - distances)
    shares /= shares.sum(axis=1, keepdims=True)
    return shares.astype(np.float32)


PIXTRAL: Config = {
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "hidden_size": 1024,
    "hidden_act": "gelu",
}
"""Defaults of Pixtral's configurations."""
PIXTRAL_EPS = 1e-5


class PixtralTower(Tower):
    """The tower of Pixtral, and of Mistral 3, whose blocks of patches become one token.

    A separate token stands between the rows of an image; the tower makes no state for it.
    """

    family = "pixtral"
    default_normalization = CLIP

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = PIXTRAL | config["vision_config"]
        self.merge_size = int(config.get("spatial_merge_size", 2 if self._merges else 1))
        self.eps = float(config["text_config"].get("rms_norm_eps", PIXTRAL_EPS))
        self.activation = ACTIVATIONS[config.get("projector_hidden_act", "gelu")]
        told = vision.get("rope_parameters") or vision
        self.rope_base = float(told.get("rope_theta", 10_000))
        last = config.get("vision_feature_layer", -1 if self._merges else -2)
        vision["num_hidden_layers"] = _num_layers(int(vision["num_hidden_layers"]), last)
        self.layers = Layers.of(
            vision,
            prefix="transformer.layers.",
            norm=Weights.rms_norm,
            eps=PIXTRAL_EPS,
            norms=("attention_norm", "ffn_norm"),
            projections=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
            out="attention.o_proj",
            feed_forward=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
        )

    @property
    def _merges(self) -> bool:
        return any(name.startswith("multi_modal_projector.patch_merger.") for name in self.weights.arrays)

    def _embed(self, patches: np.ndarray) -> mx.array:
        normal = self.normalization.apply(patches).flatten(1)
        x = self.weights.patches("patch_conv", normal.astype(self.weights.dtype))
        return self.weights.rms_norm("ln_pre", x, PIXTRAL_EPS)[None]

    def _plan(self, grid: Grid) -> Rotation:
        """Return the patches' rotary embedding: every other frequency by row, the others by column."""
        turns = frequencies(self.rope_base, self.layers.width)
        rows, columns = places_of(grid)
        return rotation_of(
            np.concatenate([rows[:, None] * turns[::2], columns[:, None] * turns[1::2]], axis=1)
        )

    def _merge(self, x: mx.array, grid: Grid) -> mx.array:
        x = x[0]
        if self._merges:
            x = self.weights.rms_norm("multi_modal_projector.norm", x, self.eps)
            joined = in_blocks(x, grid, self.merge_size).transpose(0, 3, 1, 2).flatten(1)
            x = self.weights.linear("multi_modal_projector.patch_merger.merging_layer", joined)
        return self.weights.feed_forward(*PROJECTOR, self.activation, x)


def _num_layers(count: int, last: object) -> int:
    """Return how many layers to compute.

    last: index of the states to return, where 0 is the embedding. Raises ValueError for several.
    """
    if not isinstance(last, int):
        raise ValueError(f"vision_feature_layer {last} is not one layer")
    return last if last >= 0 else count + 1 + last


QWEN_EPS = 1e-6
QWEN_ROPE_BASE = 10_000.0


class QwenTower(Tower):
    """The common part of Qwen's towers: 2x2 blocks of patches become one token; rotary positions.

    defaults: what a configuration may leave out. structure: of the layers; see Layers.
    """

    defaults: ClassVar[Config]
    structure: ClassVar[Config]
    takes_patches = True

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = self.defaults | config["vision_config"]
        self.merge_size = int(vision.get("spatial_merge_size", 2))
        self.width = int(vision["hidden_size"])
        self.frames = int(vision.get("temporal_patch_size", 2))
        shared = {"prefix": "blocks.", "norms": ("norm1", "norm2"), "eps": QWEN_EPS}
        names = {"projections": ("attn.qkv",), "out": "attn.proj"}
        self.layers = Layers.of(vision, **shared, **names, **self.structure)

    def positions(self, grid: Grid) -> np.ndarray:
        """Return time, row and column of an image's tokens: (3, tokens). All have the same time."""
        rows, columns = np.indices((grid[0] // self.merge_size, grid[1] // self.merge_size))
        return np.stack([np.zeros_like(rows), rows, columns]).reshape(3, -1).astype(np.int32)

    def _rows_together(self, grid: Grid) -> int:  # noqa: ARG002
        """Return a token's number of patches, which are consecutive."""
        return self.merge_size**2

    def _embed(self, patches: np.ndarray) -> mx.array:
        """Return the states (1, some, width) of some patches.

        patches: (some, channels * frames * side * side), in the order of tokens; or without frames, as all
            frames are the same.
        """
        normal = self.normalization.apply(patches.reshape(len(patches), CHANNELS, -1, self.patch_size**2))
        whole = mx.broadcast_to(normal, (*normal.shape[:2], self.frames, normal.shape[3])).flatten(1)
        return self.weights.patches("patch_embed.proj", whole.astype(self.weights.dtype))[None]

    def _plan(self, grid: Grid) -> Any:
        """Return the patches' rotary embedding: half of the pairs by row, half by column."""
        turns = frequencies(QWEN_ROPE_BASE, self.layers.width // 2)
        axes = places_of(grid, self.merge_size)
        return rotation_of(np.concatenate([places[:, None] * turns for places in axes], axis=1))

    def join(self, x: mx.array, into: str, out: str) -> mx.array:
        """Merge blocks of patches x into tokens' states (tokens, hidden), by the layers `into` and `out`."""
        joined = x.reshape(-1, self.width * self.merge_size**2)
        return self.weights.feed_forward(into, out, ACTIVATIONS["gelu"], joined)


class Qwen3Tower(QwenTower):
    """The tower of Qwen3-VL, Qwen3.5 and Qwen3.6, with experts or without.

    Qwen3-VL also has positions interpolated from a square table, and adds states of intermediate tower layers
    to the language model's first layers. Qwen3.5 and 3.6 have no such states.
    """

    family = "qwen3"
    defaults: ClassVar[Config] = {"hidden_act": "gelu_pytorch_tanh"}
    structure: ClassVar[Config] = {
        "norm": Weights.layer_norm,
        "feed_forward": ("mlp.linear_fc1", "mlp.linear_fc2"),
    }

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        self.deep = list(config["vision_config"].get("deepstack_visual_indexes") or ())

    def _place(self, x: mx.array, grid: Grid) -> mx.array:
        table = self.weights.table("pos_embed", self.width)
        side = int(table.shape[0] ** 0.5)
        axes = [
            _between(places * (side - 1) / max(length - 1, 1), side)
            for places, length in zip(places_of(grid, self.merge_size), grid, strict=True)
        ]
        (rows, row_shares), (columns, column_shares) = axes
        corners = (rows[:, :, None] * side + columns[:, None, :]).reshape(x.shape[1], 4)
        shares = (row_shares[:, :, None] * column_shares[:, None, :]).reshape(x.shape[1], 4, 1)
        held = table[mx.array(corners.astype(np.int32))].astype(mx.float32)
        return x + (held * mx.array(shares.astype(np.float32))).sum(axis=1).astype(x.dtype)

    def _looks_deep(self, index: int) -> bool:
        return index in self.deep

    def _look_deep(self, index: int, x: mx.array, grid: Grid) -> mx.array:  # noqa: ARG002
        name = f"deepstack_merger_list.{self.deep.index(index)}"
        # These norms span a whole token, the last one a patch.
        joined = x.reshape(-1, self.width * self.merge_size**2)
        normal = self.weights.layer_norm(f"{name}.norm", joined, QWEN_EPS)
        return self.join(normal, f"{name}.linear_fc1", f"{name}.linear_fc2")

    def _merge(self, x: mx.array, grid: Grid) -> mx.array:  # noqa: ARG002
        normal = self.weights.layer_norm("merger.norm", x, QWEN_EPS)
        return self.join(normal, "merger.linear_fc1", "merger.linear_fc2")


def _between(exact: np.ndarray, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the two integer places (n, 2) around each exact one on an axis, and their weights."""
    lower = np.floor(exact).astype(np.int64)
    places = np.stack([lower, np.minimum(lower + 1, side - 1)], axis=1)
    return places, np.stack([1 - (exact - lower), exact - lower], axis=1)


@dataclass(frozen=True)
class Windows:
    """An image divided into equal windows, padded at the edges.

    taken: (windows, places) index of the patch at each place of a window; 0 for padding.
    back: (patches,) index of each patch's place. filled: (windows, 1, 1, places) False for padding.
    rotation: for patches in their order. rotation_of_places: for the places of windows.
    """

    taken: mx.array
    back: mx.array
    filled: mx.array
    rotation: Rotation
    rotation_of_places: Rotation


class Qwen25Tower(QwenTower):
    """The tower of Qwen2.5-VL. In most layers patches attend only within their window."""

    family = "qwen2.5"
    default_normalization = CLIP
    defaults: ClassVar[Config] = {"depth": 32, "hidden_act": "silu"}
    structure: ClassVar[Config] = {
        "norm": Weights.rms_norm,
        "feed_forward": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    }

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = config["vision_config"]
        self.whole_layers = frozenset(vision.get("fullatt_block_indexes", (7, 15, 23, 31)))
        self.window = int(vision.get("window_size", 112)) // self.patch_size // self.merge_size

    def _plan(self, grid: Grid) -> Windows:
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
        rotation = super()._plan(grid)
        cos, sin = (table[mx.array(taken.ravel())] for table in rotation)
        # The numbers of empty places are negative.
        back = np.argsort(patches.ravel(), kind="stable")[filled.size - filled.sum() :]
        return Windows(mx.array(taken), mx.array(back), mx.array(filled)[:, None, None], rotation, (cos, sin))

    def _layer_stages(self, index: int, grid: Grid) -> Sequence[Stage]:
        """Return a layer's stages, most of which keep windows whole."""
        down, across = (-(-side // (self.merge_size * self.window)) for side in grid)
        if index in self.whole_layers:
            return super()._layer_stages(index, grid)
        return self.layers.stages(self.weights, down * across, (self.merge_size * self.window) ** 2)

    def _layer(
        self, index: int, x: mx.array, plan: Windows, portion: Portion
    ) -> Generator[Sequence[mx.array], None, mx.array]:
        """Compute a layer in slices, and return the states (1, patches, width) after it."""
        if index in self.whole_layers:
            return (yield from super()._layer(index, x, plan.rotation, portion))
        windows, rotation = x[0][plan.taken], plan.rotation_of_places
        y = yield from self.layers.run(self.weights, index, windows, rotation, portion, plan.filled)
        return y.reshape(-1, self.width)[plan.back][None]

    def _merge(self, x: mx.array, grid: Grid) -> mx.array:  # noqa: ARG002
        return self.join(self.weights.rms_norm("merger.ln_q", x, QWEN_EPS), "merger.mlp.0", "merger.mlp.2")


TOWERS: dict[str, type[Tower]] = {
    "qwen3_vl": Qwen3Tower,
    "qwen3_vl_moe": Qwen3Tower,
    "qwen3_5": Qwen3Tower,
    "qwen3_5_moe": Qwen3Tower,
    "qwen2_5_vl": Qwen25Tower,
    "gemma3": Gemma3Tower,
    "gemma4": Gemma4Tower,
    "mistral3": PixtralTower,
    "pixtral": PixtralTower,
    "lfm2_vl": Lfm2Tower,
    "lfm2-vl": Lfm2Tower,
}
"""Towers by the model_type of config.json."""


def tower_type(config: Config) -> str:
    """Return the model type that identifies a model's tower: for llava, that of its vision part."""
    model_type = str(config.get("model_type"))
    # What Pixtral was published as; others of the name have towers of their own.
    return str((config.get("vision_config") or {}).get("model_type")) if model_type == "llava" else model_type
