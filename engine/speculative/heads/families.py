"""How MTP heads differ by the family of their target."""

import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module

MTP_SUFFIX = "_mtp"
"""Ends the model type of an MTP head in a folder of its own; before it stands its family."""


@dataclass(frozen=True)
class Family:
    """What is particular about the MTP heads of one family of targets.

    module: the module of mlx-lm with the family's layers. layer, args: the names of two classes in it.
    index: returns the number of a layer of the target, by its configuration, that is like the head's layer.
    reads_normed: whether the head reads the target's state after the final norm, else that before it.
    recurses_normed: whether the head's own output is normed before it takes the place of the state.
    hides_first: whether zeros replace the embedding of the token after position 0.
    masks_are_arrays: whether the layer takes masks only as arrays.
    norms_lack_one: whether published norms are weights less 1.
    cleaned_by_model: whether mlx-lm's conversion of the target's layers also fits the head's.
    """

    module: str
    layer: str
    args: str = "ModelArgs"
    index: Callable[[Any], int] = lambda args: int(args.num_hidden_layers)
    reads_normed: bool = True
    recurses_normed: bool = True
    hides_first: bool = False
    masks_are_arrays: bool = False
    norms_lack_one: bool = False
    cleaned_by_model: bool = False

    def taps(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """Return Head.taps, the target's layers that a head reads. config: the target's."""
        return () if self.reads_normed else (int(config["num_hidden_layers"]) - 1,)

    def make_args(self, config: Mapping[str, Any]) -> Any:
        """Make mlx-lm's arguments from a configuration. Raises TypeError or others of mlx-lm's exceptions."""
        # mlx-lm renames entries of what it is given.
        copied = deepcopy(dict(config))
        return getattr(import_module(f"mlx_lm.models.{self.module}"), self.args).from_dict(copied)

    def convert(self, weights: dict[str, mx.array], config: Mapping[str, Any]) -> dict[str, mx.array]:
        """Convert a head's arrays, published or converted by others, into those of its modules here.

        weights: by their places in the module, but experts apart and without the splits that mlx-lm makes.
        Raises whatever mlx-lm raises if some are missing.
        """
        if not self.cleaned_by_model:
            return _join_experts(weights)
        args = replace(self.make_args(config), num_hidden_layers=1)
        model = import_module(f"mlx_lm.models.{self.module}").Model
        named = {f"model.{name}": array for name, array in weights.items()}
        cleaned = model.sanitize(SimpleNamespace(args=args), named)
        return {name.removeprefix("model."): array for name, array in cleaned.items()}

    def make_layer(self, config: Mapping[str, Any]) -> Module:
        """Make a head's layer, with random weights, from its configuration."""
        args = self.make_args(config)
        kind = getattr(import_module(f"mlx_lm.models.{self.module}"), self.layer)
        made: Module = kind(args, self.index(args)) if self.module != "llama" else kind(args)
        return made


def _join_experts(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return Qwen's weights with all experts in one array; published ones are one by one, or fused."""
    joined: dict[str, mx.array] = {}
    alone: dict[str, dict[int, mx.array]] = {}
    for name, array in weights.items():
        if match := _EXPERT.fullmatch(name):
            alone.setdefault(f"{match[1]}.switch_mlp.{match[3]}", {})[int(match[2])] = array
        elif match := _FUSED.fullmatch(name):
            gate, up = mx.split(array, 2, axis=-2)
            joined |= {
                f"{match[1]}.switch_mlp.gate_proj.weight": gate,
                f"{match[1]}.switch_mlp.up_proj.weight": up,
            }
        else:
            joined[name.replace(".experts.down_proj", ".switch_mlp.down_proj.weight")] = array
    for name, experts in alone.items():
        joined[name] = mx.stack([experts[number] for number in sorted(experts)])
    return joined


_EXPERT = re.compile(r"(.+\.mlp)\.experts\.(\d+)\.(.+)")
_FUSED = re.compile(r"(.+\.mlp)\.experts\.gate_up_proj")


def _full_attention(args: Any) -> int:
    return int(args.full_attention_interval) - 1


_QWEN3_NEXT = Family("qwen3_next", "Qwen3NextDecoderLayer", index=_full_attention, norms_lack_one=True)
_QWEN3_5 = Family("qwen3_5", "DecoderLayer", "TextModelArgs", index=_full_attention, norms_lack_one=True)
_GLM = Family("glm4_moe", "DecoderLayer", recurses_normed=False, hides_first=True, cleaned_by_model=True)
_DEEPSEEK = replace(_GLM, module="deepseek_v3", layer="DeepseekV3DecoderLayer", masks_are_arrays=True)

FAMILIES = {
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "deepseek_v3": _DEEPSEEK,
    "glm4_moe": _GLM,
    "llama": Family("llama", "TransformerBlock"),
}
"""By model_type."""
