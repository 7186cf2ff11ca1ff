"""A multi-token-prediction head: it predicts a token from the target's state and the token after that.

    x = fc([norm(embedding of t(p + 1)); norm(state at p)])
    y = layer(x)                  attends to the earlier x of the head's own cache, at position p
    t(p + 2) = the target's output head applied to norm(y)

To predict one token more, at position p + 1, y or its norm is used in place of the state, and so on.

Source: DeepSeek-V3 (arXiv:2412.19437), section 2.2; Qwen3-Next's checkpoints, for the names of the tensors.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx_lm.models.base import create_attention_mask
from mlx_lm.models.cache import KVCache

from reprise.engine.speculative.heads.families import Family
from reprise.engine.speculative.heads.head import Bounds, Choose, DraftCache, TargetEnds


class MTPHead(Module):
    """One decoder layer of the target's kind, applied again to its own output for every further token."""

    def __init__(self, family: Family, config: dict[str, Any], ends: TargetEnds, max_drafted: int) -> None:
        """Make a head with random weights.

        config: the target's, or of the head's own layer. max_drafted: maximum tokens of a draft.
        """
        super().__init__()
        hidden, eps = int(config["hidden_size"]), float(config["rms_norm_eps"])
        self.taps = family.taps(config)
        self.max_drafted = max_drafted
        self.bounds: Bounds | None = None
        self.fc = Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = RMSNorm(hidden, eps)
        self.pre_fc_norm_hidden = RMSNorm(hidden, eps)
        self.layers = [family.make_layer(config)]
        self.norm = RMSNorm(hidden, eps)
        self._family = family
        self._ends = ends

    def make_cache(self) -> list[Any]:
        """Make the empty cache of the head's only layer, for one row."""
        return [KVCache()]

    def feed(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> None:
        """Feed committed positions; see Head. The output is dropped, so MLX computes only keys and values."""
        self._apply(states, following, caches[0])

    def draft(
        self, states: mx.array, last: mx.array, caches: Sequence[Any], num: int, choose: Choose
    ) -> mx.array:
        """Draft token by token; see Head."""
        cache = DraftCache(caches[0])
        state, token, drafted = states[:, None], last[:, None], []
        for place in range(num):
            state = self._apply(state, token, cache)
            normed = self.norm(state)
            token = choose(self._ends.logits(normed), place)
            drafted.append(token)
            state = normed if self._family.recurses_normed else state
        cache.give_back()
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
