"""Let mlx-lm load published checkpoints of LFM2-VL, and of models with heads for multi-token prediction.

Qwen3-Next, Qwen3.5 and Nemotron-H name the arrays of such a head `mtp.*`, MiMo `model.mtp_layers.*`, DeepSeek
and GLM as a layer after the last one. For some models mlx-lm drops these arrays, for others it refuses the
model. It knows LFM2-VL under another model type, and its arrays under the names of converted checkpoints.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx_lm.utils

from reprise.engine.model.files.model_folder import GEMMA

_IN_LAYERS = re.compile(r"(?:language_model\.)?model\.(?:language_model\.)?layers\.(\d+)\.(.+)")
_UNDER_MTP = re.compile(r"(?:.*\.)?mtp\.(.+)")
_IN_MTP_LAYERS = re.compile(r"model\.mtp_layers\.(\d+)\.(.+)")
_OF_NEMOTRON = re.compile(
    r"layers\.\d+\.(?:(?:norm|mixer)\..+|((?:eh_proj|enorm|hnorm|final_layernorm)\..+))"
)

_RENAMED = {
    "eh_proj": "fc",
    "enorm": "pre_fc_norm_embedding",
    "hnorm": "pre_fc_norm_hidden",
    "shared_head.norm": "norm",
    "shared_head_norm": "norm",
    "input_proj": "fc",
    "token_layernorm": "pre_fc_norm_embedding",
    "hidden_layernorm": "pre_fc_norm_hidden",
    "final_layernorm": "norm",
}
"""The names of DeepSeek and GLM (and mlx-vlm's), MiMo and Nemotron-H, and those of Qwen for the same."""

_DROPPED = ("shared_head.head.", "lm_head.", "embed_tokens.", "self_attn.rotary_emb.")
"""Copies of the target's embedding and output head, and computed arrays."""


def name_in_head(name: str, num_layers: int) -> str | None:
    """Return an array's name in the head's module; None if the array belongs to the model.

    The name is empty if the head does not use the array. num_layers: the model's.
    """
    if match := _UNDER_MTP.fullmatch(name):
        return name_in_first_layer(match[1])
    if match := _IN_MTP_LAYERS.fullmatch(name):
        return rename(match[2]) if match[1] == "0" else ""
    match = _IN_LAYERS.fullmatch(name)
    if match is None or not num_layers or int(match[1]) < num_layers:
        return None
    return rename(match[2]) if int(match[1]) == num_layers else ""


def rename(name: str) -> str:
    """Return the name in the head's module of an array named as DeepSeek does; empty if it is not used."""
    if name.startswith(_DROPPED):
        return ""
    for published, renamed in _RENAMED.items():
        if name.startswith(f"{published}."):
            return renamed + name.removeprefix(published)
    return f"layers.0.{name}"


def name_in_first_layer(name: str) -> str:
    """Return an array's name, or "" if it belongs to a layer after the first, which replaces them.

    Nemotron-H's layers together are the first.
    """
    if match := _OF_NEMOTRON.fullmatch(name):
        return rename(match[1]) if match[1] else name
    return "" if name.startswith("layers.") and not name.startswith("layers.0.") else name


def classes_without_heads(config: dict[str, Any]) -> tuple[Any, Any]:
    """Return the classes of a model and of its arguments, for mlx-lm: the model has no MTP head."""
    model, args = mlx_lm.utils._get_classes(config)
    if not isinstance(model, type):
        return model, args
    text = config.get("text_config") or config
    num_layers = int(text.get("num_hidden_layers") or 0)
    sanitize: Callable[..., dict[str, mx.array]] = getattr(model, "sanitize", lambda _, weights: weights)

    def without_heads(self: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        own = {name: array for name, array in weights.items() if name_in_head(name, num_layers) is None}
        if config.get("model_type") == GEMMA:
            # EmbeddingGemma's layers after pooling, in conversions.
            own = {name: array for name, array in own.items() if not name.startswith("dense.")}
        if "embed_tokens.weight" not in own:
            return sanitize(self, own)
        # A body that was saved alone, to embed: it has no output head.
        self.args.tie_word_embeddings = True
        own = sanitize(self, {f"model.{name}": array for name, array in own.items()})
        self.pop("lm_head", None)
        return own

    return type(model.__name__, (model,), {"sanitize": without_heads, "__module__": model.__module__}), args


LFM2_VL_TYPES = ("lfm2_vl", "lfm2-vl")
"""Model types of transformers' configurations, and of first publications and mlx-lm."""

_OWN: Any = import_module("mlx_lm.models.lfm2-vl")

# What transformers assumes, and mlx-lm asks for.
_LFM2_TEXT = {
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
class Lfm2VlArgs(_OWN.ModelArgs):  # type: ignore[misc]
    """The arguments of mlx-lm's class, with the text part completed."""

    text_config: dict[str, Any]

    def __post_init__(self) -> None:
        text: dict[str, Any] = self.text_config
        self.text_config = _LFM2_TEXT | {"block_dim": text.get("hidden_size")} | text
        super().__post_init__()


class Lfm2Vl(_OWN.Model):  # type: ignore[misc]
    """mlx-lm's LFM2-VL model, which also takes weights under the names of published checkpoints."""

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Return the language model's weights, under the names that converted models have."""
        named = (_name_in_lfm2(name) for name in weights)
        text = {name: array for name, array in zip(named, weights.values(), strict=True) if name}
        own: dict[str, mx.array] = self.language_model.sanitize(text)
        return own


def _name_in_lfm2(name: str) -> str:
    """Return a weight's name in the model; empty for those of the tower."""
    name = name.removeprefix("model.")
    if name.startswith(("vision_tower.", "multi_modal_projector.")):
        return ""
    inner = name.removeprefix("language_model.")
    return name if inner == name or inner.startswith("model.") else f"language_model.model.{inner}"


for _type in LFM2_VL_TYPES:
    # Where mlx-lm looks for the model type.
    sys.modules[f"mlx_lm.models.{_type}"] = SimpleNamespace(Model=Lfm2Vl, ModelArgs=Lfm2VlArgs)  # type: ignore[assignment]
