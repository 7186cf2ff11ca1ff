"""The towers of Gemma 3 and Gemma 4."""

import mlx.core as mx
import numpy as np

from reprise.engine.interface.images import PromptImage
from reprise.engine.vision.layers import ACTIVATIONS, Layers, Rotation, frequencies, places_of, rotation_of
from reprise.engine.vision.tower import Config, Grid, Tower, mean_of_blocks
from reprise.engine.vision.weights import CHANNELS, Weights


class Gemma3Tower(Tower):
    """The tower of Gemma 3 of 4B parameters and more."""

    family = "gemma3"
    sees_whole_image = True

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = config["vision_config"]
        self.eps = float(vision.get("layer_norm_eps", 1e-6))
        self.side = int(vision["image_size"]) // self.patch_size
        self.merge_size = self.side // int(config.get("mm_tokens_per_image", 256) ** 0.5)
        self.layers = siglip_layers(vision, self.eps)

    def blank(self, grid: Grid) -> PromptImage:  # noqa: ARG002
        """Return a black image of the only size that the tower takes."""
        return super().blank((self.side, self.side))

    def check(self, pixels: np.ndarray, grid: Grid) -> None:
        """Raise ValueError if an image has another size than all have, or pixels of another grid."""
        if grid != (self.side, self.side):
            raise ValueError(f"an image has {self.side}x{self.side} patches here, not {grid[1]}x{grid[0]}")
        super().check(pixels, grid)

    def embed(self, patches: np.ndarray) -> mx.array:
        """Return the states (1, some, width) of patches (some, channels, side * side)."""
        normal = self.normalization.apply(patches).flatten(1)
        return self.weights.patches("embeddings.patch_embedding", normal.astype(self.weights.dtype))[None]

    def place(self, x: mx.array, grid: Grid) -> mx.array:  # noqa: ARG002
        """Add the positions that the weights have."""
        return x + self.weights.table("embeddings.position_embedding", x.shape[-1])

    def plan(self, grid: Grid) -> None:
        """Return nothing, as the embedding holds the positions."""

    def merge(self, x: mx.array, grid: Grid) -> mx.array:
        """Average the patches of each block, and project the means: (blocks, hidden)."""
        x = self.weights.layer_norm("post_layernorm", x, self.eps)
        means = mean_of_blocks(x, grid, self.merge_size)
        scale = 1 + self.weights["multi_modal_projector.mm_soft_emb_norm.weight"].astype(mx.float32)
        normal = mx.fast.rms_norm(means, scale, self.eps).astype(x.dtype)
        return normal @ self.weights["multi_modal_projector.mm_input_projection_weight"]


def siglip_layers(vision: Config, eps: float) -> Layers:
    """Return the structure of a SigLIP's layers. vision: the model's vision configuration."""
    heads = int(vision["num_attention_heads"])
    return Layers(
        prefix="encoder.layers.",
        count=int(vision["num_hidden_layers"]),
        heads=heads,
        width=int(vision["hidden_size"]) // heads,
        norm=Weights.layer_norm,
        eps=eps,
        activation=ACTIVATIONS[vision.get("hidden_act", "gelu_pytorch_tanh")],
        norms=("layer_norm1", "layer_norm2"),
        projections=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out="self_attn.out_proj",
        feed_forward=("mlp.fc1", "mlp.fc2"),
    )


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
