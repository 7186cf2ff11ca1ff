"""DFlash drafters, which fill a block of masks in one pass, and what was built on them.

    DFlash         arXiv:2602.06036, z-lab; block_size counts the known token and the masks
    DFlash 2       convolutions around attention and MLP; of the best tokens of each place, a low-rank term of
                   the token before it chooses
    DSpark         a low-rank term of the token before it is added to each place's logits; the known token's
                   place may draft too, so that block_size counts drafted tokens only
    Gemma 4 DSpark the same with Gemma 4's layers, whose values are keys with a norm of their own, and an
                   embedding and an output head of its own
    Laguna         a gate for each head of the attention, and a norm for each layer that is read
    Muse Glimmer   a window to both sides

All read the target's embedding, and where a term is added to its logits its output head, without a scale, a
norm or a cap of the target's, except for Gemma's scale. The configuration has what takes their place.

Sliding layers are causal unless a configuration says otherwise, as SpecForge trains them, and vLLM and SGLang
run them.

Source: the checkpoints' configurations; z-lab's code; SpecForge's dflash_family_model.py; DeepSpec's
dspark/gemma4/modeling.py; vLLM's qwen3_dflash.py and gemma4_dspark.py; mlx-vlm 0.7.10, with which the drafts
are compared.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import softplus
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import KVCache
from mlx_lm.models.gemma4_text import MLP as GemmaMLP  # noqa: N811
from mlx_lm.models.gemma4_text import RMSNormNoScale
from mlx_lm.models.qwen3 import MLP
from mlx_lm.models.rope_utils import initialize_rope

from reprise.engine.kv_cache.buffers import KVSlice
from reprise.engine.kv_cache.sliding_window import WindowKVCache
from reprise.engine.speculative.heads.head import (
    Bounds,
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


@dataclass(frozen=True)
class DFlashConfig:
    """The configuration of a DFlash drafter.

    taps: the target's layers whose outputs the drafter reads, counted from 0.
    num_drafted: maximum tokens of a draft. mask_token_id: the token that stands for an unknown one.
    windows: (layers,) how many tokens a sliding layer sees, with the one that sees; None for all.
    drafts_at_known: whether the known token's place drafts the first token; otherwise the first mask's does.
    is_causal: whether a place of the block sees only the places before it; None: in sliding layers alone.
    slides: whether a place of a sliding layer sees as many contexts less as it is places behind the first.
    conv_width: tokens that a convolution covers; 0 for none. conv_group: dimensions that share its weights.
    candidates, rank: tokens of a place from which a term of this rank chooses; candidates is 0 for all.
    kind: "qwen3", "laguna" or "gemma4", by its layers.
    embedding_scale, logit_scale, logit_cap: of the embedding's and the output head's numbers; no cap if 0.
    rotates_neighbors: whether rotary embeddings turn neighboring dimensions.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    max_position_embeddings: int
    attention_bias: bool
    num_drafted: int
    mask_token_id: int
    taps: tuple[int, ...]
    windows: tuple[int | None, ...]
    drafts_at_known: bool = False
    is_causal: bool | None = None
    slides: bool = True
    has_sinks: bool = False
    conv_width: int = 0
    conv_group: int = 0
    candidates: int = 0
    rank: int = 0
    vocab_size: int = 0
    kind: str = "qwen3"
    rotates_neighbors: bool = False
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0


class Attention(Module):
    """Qwen 3's attention: a block of drafted positions attends to the context and to itself."""

    def __init__(self, config: DFlashConfig, window: int | None) -> None:
        super().__init__()
        hidden, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.head_dim = head_dim
        is_sliding = window is not None
        self.is_causal = is_sliding if config.is_causal is None else config.is_causal
        self.slides = config.slides and is_sliding
        # The block's first token takes one place of the window.
        self.context_window = window and window - 1
        is_gemma = config.kind == "gemma4"
        self.scale = 1.0 if is_gemma else head_dim**-0.5
        self.q_proj = Linear(hidden, config.num_attention_heads * head_dim, bias=bias)
        self.k_proj = Linear(hidden, config.num_key_value_heads * head_dim, bias=bias)
        if not is_gemma:
            self.v_proj = Linear(hidden, config.num_key_value_heads * head_dim, bias=bias)
        self.o_proj = Linear(config.num_attention_heads * head_dim, hidden, bias=bias)
        if config.kind == "laguna":
            self.g_proj = Linear(hidden, config.num_attention_heads, bias=False)
        if config.has_sinks:
            self.attention_sink_bias = mx.zeros(config.num_attention_heads)
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)
        if is_gemma:
            self.v_norm = RMSNormNoScale(head_dim, config.rms_norm_eps)
        self.rope = initialize_rope(
            head_dim,
            base=config.rope_theta,
            traditional=config.rotates_neighbors,
            scaling_config=config.rope_scaling,
            max_position_embeddings=config.max_position_embeddings,
        )

    def keep(self, x: mx.array, cache: Any) -> tuple[mx.array, mx.array]:
        """Put the keys and values of x (rows, width, hidden) into a cache; return all that it holds."""
        keys = self._heads(self.k_proj(x))
        values = self._heads(self.v_proj(x)) if "v_proj" in self else keys
        if "v_norm" in self:
            values = self.v_norm(values)
        keys = self.rope(self.k_norm(keys), offset=cache.offset)
        held: tuple[mx.array, mx.array] = cache.update_and_fetch(keys, values)
        return held

    def __call__(self, x: mx.array, context: mx.array, cache: DraftCache) -> mx.array:
        """Attend from a block (rows, places, hidden) to contexts (rows, 1, hidden), those held and itself."""
        places = x.shape[1]
        mask: Any = cache.make_block_mask(places, self.context_window, self.is_causal, self.slides)
        self.keep(context, cache)
        queries = self.rope(self.q_norm(self._heads(self.q_proj(x))), offset=cache.offset)
        keys, values = self.keep(x, cache)
        sinks = self.attention_sink_bias if "attention_sink_bias" in self else None
        seen = scaled_dot_product_attention(
            queries, keys, values, cache=None, scale=self.scale, mask=mask, sinks=sinks
        )
        seen = seen.transpose(0, 2, 1, 3)
        if "g_proj" in self:
            gate = softplus(self.g_proj(x).astype(mx.float32)).astype(seen.dtype)
            seen = seen * gate[..., None]
        attended: mx.array = self.o_proj(seen.flatten(2))
        return attended

    def _heads(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:2], -1, self.head_dim).transpose(0, 2, 1, 3)


class Convolution(Module):
    """DFlash 2's convolutions before and after a part of a layer, over the places of a block.

    A token's weights are learned ones plus those that are computed from the token, equal for all dimensions
    of a group.
    """

    def __init__(self, hidden: int, width: int, group: int) -> None:
        super().__init__()
        self._width, self._group = width, group
        self.base_kernel = mx.zeros((2, width, hidden))
        self.kernel_projection = Linear(hidden, 2 * width * (hidden // group), bias=False)

    def around(self, part: Callable[[mx.array], mx.array], x: mx.array) -> mx.array:
        """Return part's output for x (rows, places, hidden), convolved before and after it."""
        computed = self.kernel_projection(x).reshape(*x.shape[:2], 2, self._width, -1)
        inner = part(self._convolve(x, computed[:, :, 0], self.base_kernel[0]))
        return self._convolve(inner, computed[:, :, 1], self.base_kernel[1])

    def _convolve(self, x: mx.array, computed: mx.array, base: mx.array) -> mx.array:
        weights = mx.repeat(computed, self._group, axis=-1) + base.astype(x.dtype)
        padded = mx.pad(x, [(0, 0), (self._width - 1, 0), (0, 0)])
        total = mx.zeros_like(x)
        for back in range(self._width):
            start = self._width - 1 - back
            total = total + weights[:, :, back] * padded[:, start : start + x.shape[1]]
        return total


class Layer(Module):
    """A decoder layer as in Qwen 3, with attention to contexts."""

    def __init__(self, config: DFlashConfig, window: int | None) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.window = window
        self.self_attn = Attention(config, window)
        self.mlp = MLP(hidden, config.intermediate_size)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        if config.conv_width:
            self.attention_conv = Convolution(hidden, config.conv_width, config.conv_group)
            self.mlp_conv = Convolution(hidden, config.conv_width, config.conv_group)

    def __call__(self, x: mx.array, context: mx.array, cache: DraftCache) -> mx.array:
        """Apply the layer to a block (rows, places, hidden)."""

        def attend(h: mx.array) -> mx.array:
            return self.self_attn(h, context, cache)

        if "attention_conv" not in self:
            x = x + attend(self.input_layernorm(x))
            made: mx.array = x + self.mlp(self.post_attention_layernorm(x))
            return made
        x = x + self.attention_conv.around(attend, self.input_layernorm(x))
        return x + self.mlp_conv.around(self.mlp, self.post_attention_layernorm(x))


class GemmaLayer(Module):
    """A decoder layer as in Gemma 4, with norms around each part, and attention to contexts."""

    def __init__(self, config: DFlashConfig, window: int | None) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.window = window
        self.self_attn = Attention(config, window)
        # mlx-lm's asks for all of the model's sizes.
        sizes: Any = SimpleNamespace(
            hidden_size=hidden,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=1,
            num_kv_shared_layers=0,
            use_double_wide_mlp=False,
        )
        self.mlp = GemmaMLP(sizes, 0)
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden, eps)
        self.layer_scalar = mx.ones(1)

    def __call__(self, x: mx.array, context: mx.array, cache: DraftCache) -> mx.array:
        """Apply the layer to a block (rows, places, hidden)."""
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), context, cache))
        fed = self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))
        made: mx.array = (x + fed) * self.layer_scalar
        return made


class Selector(Module):
    """DFlash 2's choice among the best tokens of each place."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self._num = config.candidates
        self.predecessor_codebook = Embedding(config.vocab_size, config.rank)
        self.successor_codebook = Embedding(config.vocab_size, config.rank)
        self.hidden_projection = Linear(config.hidden_size, config.rank, bias=False)

    def add(self, logits: mx.array, states: mx.array, before: mx.array) -> mx.array:
        """Return one place's logits (rows, vocabulary), -inf but for the best tokens.

        states: (rows, hidden) of that place. before: (rows,) the token before it.
        """
        best = mx.argpartition(logits, -self._num, axis=-1)[:, -self._num :]
        term = self.predecessor_codebook(before) * self.hidden_projection(states)
        scores = mx.take_along_axis(logits, best, axis=-1)
        scores = scores + (term[:, None] * self.successor_codebook(best)).sum(axis=-1)
        none = mx.full(logits.shape, -mx.inf, scores.dtype)
        made: mx.array = mx.put_along_axis(none, best, scores, axis=-1)
        return made


class Markov(Module):
    """DSpark's term for the token before a place."""

    def __init__(self, config: DFlashConfig) -> None:
        super().__init__()
        self.markov_w1 = Embedding(config.vocab_size, config.rank)
        self.markov_w2 = Linear(config.rank, config.vocab_size, bias=False)

    def add(self, logits: mx.array, states: mx.array, before: mx.array) -> mx.array:  # noqa: ARG002
        """Return one place's logits (rows, vocabulary) with the term of the token before it (rows,)."""
        made: mx.array = logits + self.markov_w2(self.markov_w1(before))
        return made


class DFlashHead(HeadModule):
    """A head that drafts a whole block of tokens in one pass."""

    def __init__(self, config: DFlashConfig, ends: TargetEnds, own_ends: Collection[str] = ()) -> None:
        """Make a drafter with random weights, which keeps all of a text.

        own_ends: "embed_tokens", "lm_head" or both if it has an embedding or an output head of its own.
        """
        hidden, eps = config.hidden_size, config.rms_norm_eps
        super().__init__(ends, config.num_drafted)
        self.taps = config.taps
        self.fc = Linear(len(config.taps) * hidden, hidden, bias=False)
        self.norm = RMSNorm(hidden, eps)
        self.hidden_norm = RMSNorm(hidden, eps)
        if config.kind == "laguna":
            self.aux_hidden_norms = [RMSNorm(hidden, eps) for _ in config.taps]
        kind = GemmaLayer if config.kind == "gemma4" else Layer
        self.layers = [kind(config, window) for window in config.windows]
        if "embed_tokens" in own_ends:
            self.embed_tokens = Embedding(config.vocab_size, hidden)
        if "lm_head" in own_ends:
            self.lm_head = Linear(hidden, config.vocab_size, bias=False)
        if config.candidates:
            self.candidate_selector = Selector(config)
        elif config.rank:
            self.markov_head = Markov(config)
        self._config = config

    def make_cache(self) -> list[Any]:
        """Make empty caches for one row, one for each layer; those of sliding layers keep a window."""
        return [KVCache() if layer.window is None else WindowKVCache(layer.window) for layer in self.layers]

    def feed(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> None:  # noqa: ARG002
        """Feed committed positions; see Head. The tokens are ignored."""
        contexts = self._contexts(states)
        for layer, cache in zip(self.layers, caches, strict=True):
            layer.self_attn.keep(contexts, cache)

    def _draft(
        self, states: mx.array, last: mx.array, caches: list[DraftCache], num: int, choose: Choose
    ) -> mx.array:
        num_masks = num - self._config.drafts_at_known
        masks = mx.full((last.shape[0], num_masks), self._config.mask_token_id, last.dtype)
        context = self._contexts(states)
        x = self._embed(mx.concatenate([last, masks], axis=1))
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, context, cache)
        x = self.norm(x[:, -num:])
        term = self.get("candidate_selector") or self.get("markov_head")
        if term is None and "lm_head" not in self:
            return choose(self._ends.logits(x), 0)
        logits = self._logits(x)
        if term is None:
            return choose(logits, 0)
        drafted = [last]
        for place in range(num):
            one = term.add(logits[:, place], x[:, place], drafted[-1][:, 0])
            drafted.append(choose(one[:, None], place))
        return mx.concatenate(drafted[1:], axis=1)

    def _embed(self, ids: mx.array) -> mx.array:
        made: mx.array = (self.get("embed_tokens") or self._ends.raw_embed)(ids)
        return made * self._config.embedding_scale

    def _logits(self, states: mx.array) -> mx.array:
        logits: mx.array = (self.get("lm_head") or self._ends.raw_logits)(states) * self._config.logit_scale
        cap = self._config.logit_cap
        return mx.tanh(logits / cap) * cap if cap else logits

    def set_bounds(self, sink: int, window: int) -> None:
        """Keep only the first `sink` and the last `window` positions of long texts.

        Raises ValueError if layers have windows of their own, or positions are scaled.
        """
        if any(layer.window for layer in self.layers):
            raise ValueError("some of its layers have windows of their own")
        some = mx.random.normal((1, 1, 1, self.layers[0].self_attn.head_dim), key=mx.random.key(0))
        for rope in (layer.self_attn.rope for layer in self.layers):
            if not mx.allclose(rope(rope(some, offset=100), offset=-60), rope(some, offset=40), atol=1e-4):
                raise ValueError("keys cannot be moved, as its positions are scaled")
        self.bounds = Bounds(sink, window, self._move)

    def _move(self, kept: KVSlice, num: int) -> KVSlice:
        moved = list(kept)
        for layer, at in zip(self.layers, range(0, len(kept), 2), strict=True):
            # One position a row, so that all are turned back by the same angle.
            apart = kept[at].transpose(2, 1, 0, 3)
            moved[at] = layer.self_attn.rope(apart, offset=-num).transpose(2, 1, 0, 3)
        return moved

    def _contexts(self, states: mx.array) -> mx.array:
        if norms := self.get("aux_hidden_norms"):
            parts = mx.split(states, len(norms), axis=-1)
            states = mx.concatenate([norm(part) for norm, part in zip(norms, parts, strict=True)], axis=-1)
        made: mx.array = self.hidden_norm(self.fc(states))
        return made


MUSE_TYPE = "muse_glimmer_assistant"
GEMMA_MASK = 4
"""Gemma 4's own mask token; its drafters do not name it."""


def read_config(config: Mapping[str, Any]) -> DFlashConfig:
    """Parse a config.json. Raises AttributeError, KeyError, TypeError or ValueError if it cannot be read."""
    own, kind = _flat(config), _kind_of(config)
    num_layers, model_type = int(own["num_hidden_layers"]), str(own.get("model_type", ""))
    taps = own.get("target_layer_ids") or spread_taps(int(own["num_target_layers"]), num_layers)
    layer_types = own.get("layer_types") or ["full_attention"] * num_layers
    if len(layer_types) != num_layers or not set(layer_types) <= {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types {layer_types} of {num_layers} layers")
    is_muse, is_dspark = model_type == MUSE_TYPE, _is_dspark(config)
    # Muse Glimmer's has as many tokens besides the one that sees.
    window = int(own.get("swa_window_size") or own.get("sliding_window") or 0) + is_muse
    rope = own.get("rope_parameters") or {}
    head_dim = own.get("head_dim") or own["hidden_size"] // own["num_attention_heads"]
    num_kv_heads = own["num_key_value_heads"]
    if unknown := {name for name in _UNKNOWN if own.get(name)}:
        raise ValueError(f"{', '.join(sorted(unknown))} is not supported")
    if (
        own.get("projector_type") not in (None, "dspark")
        or own.get("markov_head_type", "vanilla") != "vanilla"
    ):
        raise ValueError("a projector_type or markov_head_type that is not supported")
    if "sliding_attention" in layer_types and not window:
        raise ValueError("sliding layers without a sliding_window")
    if kind == "gemma4":
        if "sliding_attention" in layer_types:
            raise ValueError("sliding layers as in Gemma 4")
        rope = rope["full_attention"]
        head_dim = own.get("global_head_dim") or head_dim
        num_kv_heads = own.get("num_global_key_value_heads") or num_kv_heads
    if model_type.startswith("gemma4"):
        own.setdefault("mask_token_id", GEMMA_MASK)
    said = [own.get(name) for name in ("causal", "dflash_query_causal", "is_causal")]
    rope_scaling = own.get("rope_scaling") or rope or None
    check_rope(rope_scaling or {})
    is_causal = next((bool(one) for one in said if one is not None), False if is_muse else None)
    counts_known = not is_dspark or bool(own.get("dspark_bonus_anchor"))
    return DFlashConfig(
        hidden_size=int(own["hidden_size"]),
        intermediate_size=int(own["intermediate_size"]),
        num_attention_heads=int(own["num_attention_heads"]),
        num_key_value_heads=int(num_kv_heads),
        head_dim=int(head_dim),
        rms_norm_eps=float(own["rms_norm_eps"]),
        rope_theta=float(rope.get("rope_theta") or own["rope_theta"]),
        rope_scaling=rope_scaling,
        max_position_embeddings=int(own["max_position_embeddings"]),
        attention_bias=bool(own.get("attention_bias", False)),
        num_drafted=int(own["block_size"]) - counts_known,
        mask_token_id=int(own["mask_token_id"]),
        taps=tuple(map(int, taps)),
        windows=tuple(window if one == "sliding_attention" else None for one in layer_types),
        drafts_at_known=is_dspark and bool(own.get("sample_from_anchor", True)),
        is_causal=is_causal,
        slides=is_muse or (is_causal is not False and kind != "laguna"),
        has_sinks=bool(own.get("attention_sink_bias", False)),
        conv_width=int(own.get("conv_kernel_size", 0)),
        conv_group=int(own.get("conv_group_size", 0)),
        candidates=int(own.get("selector_top_k", 0)),
        rank=int(own.get("selector_rank") or own.get("markov_rank") or 0),
        vocab_size=int(own.get("vocab_size") or 0),
        kind=kind,
        rotates_neighbors=not own.get("rope_is_neox_style", True),
        embedding_scale=float(own.get("input_embedding_scale", 1.0)),
        logit_scale=float(own.get("output_multiplier", 1.0)),
        logit_cap=float(own.get("final_logit_softcapping") or 0.0),
    )


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all entries: those of the drafting stand in a part of their own, or among the others."""
    return {**config, **(config.get("dflash_config") or {})}


def _kind_of(config: Mapping[str, Any]) -> str:
    if config.get("model_type") == "laguna":
        return "laguna"
    return "gemma4" if _has(config, "Gemma4DSparkModel") else "qwen3"


def _has(config: Mapping[str, Any], architecture: str) -> bool:
    return architecture in (config.get("architectures") or ())


def _is_dspark(config: Mapping[str, Any]) -> bool:
    own = _flat(config)
    is_named = any("DSpark" in str(name) for name in config.get("architectures") or ())
    return is_named or own.get("projector_type") == "dspark" or bool(own.get("markov_rank"))


_UNKNOWN = ("attention_value_scale", "use_swa", "partial_rotary_factor")
"""Entries that change what a drafter computes, and that nothing here knows."""


def spread_taps(num_target_layers: int, num: int) -> tuple[int, ...]:
    """Return the target's layers that a DFlash drafter of num layers reads by default."""
    if num == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(round(1 + place * span / (num - 1)) for place in range(num))


def _make(config: Mapping[str, Any], target: Target, places: Collection[str]) -> DFlashHead:
    own, due = read_config(config), text_config(target.config)
    check_size("hidden_size", own.hidden_size, due.get("hidden_size"))
    if own.vocab_size:
        check_vocabulary(own.vocab_size, target)
    own = replace(own, vocab_size=own.vocab_size or due.get("vocab_size") or target.vocab_size)
    num_layers = _flat(config).get("num_target_layers", target.num_layers)
    check_size("num_target_layers", num_layers, target.num_layers)
    check_taps(own.taps, target)
    if not 0 <= own.mask_token_id < target.vocab_size:
        vocabulary = f"the vocabulary of {target.vocab_size} tokens"
        raise MisfitError(f"its mask_token_id {own.mask_token_id} is not in {vocabulary}")
    if own.num_drafted < 1:
        raise MisfitError(f"its block_size is {own.num_drafted + 1}, which leaves nothing to draft")
    if wrong := [name for name, is_wrong in _find_wrong(own).items() if is_wrong]:
        raise ValueError(f"no draft can be made with its {' and '.join(wrong)}")
    if own.kind == "gemma4" or str(due.get("model_type")).startswith("gemma"):
        # These models' embeddings count as scaled.
        own = replace(own, embedding_scale=own.embedding_scale * own.hidden_size**0.5)
    return DFlashHead(own, target.ends, {place.partition(".")[0] for place in places})


def _find_wrong(config: DFlashConfig) -> dict[str, bool]:
    """Return which entries no draft can be made with, though arrays may fit them."""
    return {
        "head_dim": config.head_dim % 2 > 0,
        "num_key_value_heads": config.num_key_value_heads < 1
        or config.num_attention_heads % config.num_key_value_heads > 0,
        "sliding_window": any(window is not None and not 1 < window < 2**31 for window in config.windows),
        "conv_group_size": config.conv_width > 0 and config.hidden_size % config.conv_group > 0,
        "selector_top_k": not 0 <= config.candidates <= config.vocab_size,
    }


_RENAMED = {
    "encoder.fc.": "fc.",
    "encoder.output_norm_enc.": "hidden_norm.",
    "candidate_selector.predecessor_codebook": "candidate_selector.predecessor_codebook.weight",
    "candidate_selector.successor_codebook": "candidate_selector.successor_codebook.weight",
}


def _place(name: str) -> str:
    name = name.removeprefix("model.")
    if name.startswith("confidence_head.") or "rotary_emb." in name:
        return ""
    for published, renamed in _RENAMED.items():
        if name == published or (published.endswith(".") and name.startswith(published)):
            return renamed + name.removeprefix(published)
    return name


def _split(weights: dict[str, mx.array], _: Mapping[str, Any]) -> dict[str, mx.array]:
    """Split Laguna's joined queries, keys and values, whose heads follow from the output projection."""
    split = dict[str, mx.array]()
    for name, array in weights.items():
        if ".qkv_proj." not in name:
            split[name] = array
            continue
        layer = name.partition(".qkv_proj.")[0]
        head_dim = weights[f"{layer}.q_norm.weight"].size
        num_q = head_dim * weights[f"{layer}.g_proj.weight"].shape[0]
        num_kv = (array.shape[0] - num_q) // 2
        parts = mx.split(array, [num_q, num_q + num_kv], axis=0)
        split |= {name.replace("qkv", letter): part for letter, part in zip("qkv", parts, strict=True)}
    return split


def _published(name: str, describes: Callable[[Mapping[str, Any]], bool]) -> Published:
    # Speculators' own checkpoints have other entries and, mostly, a part of the vocabulary.
    def is_known(config: Mapping[str, Any]) -> bool:
        return describes(config) and "speculators_model_type" not in config

    return Published(name, "dflash", is_known, _make, _place, _split)


PUBLISHED = (
    _published("DFlash 2 drafter", lambda config: _has(config, "DFlash2DraftModel")),
    _published("Muse Glimmer assistant", lambda config: config.get("model_type") == MUSE_TYPE),
    _published("DSpark drafter", _is_dspark),
    _published("DFlash drafter", lambda c: _has(c, "DFlashDraftModel") or bool(c.get("dflash_config"))),
)
"""The kinds that are published; the first that describes a configuration counts."""
