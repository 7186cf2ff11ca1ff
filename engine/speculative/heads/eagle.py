"""EAGLE-3 heads (arXiv:2503.01840): draft token by token from the states of several layers.

A first layer attends from the embedding of the token after a position and a state there, side by side. Its
state is made of the target's (`fc`), and for each further token it is the head's own, before the final norm.
An output head chooses among frequent tokens; to every other token of the target it gives no chance.

    written by                    names        where config.json names the layers that are read
    EAGLE, AngelSlim, SpecForge   midlayer.*   eagle_config, by their outputs
    ModelOpt                      layers.0.*   the same
    DeepSpec                      layers.0.*   target_layer_ids, by their outputs
    speculators                   layers.0.*   eagle_aux_hidden_state_layer_ids, by their inputs

By default these are the inputs of layers 2, n // 2 and n - 3 of the target's n.

A token of a sliding layer sees sliding_window tokens with itself. Those drafted see what the newest position
sees, and each other: so speculators trains them.

Source: vLLM's llama_eagle3.py and speculators/algos.py; SGLang's llama_eagle3.py, and qwen2.py for which
layers (set_eagle3_layers_to_capture adds 1 to what eagle_config says); SpecForge's llama3_eagle.py;
ModelOpt's hf_eagle.py; DeepSpec's eagle3/qwen3/modeling.py; speculators' eagle3/config.py, core.py and
attention.py, and utils.py for the default. In mlx-vlm 0.7.10 its n is that of the head, which none of these
agrees with.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache

from reprise.engine.kv_cache.sliding_window import WindowKVCache
from reprise.engine.speculative.heads.head import (
    Choose,
    DraftCache,
    HeadModule,
    MisfitError,
    Published,
    Target,
    TargetEnds,
    check_rope,
    check_size,
    check_taps,
    check_vocabulary,
    text_config,
)

MAX_DRAFTED = 255
"""Tokens of a draft, of which settings allow no more. The head has no limit of its own."""


@dataclass(frozen=True)
class EagleConfig:
    """The configuration of an EAGLE-3 head.

    module: mlx-lm's module with the layers: llama or qwen3. args: their arguments.
    taps: the target's layers whose outputs the head reads, counted from 0. tap_size: the size of an output.
    windows: (layers,) how many tokens a sliding layer sees, with the one that sees; None for all.
    vocab_size: tokens of the target. num_drafted: tokens that can be drafted.
    has_embedding: whether its own embedding is used; else it is a copy of the target's, of up to 1 GB.
    norms_all: whether what is read is normed as a whole. norms_each: whether each layer's output is normed.
    norms_residual: whether the first layer adds to the normed state.
    recurses_normed: whether the head's output is normed before it replaces the state (EAGLE 3.1).
    """

    module: str
    args: Any
    taps: tuple[int, ...]
    tap_size: int
    windows: tuple[int | None, ...]
    vocab_size: int
    num_drafted: int
    has_embedding: bool = False
    norms_all: bool = False
    norms_each: bool = False
    norms_residual: bool = False
    recurses_normed: bool = False


def read_config(config: Mapping[str, Any], num_layers: int) -> EagleConfig:
    """Parse an EAGLE-3 head's config.json. Raises AttributeError, KeyError, TypeError or ValueError.

    num_layers: the number of the target's layers.
    """
    of_layers = dict(config.get("transformer_layer_config") or config)
    of_head = {**config, **(config.get("eagle_config") or {})}
    module = "qwen3" if of_layers.get("model_type") == "qwen3" else "llama"
    if of_layers.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {of_layers['hidden_act']}, not silu")
    if of_head.get("use_aux_hidden_state") is False:
        raise ValueError("use_aux_hidden_state false, as in heads before EAGLE-3")
    rope = of_layers.pop("rope_parameters", None) or of_layers.get("rope_scaling") or {}
    check_rope(rope)
    of_layers["rope_theta"] = of_layers.get("rope_theta") or rope.get("rope_theta") or 10_000.0
    # Positions of images have three parts. Those of text are alike.
    of_layers["rope_scaling"] = None if "mrope_section" in rope else rope or None
    args = import_module(f"mlx_lm.models.{module}").ModelArgs.from_dict(of_layers)
    tap_size = int(config.get("target_hidden_size") or args.hidden_size)
    return EagleConfig(
        module=module,
        args=args,
        taps=_read_taps(config, num_layers),
        tap_size=tap_size,
        windows=_read_windows(of_layers, args.num_hidden_layers),
        vocab_size=int(args.vocab_size),
        num_drafted=int(config.get("draft_vocab_size") or args.vocab_size),
        has_embedding=tap_size != args.hidden_size or bool(config.get("embed_requires_grad")),
        norms_all=bool(of_head.get("norm_before_fc")),
        norms_each=bool(of_head.get("fc_norm")),
        norms_residual=bool(of_head.get("norm_before_residual")),
        recurses_normed=bool(of_head.get("norm_output")),
    )


def _read_windows(of_layers: Mapping[str, Any], num_layers: int) -> tuple[int | None, ...]:
    types, window = of_layers.get("layer_types") or (), int(of_layers.get("sliding_window") or 0)
    if "sliding_attention" not in types:
        return (None,) * num_layers
    if len(types) != num_layers or not 0 < window < 2**31:
        raise ValueError(f"layer_types {types} of {num_layers} layers, with a sliding_window of {window}")
    return tuple(window if one == "sliding_attention" else None for one in types)


def _read_taps(config: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    key = "eagle_aux_hidden_state_layer_ids"
    if outputs := (config.get("eagle_config") or {}).get(key) or config.get("target_layer_ids"):
        return tuple(sorted(map(int, outputs)))
    inputs = config.get(key) or (2, num_layers // 2, num_layers - 3)
    return tuple(sorted(int(layer) - 1 for layer in inputs))


class EagleHead(HeadModule):
    """Layers applied to their own output for every further token, with an output head of their own."""

    def __init__(self, config: EagleConfig, ends: TargetEnds, has_output: bool) -> None:
        """Make a head with random weights. has_output: whether it has an output head of its own."""
        args = config.args
        hidden, eps, read = (
            int(args.hidden_size),
            float(args.rms_norm_eps),
            len(config.taps) * config.tap_size,
        )
        super().__init__(ends, MAX_DRAFTED)
        self.taps = config.taps
        self.fc = Linear(read, hidden, bias=False)
        self.norm = RMSNorm(hidden, eps)
        if config.norms_all:
            self.input_norm = RMSNorm(read, eps)
        if config.norms_each:
            self.fc_norm = [RMSNorm(config.tap_size, eps) for _ in config.taps]
        if config.has_embedding:
            self.embed_tokens = Embedding(config.vocab_size, hidden)
        make_layer = import_module(f"mlx_lm.models.{config.module}").TransformerBlock
        self.layers: list[Any] = [make_layer(args) for _ in range(args.num_hidden_layers)]
        first = self.layers[0]
        first.hidden_norm = RMSNorm(hidden, eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            known = first.self_attn[name]
            first.self_attn[name] = Linear(2 * hidden, known.weight.shape[0], bias="bias" in known)
        if has_output:
            self.lm_head = Linear(hidden, config.num_drafted, bias=False)
        if has_output and config.num_drafted != config.vocab_size:
            # A drafted token's id in the target is this much larger.
            self.d2t = mx.zeros((config.num_drafted,), mx.int32)
        self._config = config

    def make_cache(self) -> list[Any]:
        """Make empty caches for one row, one for each layer; those of sliding layers keep a window."""
        return [KVCache() if window is None else WindowKVCache(window) for window in self._config.windows]

    def feed(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> None:
        """Feed committed positions; see Head. Of the last layer, MLX computes only keys and values."""
        self._apply(self._read(states), following, caches)

    def _draft(
        self, states: mx.array, last: mx.array, caches: list[DraftCache], num: int, choose: Choose
    ) -> mx.array:
        states, token, drafted = self._read(states), last, []
        for place in range(num):
            states = self._apply(states, token, caches)
            normed = self.norm(states)
            token = choose(self._logits(normed), place)
            drafted.append(token)
            states = normed if self._config.recurses_normed else states
        return mx.concatenate(drafted, axis=1)

    def _read(self, states: mx.array) -> mx.array:
        """Return the first layer's states for those of the target: (rows, width, hidden)."""
        if self._config.norms_all:
            states = self.input_norm(states)
        if self._config.norms_each:
            parts = mx.split(states, len(self.taps), axis=-1)
            states = mx.concatenate(
                [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], axis=-1
            )
        made: mx.array = self.fc(states)
        return made

    def _apply(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> mx.array:
        """Return the last layer's output for states and the tokens after them: (rows, width, hidden)."""
        embed = self.embed_tokens if self._config.has_embedding else self._ends.raw_embed
        first = self.layers[0]
        normed = first.hidden_norm(states)
        both = mx.concatenate([first.input_layernorm(embed(following)), normed], axis=-1)
        x: mx.array = normed if self._config.norms_residual else states
        x = x + first.self_attn(both, create_attention_mask(both, caches[0]), caches[0])
        x = x + first.mlp(first.post_attention_layernorm(x))
        for layer, cache in zip(self.layers[1:], caches[1:], strict=True):
            x = layer(x, create_attention_mask(x, cache), cache)
        return x

    def _logits(self, normed: mx.array) -> mx.array:
        """Return logits over the target's tokens: -inf for those that the head cannot draft."""
        if "lm_head" not in self:
            return self._ends.logits(normed)
        logits: mx.array = self.lm_head(normed)
        if "d2t" not in self:
            return logits
        all_logits = mx.full((*logits.shape[:-1], self._config.vocab_size), -mx.inf, logits.dtype)
        all_logits[..., mx.arange(self.d2t.size) + self.d2t] = logits
        return all_logits


_ARCHITECTURES = (
    *("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"),
    *("Eagle3Speculator", "Eagle3DraftModel", "Qwen3Eagle3Model"),
)


def _is_eagle3(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures") or []
    # EAGLE's own are called an ordinary model.
    is_eagle_s = names == ["LlamaForCausalLM"] and "draft_vocab_size" in config
    is_known = any(name in _ARCHITECTURES for name in names)
    return is_known or is_eagle_s or config.get("speculators_model_type") == "eagle3"


def _make(config: Mapping[str, Any], target: Target, places: Collection[str]) -> EagleHead:
    own, due = read_config(config, target.num_layers), text_config(target.config)
    check_size("target_hidden_size", own.tap_size, due.get("hidden_size"))
    check_vocabulary(own.vocab_size, target)
    check_taps(own.taps, target)
    if len(set(own.taps)) < len(own.taps):
        raise MisfitError(f"it reads layers {list(own.taps)}, one of them twice")
    is_own = own.num_drafted != own.vocab_size or own.args.hidden_size != own.tap_size
    return EagleHead(own, target.ends, is_own or "lm_head.weight" in places)


def _place(name: str) -> str:
    if name == "t2d" or name.startswith("verifier_") or "rotary_emb." in name:
        return ""
    return name.removeprefix("model.").replace("midlayer.", "layers.0.")


def _convert(weights: dict[str, mx.array], config: Mapping[str, Any]) -> dict[str, mx.array]:
    """Leave out what is not used. Raises ValueError if a drafted token is none of the target's."""
    own = read_config(config, 0)
    if not own.has_embedding:
        weights = {name: array for name, array in weights.items() if not name.startswith("embed_tokens.")}
    if own.num_drafted == own.vocab_size:
        weights.pop("d2t", None)
    d2t = weights.get("d2t", mx.array(0))
    ids = d2t + mx.arange(d2t.size)
    if mx.any((ids < 0) | (ids >= own.vocab_size)).item():
        raise ValueError("d2t names tokens that the model does not have")
    return weights


PUBLISHED = Published("EAGLE-3 head", "eagle3", _is_eagle3, _make, _place, _convert)
