"""Have mlx-lm load LFM2-VL as published: it knows another model type, and only the arrays' converted names.

mlx-lm's own class computes. Here a configuration's text part is completed, and its weights are renamed.
"""

import sys
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import mlx.core as mx

MODEL_TYPES = ("lfm2_vl", "lfm2-vl")
"""Of transformers' configurations, and of first publications and mlx-lm."""

_OWN: Any = import_module("mlx_lm.models.lfm2-vl")

# What transformers assumes, and mlx-lm asks for.
_TEXT = {
    "model_type": "lfm2",
    "vocab_size": 65536,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "conv_bias": False,
    "conv_L_cache": 3,
    "block_multiple_of": 256,
    "block_ffn_dim_multiplier": 1.0,
    "block_auto_adjust_ff_dim": True,
}


@dataclass
class ModelArgs(_OWN.ModelArgs):  # type: ignore[misc]
    """The arguments of mlx-lm's class."""

    text_config: dict[str, Any]

    def __post_init__(self) -> None:
        """Complete the text part."""
        text: dict[str, Any] = self.text_config
        self.text_config = _TEXT | {"block_dim": text.get("hidden_size")} | text
        super().__post_init__()


class Model(_OWN.Model):  # type: ignore[misc]
    """mlx-lm's LFM2-VL model, which also takes weights under the names of published checkpoints."""

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Return the language model's weights, under the names that converted models have."""
        named = (_name(name) for name in weights)
        text = {name: array for name, array in zip(named, weights.values(), strict=True) if name}
        own: dict[str, mx.array] = self.language_model.sanitize(text)
        return own


def _name(name: str) -> str:
    """Return a weight's name in the model; empty for those of the tower."""
    name = name.removeprefix("model.")
    if name.startswith(("vision_tower.", "multi_modal_projector.")):
        return ""
    inner = name.removeprefix("language_model.")
    return name if inner == name or inner.startswith("model.") else f"language_model.model.{inner}"


def register() -> None:
    """Have mlx-lm find this module under the model type of published checkpoints."""
    for model_type in MODEL_TYPES:
        sys.modules[f"mlx_lm.models.{model_type}"] = sys.modules[__name__]
