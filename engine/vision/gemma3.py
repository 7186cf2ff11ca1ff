"""Gemma 3's tower, a SigLIP: all images have one size, and blocks of patches become a token by their mean.

The tower's states are not divided by the square root of the hidden size, by which the language model
multiplies all embeddings that it gets.
"""

import mlx.core as mx
import numpy as np

from reprise.engine.interface.images import PromptImage
from reprise.engine.vision.layers import ACTIVATIONS, Layers
from reprise.engine.vision.tower import Config, Grid, Tower, mean_of_blocks
from reprise.engine.vision.weights import Weights


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
