"""Multi-token prediction (MTP): a decoder layer like the target's, and what differs between families."""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache

from reprise.engine.speculative.heads.head import Choose, DraftCache, HeadModule, TargetEnds


@dataclass(frozen=True)
class Family:
    """The particulars of one target family's MTP heads.

    module: the module of mlx-lm with the family's model. args: the name of a class in it.
    layer: the name of the layers' class; before it stands its module, if that is another.
    build: returns what each of the head's layers is built from besides the arguments, from these and the
        configuration of the target. By default: the number of a layer that is like the head's.
    body: mlx-lm's name of the target's body.
    num_caches: how many caches the layer has; it takes them as a list if there are several.
    reads_unnormed: whether the head reads the state before the final norm.
    state_first: whether the state stands before the embedding where they are joined.
    hides_first: whether zeros replace the embedding of the token after position 0.
    masks_are_arrays: whether the layer takes masks only as arrays.
    norms_lack_one: whether published norms are weights minus 1.
    cleaned_by_model: whether mlx-lm's conversion of the target's layers also fits the head's.
    """

    module: str
    layer: str
    args: str = "ModelArgs"
    build: Callable[[Any, Mapping[str, Any]], Sequence[tuple[Any, ...]]] = lambda args, _: [
        (int(args.num_hidden_layers),)
    ]
    body: str = "model"
    num_caches: int = 1
    reads_unnormed: bool = False
    state_first: bool = False
    hides_first: bool = False
    masks_are_arrays: bool = False
    norms_lack_one: bool = False
    cleaned_by_model: bool = False

    def make_args(self, config: Mapping[str, Any]) -> Any:
        """Make mlx-lm's arguments from a configuration. Raises TypeError or others of mlx-lm's exceptions."""
        # mlx-lm renames entries of what it is given.
        return getattr(self._module, self.args).from_dict(deepcopy(dict(config)))

    def convert(self, weights: dict[str, mx.array], config: Mapping[str, Any]) -> dict[str, mx.array]:
        """Convert a head's arrays, published or converted, to those of our modules.

        weights: by module path, but experts are separate and mlx-lm's splits are not made yet.
        Raises whatever mlx-lm raises if some are missing.
        """
        if not self.cleaned_by_model:
            return _join_experts(weights)
        args = replace(self.make_args(config), num_hidden_layers=1)
        named = {f"{self.body}.{name}": array for name, array in weights.items()}
        cleaned = self._module.Model.sanitize(SimpleNamespace(args=args), named)
        return {name.removeprefix(f"{self.body}."): array for name, array in cleaned.items()}

    def make_layers(self, config: Mapping[str, Any]) -> list[Module]:
        """Make a head's layers, with random weights, from its configuration."""
        args = self.make_args(config)
        module, _, name = self.layer.rpartition(".")
        kind = getattr(import_module(f"mlx_lm.models.{module or self.module}"), name)
        return [kind(args, *more) for more in self.build(args, config)]

    @property
    def _module(self) -> Any:
        return import_module(f"mlx_lm.models.{self.module}")


def _join_experts(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return Qwen's weights with all experts in one array; published ones are separate or fused."""
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


def _full_attention(args: Any, _: Mapping[str, Any]) -> list[tuple[int]]:
    return [(int(args.full_attention_interval) - 1,)]


def _nothing_more(_: Any, __: Mapping[str, Any]) -> list[tuple[()]]:
    return [()]


_NEMOTRON_LAYERS = {"attention": "*", "full_attention": "*", "moe": "E"}


def _pattern(_: Any, config: Mapping[str, Any]) -> list[tuple[str]]:
    """Return the kind of each layer. Raises ValueError unless one is attention and all others are experts."""
    named = [_NEMOTRON_LAYERS.get(kind, kind) for kind in config.get("mtp_layers_block_type") or ()]
    pattern = list(config.get("mtp_hybrid_override_pattern") or named)
    if sorted(pattern) != ["*", *"E" * (len(pattern) - 1)]:
        raise ValueError(f"its layers are {pattern}, not one of attention (*) and others of experts (E)")
    return [(kind,) for kind in pattern]


_QWEN3_NEXT = Family("qwen3_next", "Qwen3NextDecoderLayer", build=_full_attention, norms_lack_one=True)
_QWEN3_5 = Family("qwen3_5", "DecoderLayer", "TextModelArgs", build=_full_attention, norms_lack_one=True)
_GLM = Family("glm4_moe", "DecoderLayer", hides_first=True, cleaned_by_model=True)
_DEEPSEEK = replace(_GLM, module="deepseek_v3", layer="DeepseekV3DecoderLayer", masks_are_arrays=True)
_DEEPSEEK_V32 = replace(_DEEPSEEK, module="deepseek_v32", layer="DeepseekV32DecoderLayer", num_caches=2)
_GLM_DSA = replace(
    _DEEPSEEK_V32,
    module="glm_moe_dsa",
    layer="deepseek_v32.DeepseekV32DecoderLayer",
    hides_first=False,
)

FAMILIES = {
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _QWEN3_5,
    "qwen3_5_moe": _QWEN3_5,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK_V32,
    "glm4_moe": _GLM,
    "glm4_moe_lite": replace(
        _GLM, module="glm4_moe_lite", layer="Glm4MoeLiteDecoderLayer", masks_are_arrays=True
    ),
    "glm_moe_dsa": _GLM_DSA,
    "mimo": Family(
        "mimo",
        "TransformerBlock",
        build=_nothing_more,
        reads_unnormed=True,
        state_first=True,
        hides_first=True,
    ),
    "nemotron_h": Family(
        "nemotron_h", "NemotronHBlock", build=_pattern, body="backbone", cleaned_by_model=True
    ),
    "llama": Family("llama", "TransformerBlock", build=_nothing_more),
}
"""By model_type."""


class MTPHead(HeadModule):
    """A decoder layer like the target's, applied to its own output for every further token.

    In Nemotron-H attention and experts are layers of their own, so it has several; one has the cache.
    """

    def __init__(self, family: Family, config: dict[str, Any], ends: TargetEnds, max_drafted: int) -> None:
        """Make a head with random weights.

        config: the target's, or of the head's own layer. max_drafted: maximum tokens of a draft.
        """
        hidden = int(config["hidden_size"])
        eps = float(config["layer_norm_epsilon" if "layer_norm_epsilon" in config else "rms_norm_eps"])
        super().__init__(ends, max_drafted)
        self.fc = Linear(2 * hidden, hidden, bias=False)
        self.norm = RMSNorm(hidden, eps)
        self.pre_fc_norm_embedding = RMSNorm(hidden, eps)
        self.pre_fc_norm_hidden = RMSNorm(hidden, eps)
        self.layers = family.make_layers(config)
        self.taps = (int(config["num_hidden_layers"]) - 1,) if family.reads_unnormed else ()
        self._family = family

    def make_cache(self) -> list[Any]:
        """Make the empty caches of the head's attention, for one row."""
        return [KVCache() for _ in range(self._family.num_caches)]

    def feed(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> None:
        """Feed committed positions; see Head. The output is unused, so MLX computes only keys and values."""
        self._apply(states, following, caches)

    def _draft(
        self, states: mx.array, last: mx.array, caches: list[DraftCache], num: int, choose: Choose
    ) -> mx.array:
        token, drafted = last, []
        for place in range(num):
            # As the states of most targets are, for which pre_fc_norm_hidden was trained.
            states = self.norm(self._apply(states, token, caches))
            token = choose(self._ends.logits(states), place)
            drafted.append(token)
        return mx.concatenate(drafted, axis=1)

    def _apply(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> mx.array:
        """Return the layers' output for states and the tokens after them: (rows, width, hidden)."""
        embedded = self._ends.embed(following)
        if self._family.hides_first:
            offset = caches[0].offset
            starts = offset[:, None] if isinstance(offset, mx.array) else offset
            is_first = (starts + mx.arange(following.shape[1]) == 0)[..., None]
            embedded = mx.where(is_first, mx.zeros((), embedded.dtype), embedded)
        parts = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)]
        x: mx.array = self.fc(mx.concatenate(parts[:: -1 if self._family.state_first else 1], axis=-1))
        mask = create_attention_mask(x, caches[0], return_array=self._family.masks_are_arrays)
        cache = caches[0] if len(caches) == 1 else caches
        for layer in self.layers:
            x = layer(x, mask, cache)
        return x
