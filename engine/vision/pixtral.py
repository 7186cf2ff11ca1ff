"""Pixtral's tower, also that of Mistral 3, whose blocks of patches become one token.

A token of its own stands between the rows of an image; the tower makes no state for it.
"""

import mlx.core as mx
import numpy as np

from reprise.engine.vision.layers import ACTIVATIONS, Layers, Rotation, frequencies, places_of, rotation_of
from reprise.engine.vision.tower import CLIP, Config, Grid, Tower, in_blocks
from reprise.engine.vision.weights import Weights

PIXTRAL_EPS = 1e-5


class PixtralTower(Tower):
    """The tower of Pixtral, and of Mistral 3, whose blocks of patches become one token.

    A token of its own stands between the rows of an image; the tower makes no state for it.
    """

    family = "pixtral"
    default_normalization = CLIP

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        super().__init__(config, processor, weights)
        vision = config["vision_config"]
        self.merge_size = int(config.get("spatial_merge_size", 2 if self._merges else 1))
        self.eps = float(config["text_config"].get("rms_norm_eps", PIXTRAL_EPS))
        self.activation = ACTIVATIONS[config.get("projector_hidden_act", "gelu")]
        told = vision.get("rope_parameters") or vision
        self.rope_base = float(told.get("rope_theta", 10_000))
        heads = int(vision.get("num_attention_heads", 16))
        last = config.get("vision_feature_layer", -1 if self._merges else -2)
        self.layers = Layers(
            prefix="transformer.layers.",
            count=_num_layers(int(vision.get("num_hidden_layers", 24)), last),
            heads=heads,
            width=int(vision.get("head_dim") or vision.get("hidden_size", 1024) // heads),
            norm=Weights.rms_norm,
            eps=PIXTRAL_EPS,
            activation=ACTIVATIONS[vision.get("hidden_act", "gelu")],
            norms=("attention_norm", "ffn_norm"),
            projections=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
            out="attention.o_proj",
            feed_forward=("feed_forward.gate_proj", "feed_forward.up_proj", "feed_forward.down_proj"),
        )

    @property
    def _merges(self) -> bool:
        return any(name.startswith("multi_modal_projector.patch_merger.") for name in self.weights.arrays)

    def embed(self, patches: np.ndarray) -> mx.array:
        """Return the states (1, some, width) of patches (some, channels, side * side)."""
        normal = self.normalization.apply(patches).flatten(1)
        x = self.weights.patches("patch_conv", normal.astype(self.weights.dtype))
        return self.weights.rms_norm("ln_pre", x, PIXTRAL_EPS)[None]

    def plan(self, grid: Grid) -> Rotation:
        """Return the rotation of the patches: every other frequency by row, the others by column."""
        turns = frequencies(self.rope_base, self.layers.width)
        rows, columns = places_of(grid)
        return rotation_of(
            np.concatenate([rows[:, None] * turns[::2], columns[:, None] * turns[1::2]], axis=1)
        )

    def merge(self, x: mx.array, grid: Grid) -> mx.array:
        """Return the tokens' states (tokens, hidden), each of a patch or a block of patches."""
        x = x[0]
        if self._merges:
            x = self.weights.rms_norm("multi_modal_projector.norm", x, self.eps)
            joined = in_blocks(x, grid, self.merge_size).transpose(0, 3, 1, 2).flatten(1)
            x = self.weights.linear("multi_modal_projector.patch_merger.merging_layer", joined)
        inner = self.activation(self.weights.linear("multi_modal_projector.linear_1", x))
        return self.weights.linear("multi_modal_projector.linear_2", inner)


def _num_layers(count: int, last: object) -> int:
    """Return how many layers to compute.

    last: index of the states to take, of which the embedding is the first. Raises ValueError for several.
    """
    if not isinstance(last, int):
        raise ValueError(f"vision_feature_layer {last} is not one layer")
    return last if last >= 0 else count + 1 + last
