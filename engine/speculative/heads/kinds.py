"""The two kinds of heads: multi-token prediction (MTP) and DFlash."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx_lm.models.base import create_attention_mask, scaled_dot_product_attention
from mlx_lm.models.cache import KVCache
from mlx_lm.models.qwen3 import MLP
from mlx_lm.models.rope_utils import initialize_rope

from reprise.engine.kv_cache.buffers import KVSlice
from reprise.engine.kv_cache.sliding_window import WindowKVCache
from reprise.engine.speculative.heads.formats import Family
from reprise.engine.speculative.heads.head import Bounds, Choose, DraftCache, TargetEnds


class _HeadModule(Module):
    """The common base: inputs are joined into a state, and a draft writes each cache once.

    num_joined: how many arrays of the hidden size are joined.
    """

    def __init__(self, num_joined: int, hidden: int, eps: float, ends: TargetEnds, max_drafted: int) -> None:
        super().__init__()
        self.max_drafted = max_drafted
        self.bounds: Bounds | None = None
        self.fc = Linear(num_joined * hidden, hidden, bias=False)
        self.norm = RMSNorm(hidden, eps)
        self._ends = ends

    def draft(
        self, states: mx.array, last: mx.array, caches: Sequence[Any], num: int, choose: Choose
    ) -> mx.array:
        """Draft the tokens that come after `last`; see Head."""
        drafting = [DraftCache(cache) for cache in caches]
        drafted = self._draft(states[:, None], last[:, None], drafting, num, choose)
        for cache in drafting:
            cache.give_back()
        return drafted

    def _draft(
        self, states: mx.array, last: mx.array, caches: list[DraftCache], num: int, choose: Choose
    ) -> mx.array:
        """Draft from states (rows, 1, size) and the tokens after them (rows, 1)."""
        raise NotImplementedError


class MTPHead(_HeadModule):
    """One decoder layer like the target's, applied to its own output for every further token."""

    taps: tuple[int, ...] = ()

    def __init__(self, family: Family, config: dict[str, Any], ends: TargetEnds, max_drafted: int) -> None:
        """Make a head with random weights.

        config: the target's, or of the head's own layer. max_drafted: maximum tokens of a draft.
        """
        hidden, eps = int(config["hidden_size"]), float(config["rms_norm_eps"])
        super().__init__(2, hidden, eps, ends, max_drafted)
        self.pre_fc_norm_embedding = RMSNorm(hidden, eps)
        self.pre_fc_norm_hidden = RMSNorm(hidden, eps)
        self.layers = [family.make_layer(config)]
        self._family = family

    def make_cache(self) -> list[Any]:
        """Make the empty cache of the head's only layer, for one row."""
        return [KVCache()]

    def feed(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> None:
        """Feed committed positions; see Head. The output is unused, so MLX computes only keys and values."""
        self._apply(states, following, caches[0])

    def _draft(
        self, states: mx.array, last: mx.array, caches: list[DraftCache], num: int, choose: Choose
    ) -> mx.array:
        token, drafted = last, []
        for place in range(num):
            states = self._apply(states, token, caches[0])
            normed = self.norm(states)
            token = choose(self._ends.logits(normed), place)
            drafted.append(token)
            states = normed if self._family.recurses_normed else states
        return mx.concatenate(drafted, axis=1)

    def _apply(self, states: mx.array, following: mx.array, cache: Any) -> mx.array:
        """Return the layer's output for states and the tokens after them: (rows, width, hidden)."""
        embedded = self._ends.embed(following)
        if self._family.hides_first:
            offset = cache.offset
            starts = offset[:, None] if isinstance(offset, mx.array) else offset
            is_first = (starts + mx.arange(following.shape[1]) == 0)[..., None]
            embedded = mx.where(is_first, mx.zeros((), embedded.dtype), embedded)
        x = self.fc(
            mx.concatenate([self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(states)], axis=-1)
        )
        mask = create_attention_mask(x, cache, return_array=self._family.masks_are_arrays)
        made: mx.array = self.layers[0](x, mask, cache)
        return made


@dataclass(frozen=True)
class DFlashConfig:
    """The configuration of a DFlash drafter.

    taps: the target's layers whose outputs the drafter reads, counted from 0.
    mask_token_id: the token that stands for an unknown one.
    windows: (layers,) how many tokens a sliding layer sees, with the block's first; None for all.
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
    block_size: int
    mask_token_id: int
    taps: tuple[int, ...]
    windows: tuple[int | None, ...]


class Attention(Module):
    """Qwen 3's attention: a block of drafted positions attends to the context and to itself."""

    def __init__(self, config: DFlashConfig, window: int | None) -> None:
        super().__init__()
        hidden, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.head_dim = head_dim
        # The block's first token takes one place of the window.
        self.context_window = window and window - 1
        self.q_proj = Linear(hidden, config.num_attention_heads * head_dim, bias=bias)
        self.k_proj = Linear(hidden, config.num_key_value_heads * head_dim, bias=bias)
        self.v_proj = Linear(hidden, config.num_key_value_heads * head_dim, bias=bias)
        self.o_proj = Linear(config.num_attention_heads * head_dim, hidden, bias=bias)
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps)
        self.rope = initialize_rope(
            head_dim,
            base=config.rope_theta,
            traditional=False,
            scaling_config=config.rope_scaling,
            max_position_embeddings=config.max_position_embeddings,
        )

    def keep(self, x: mx.array, cache: Any) -> tuple[mx.array, mx.array]:
        """Put the keys and values of x (rows, width, hidden) into a cache; return all that it holds."""
        keys, values = self._heads(self.k_proj(x)), self._heads(self.v_proj(x))
        keys = self.rope(self.k_norm(keys), offset=cache.offset)
        held: tuple[mx.array, mx.array] = cache.update_and_fetch(keys, values)
        return held

    def __call__(self, x: mx.array, context: mx.array, cache: DraftCache) -> mx.array:
        """Attend from a block (rows, places, hidden) to contexts (rows, 1, hidden), those held and itself."""
        cache.make_mask(1, window_size=self.context_window)
        self.keep(context, cache)
        mask = cache.make_mask(x.shape[1])
        queries = self.rope(self.q_norm(self._heads(self.q_proj(x))), offset=cache.offset)
        keys, values = self.keep(x, cache)
        seen = scaled_dot_product_attention(
            queries, keys, values, cache=None, scale=self.head_dim**-0.5, mask=mask
        )
        attended: mx.array = self.o_proj(seen.transpose(0, 2, 1, 3).flatten(2))
        return attended

    def _heads(self, x: mx.array) -> mx.array:
        return x.reshape(*x.shape[:2], -1, self.head_dim).transpose(0, 2, 1, 3)


class Layer(Module):
    """A decoder layer as in Qwen 3, with attention to contexts."""

    def __init__(self, config: DFlashConfig, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.self_attn = Attention(config, window)
        self.mlp = MLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def __call__(self, x: mx.array, context: mx.array, cache: DraftCache) -> mx.array:
        """Apply the layer to a block (rows, places, hidden)."""
        h = x + self.self_attn(self.input_layernorm(x), context, cache)
        made: mx.array = h + self.mlp(self.post_attention_layernorm(h))
        return made


class DFlashHead(_HeadModule):
    """A head that drafts a whole block of tokens in one pass."""

    def __init__(self, config: DFlashConfig, ends: TargetEnds) -> None:
        """Make a drafter with random weights, which keeps all of a text."""
        hidden, eps = config.hidden_size, config.rms_norm_eps
        super().__init__(len(config.taps), hidden, eps, ends, config.block_size - 1)
        self.taps = config.taps
        self.hidden_norm = RMSNorm(hidden, eps)
        self.layers = [Layer(config, window) for window in config.windows]
        self._mask_token_id = config.mask_token_id

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
        masks = mx.full((last.shape[0], num), self._mask_token_id, last.dtype)
        context = self._contexts(states)
        x = self._ends.embed(mx.concatenate([last, masks], axis=1))
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, context, cache)
        return choose(self._ends.logits(self.norm(x[:, 1:])), 0)

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
        made: mx.array = self.hidden_norm(self.fc(states))
        return made
