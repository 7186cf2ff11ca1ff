"""What differs between encoders, read from config.json.

BERT's relatives learn positions, norm after each sum and have biases. Later ones rotate queries and keys,
gate their feed-forward networks, and leave out biases; ModernBERT also norms first and attends locally.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import mlx.core as mx
from mlx.nn.layers.activations import gelu, gelu_approx, relu, silu

from reprise.engine.interface.errors import ModelError
from reprise.engine.model.files.model_folder import find_first_position

Mask = mx.array | Literal["causal"]


class Masks(NamedTuple):
    """The masks of a pass: one for layers that attend to all tokens, and one for local layers.

    None: computing keys and values needs no mask.
    """

    whole: Mask | None
    local: Mask | None


def attend_to_all(num_tokens: mx.array, width: int) -> mx.array:
    """Return booleans (texts, 1, 1, width), false for padding. num_tokens: (texts,) tokens of each text."""
    return (mx.arange(width)[None] < num_tokens[:, None])[:, None, None]


def attend_near(num_tokens: mx.array, width: int, window: int) -> mx.array:
    """Return booleans (texts, 1, width, width), true for tokens up to window away, to either side."""
    is_token = attend_to_all(num_tokens, width)
    # Padding attends to padding: attending to nothing is not a number, and that would spread to all.
    return (_distances(width) <= window) & (is_token | ~is_token.swapaxes(-1, -2))


def attend_before(width: int, window: int) -> mx.array:
    """Return booleans (width, width), true for the token itself and the window - 1 tokens before it."""
    at = mx.arange(width)
    before = at[:, None] - at
    return (before >= 0) & (before < window)


def attend_less_with_distance(num_tokens: mx.array, width: int, num_heads: int, dtype: mx.Dtype) -> mx.array:
    """Return what to add to the scores, (texts, heads, width, width): minus each head's slope times distance.

    Source: Press et al. 2021, in both directions, with their slopes for heads that are no power of 2.
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * (index + 1) / power) for index in range(power)]
    slopes += [2 ** (-4 * (2 * index + 1) / power) for index in range(num_heads - power)]
    added = -mx.array(slopes)[:, None, None] * _distances(width)
    return mx.where(attend_to_all(num_tokens, width), added, -mx.inf).astype(dtype)


def _distances(width: int) -> mx.array:
    at = mx.arange(width)
    return mx.abs(at[:, None] - at)


Config = dict[str, Any]
"""The fields of config.json, with defaults for missing ones; see complete()."""

ACTIVATIONS: dict[str, Callable[[mx.array], mx.array]] = {
    "gelu": gelu,
    "gelu_new": gelu_approx,
    "gelu_pytorch_tanh": gelu_approx,
    "geglu": gelu,
    "relu": relu,
    "silu": silu,
    "swiglu": silu,
}

_ATTENTION = ("query", "key", "value", "out")
_GATED = ("gate", "up")

GTE = ("new", "gte")
"""Model types of gte's own encoder."""

_DEFAULTS: dict[str, Config] = {
    "bert": {"layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2},
    "modernbert": {"layer_norm_eps": 1e-5, "type_vocab_size": 0},
}
"""What configurations leave out, by model types."""

_ALIASES = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "layer_norm_epsilon": "layer_norm_eps",
    "norm_eps": "layer_norm_eps",
    "activation_function": "hidden_act",
    "hidden_activation": "hidden_act",
}
"""Keys of nomic's and ModernBERT's configurations, and BERT's."""

_KNOWN: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute", "rotary", "rope", "alibi"),
    "lora_adaptations": (None, []),
    "num_experts": (0, None),
    "rotary_emb_fraction": (1,),
    "rotary_emb_interleaved": (False,),
    "rotary_scaling_factor": (None,),
    "qkv_proj_bias": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "prenorm": (False,),
    "use_rms_norm": (False, None),
    "parallel_block": (False, None),
    "feed_forward_type": ("original", "geglu"),
    "layer_norm_type": ("layer_norm",),
    "logn_attention_scale": (False,),
}
"""Values that are known here, by keys of configurations."""


@dataclass(frozen=True)
class Design:
    """How an encoder is built.

    positions: learned vectors, rotated queries and keys, or less attention by distance (alibi).
    first_position: index of the first token's vector among the learned ones.
    bases: bases of the rotation, in layers that attend to all tokens and in local layers.
    position_scale: what positions are multiplied by before the rotation.
    window: tokens to either side that local layers attend to. local: indices of the local layers.
    is_gated: whether the feed-forward networks have a gate.
    norms_first: whether the norm comes before each part of a layer, instead of after the part's sum.
    unbiased: names of the parts without biases.
    """

    positions: Literal["learned", "rotary", "alibi"] = "learned"
    first_position: int = 0
    bases: tuple[float, float] = (0, 0)
    position_scale: float = 1
    window: int = 0
    local: frozenset[int] = frozenset()
    is_gated: bool = False
    norms_first: bool = False
    unbiased: tuple[str, ...] = ()


def complete(config: Config) -> Config:
    """Return a configuration with all values that an encoder needs, under BERT's names.

    Raises ModelError for values that this encoder does not support.
    """
    aliases = {ours: config[theirs] for theirs, ours in _ALIASES.items() if config.get(theirs) is not None}
    kind = str(config.get("model_type"))
    whole = _DEFAULTS["bert"] | _DEFAULTS.get(kind, {}) | config | aliases
    known = _KNOWN | ({} if kind in GTE else {"rope_scaling": (None,)})
    declined = {key: config[key] for key, values in known.items() if config.get(key, values[0]) not in values}
    if whole["hidden_act"] not in ACTIVATIONS:
        declined["hidden_act"] = whole["hidden_act"]
    if declined:
        told = ", ".join(f"{key} {value}" for key, value in declined.items())
        raise ModelError(f"{kind} models with {told} cannot be served here yet")
    return whole


def find_design(config: Config) -> Design:
    """Read from a configuration how the encoder is built. config: see complete(). Raises ModelError."""
    kind, positions = config.get("model_type"), config.get("position_embedding_type", "absolute")
    if kind == "modernbert":
        return _modernbert(config)
    if kind == "nomic_bert":
        unbiased = (*_ATTENTION, *_GATED, "down")
        return Design("rotary", bases=(_base(config, 1000),) * 2, is_gated=True, unbiased=unbiased)
    if kind in GTE:
        base, scale = _ntk(config)
        return Design("rotary", bases=(base, base), position_scale=scale, is_gated=True, unbiased=_GATED)
    if positions == "alibi":
        is_gated = config.get("feed_forward_type", "original") != "original"
        return Design("alibi", is_gated=is_gated, unbiased=_GATED if is_gated else ())
    if positions in ("rotary", "rope"):
        return Design("rotary", bases=(_base(config, 10_000),) * 2)
    return Design(first_position=find_first_position(config))


def _modernbert(config: Config) -> Design:
    kinds, every = config.get("layer_types"), config.get("global_attn_every_n_layers", 3)
    local = [
        kinds[index] == "sliding_attention" if kinds else index % every > 0
        for index in range(config["num_hidden_layers"])
    ]
    told = config.get("rope_parameters") or {}
    bases = (
        _named_base(told.get("full_attention")) or config.get("global_rope_theta") or 160_000.0,
        _named_base(told.get("sliding_attention")) or config.get("local_rope_theta") or 10_000.0,
    )
    unbiased: list[str] = []
    for key, parts in (
        ("attention_bias", _ATTENTION),
        ("mlp_bias", (*_GATED, "down")),
        ("norm_bias", ("norm", "attention_norm", "final_norm")),
        ("classifier_bias", ("dense",)),
    ):
        unbiased += () if config.get(key, False) else parts
    return Design(
        "rotary",
        bases=bases,
        window=config.get("local_attention", 128) // 2,
        local=frozenset(index for index, is_local in enumerate(local) if is_local),
        is_gated=True,
        norms_first=True,
        unbiased=tuple(unbiased),
    )


def _base(config: Config, usual: float) -> float:
    """Return the base of the rotation. usual: if the configuration does not name it."""
    told = _named_base(config.get("rope_parameters"))
    return told or config.get("rotary_emb_base") or config.get("rope_theta") or usual


def _named_base(told: Config | None) -> float | None:
    """Return the base that the parameters of a rotation name, if any. Raises ModelError if it is scaled."""
    if told and told.get("rope_type", "default") != "default":
        raise ModelError(f"rotations with rope_parameters {told} cannot be served here yet")
    return told.get("rope_theta") if told else None


def _ntk(config: Config) -> tuple[float, float]:
    """Return the base of gte's rotation, and by how much positions are scaled."""
    base = _base(config, 10_000)
    scaling = config.get("rope_scaling") or {}
    if not scaling:
        return base, 1
    if scaling.get("type") != "ntk" or scaling.get("mixed_b"):
        raise ModelError(f"gte models with rope_scaling {scaling} cannot be served here yet")
    factor = float(scaling["factor"])
    size = config["hidden_size"] // config["num_attention_heads"]
    return base * factor, factor ** (-2 / size)
