"""Gemma 4's tower: positions from a table for each axis, four norms a layer, and means of blocks of patches.

Queries, keys and values have norms of their own, so that scores are not scaled. Some models clip the inputs
and the outputs of linear layers, at bounds that are among the weights.
"""

import mlx.core as mx
import numpy as np

from reprise.engine.vision.layers import ACTIVATIONS, Layers, Rotation, frequencies, places_of, rotation_of
from reprise.engine.vision.tower import Config, Grid, Tower, mean_of_blocks
from reprise.engine.vision.weights import CHANNELS, Weights


class Gemma4Tower(Tower):
    """The tower of Gemma 4. The unified models have none."""

    family = "gemma4"
    default_normalization = ((0.0,) * CHANNELS, (1.0,) * CHANNELS)

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = config["vision_config"]
        # In the layers with a window alone.
        self.sees_whole_image = config["text_config"].get("use_bidirectional_attention") == "vision"
        self.merge_size = int(vision.get("pooling_kernel_size", 3))
        self.is_standardized = bool(vision.get("standardize"))
        self.rope_base = float((vision.get("rope_parameters") or {}).get("rope_theta", 100))
        if not vision.get("use_clipped_linears"):
            bounds = ("_min", "_max")
            weights.arrays = {k: v for k, v in weights.arrays.items() if not k.endswith(bounds)}
        self.layers = Layers(
            prefix="encoder.layers.",
            count=int(vision.get("num_hidden_layers", 16)),
            heads=int(vision.get("num_attention_heads", 12)),
            width=int(vision.get("head_dim", 64)),
            norm=Weights.rms_norm,
            eps=float(vision.get("rms_norm_eps", 1e-6)),
            activation=ACTIVATIONS[vision.get("hidden_activation", "gelu_pytorch_tanh")],
            norms=("input_layernorm", "pre_feedforward_layernorm"),
            projections=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            out="self_attn.o_proj",
            feed_forward=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
            norms_after=("post_attention_layernorm", "post_feedforward_layernorm"),
            norms_of_heads=("self_attn.q_norm", "self_attn.k_norm"),
        )

    def shape_of(self, grid: Grid) -> tuple[int, ...]:
        """Return the shape of an image's pixels, (patches, side * side * channels)."""
        return self.num_patches(grid), CHANNELS * self.patch_size**2

    def embed(self, patches: np.ndarray) -> mx.array:
        """Return the states (1, some, width) of patches (some, side * side * channels)."""
        normal = self.normalization.apply_behind(patches)
        scaled = (2 * (normal - 0.5)).astype(self.weights.dtype)
        return self.weights.linear("patch_embedder.input_proj", scaled)[None]

    def place(self, x: mx.array, grid: Grid) -> mx.array:
        """Add positions by column and by row."""
        table = self.weights["patch_embedder.position_embedding_table"]
        rows, columns = (mx.array(places) for places in places_of(grid))
        return x + table[0][columns] + table[1][rows]

    def plan(self, grid: Grid) -> Rotation:
        """Return the rotation of the patches: half of a head by column, the other half by row."""
        turns = frequencies(self.rope_base, self.layers.width // 2)
        rows, columns = places_of(grid)
        angles = np.concatenate([columns[:, None] * turns, rows[:, None] * turns], axis=1)
        return rotation_of(angles, parts=2)

    def merge(self, x: mx.array, grid: Grid) -> mx.array:
        """Return the tokens' states (tokens, hidden), each the mean of a block of patches, projected."""
        means = mean_of_blocks(x, grid, self.merge_size).astype(x.dtype)
        # They may exceed what float16 holds.
        large = means.astype(mx.float32) * x.shape[-1] ** 0.5
        if self.is_standardized:
            large = (large - self.weights["std_bias"]) * self.weights["std_scale"]
        normal = mx.fast.rms_norm(large.astype(x.dtype), None, self.layers.eps)
        return self.weights.linear("embed_vision.embedding_projection", normal)
