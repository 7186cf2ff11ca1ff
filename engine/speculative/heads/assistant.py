"""Gemma 4's assistant: it has no keys and values of its own, but attends to the target's.

    (embedding of the last token, state before it), at that token's position, over the target's last layers
        -> state and token, again and again at the same position

Source: google/gemma-4-*-assistant; transformers and mlx-vlm, for the layout. The position is transformers';
mlx-vlm takes the one before.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm
from mlx_lm.models.gemma4_text import DecoderLayer, ModelArgs

from reprise.engine.speculative.heads.head import (
    Choose,
    HeadModule,
    MisfitError,
    Published,
    Target,
    TargetEnds,
    check_size,
    text_config,
)


class RoutedOutput(Module):
    """Scores only the tokens of the clusters whose centroids a state matches best.

    token_ordering: (vocabulary,) ids, cluster after cluster.
    """

    def __init__(self, hidden: int, vocab_size: int, num_centroids: int, num_chosen: int) -> None:
        super().__init__()
        self.centroids = Linear(hidden, num_centroids, bias=False)
        self.token_ordering = mx.arange(vocab_size)
        self._num_chosen = num_chosen

    def __call__(self, x: mx.array, embed: Module) -> mx.array:
        """Return logits (rows, 1, vocabulary) of states (rows, 1, hidden); -inf for tokens not scored."""
        scores = self.centroids(x)
        chosen = mx.argpartition(-scores, self._num_chosen - 1, axis=-1)[..., : self._num_chosen]
        ids = self.token_ordering.reshape(scores.shape[-1], -1)[chosen].flatten(-2)
        logits = (embed(ids) @ x[..., None]).squeeze(-1)
        none = mx.full((*x.shape[:-1], self.token_ordering.size), -mx.inf, logits.dtype)
        return mx.put_along_axis(none, ids, logits, axis=-1)


class AssistantHead(HeadModule):
    """Layers like the target's, which only make queries; their input is joined from embedding and state."""

    taps: tuple[int, ...] = ()
    reads_target = True

    def __init__(self, config: Mapping[str, Any], ends: TargetEnds) -> None:
        """Make an assistant with random weights. It drafts any number of tokens.

        config: its config.json.
        Raises KeyError, TypeError or ValueError if an entry is missing or wrong.
        """
        super().__init__(ends, sys.maxsize)
        args, backbone = read_args(config), int(config["backbone_hidden_size"])
        self.embed_tokens = Embedding(args.vocab_size, args.hidden_size)
        self.layers = [DecoderLayer(args, number) for number in range(args.num_hidden_layers)]
        self.norm = RMSNorm(args.hidden_size, args.rms_norm_eps)
        self.pre_projection = Linear(2 * backbone, args.hidden_size, bias=False)
        self.post_projection = Linear(args.hidden_size, backbone, bias=False)
        self.masked_embedding: RoutedOutput | None = None
        if config.get("use_ordered_embeddings"):
            num_centroids, num_chosen = (
                int(config["num_centroids"]),
                int(config["centroid_intermediate_top_k"]),
            )
            if args.vocab_size % num_centroids or not 0 < num_chosen <= num_centroids:
                raise ValueError(f"{num_chosen} of {num_centroids} centroids for {args.vocab_size} tokens")
            self.masked_embedding = RoutedOutput(args.hidden_size, args.vocab_size, num_centroids, num_chosen)

    def make_cache(self) -> list[Any]:
        """Return no caches; see Head."""
        return []

    def feed(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> None:
        """Do nothing; see Head."""

    def draft(
        self, states: mx.array, last: mx.array, caches: Sequence[Any], num: int, choose: Choose
    ) -> mx.array:
        """Draft the tokens that come after `last`; see Head."""
        full, window = caches
        state, token, drafted = states[:, None], last[:, None], []
        for place in range(num):
            x = self.pre_projection(mx.concatenate([self._ends.embed(token), state], axis=-1))
            for layer in self.layers:
                seen = window if layer.self_attn.is_sliding else full
                x, *_ = layer(x, None, seen, shared_kv=seen.keys_and_values, offset=seen.offset)
            x = self.norm(x)
            state = self.post_projection(x)
            token = choose(self._logits(x), place)
            drafted.append(token)
        return mx.concatenate(drafted, axis=1)

    def _logits(self, x: mx.array) -> mx.array:
        if self.masked_embedding is not None:
            return self.masked_embedding(x, self.embed_tokens)
        made: mx.array = self.embed_tokens.as_linear(x)
        return made


def read_args(config: Mapping[str, Any]) -> ModelArgs:
    """Parse an assistant's config.json to the arguments of its layers. Raises KeyError or TypeError."""
    text = dict(config["text_config"])
    shared = {"num_kv_shared_layers": text["num_hidden_layers"], "hidden_size_per_layer_input": 0}
    made: ModelArgs = ModelArgs.from_dict(text | shared)
    return made


def _make(config: Mapping[str, Any], target: Target, places: Collection[str]) -> AssistantHead:  # noqa: ARG001
    kind = str(target.config.get("model_type"))
    if not kind.startswith("gemma4"):
        raise MisfitError(f"the model is a {kind}")
    head, own = AssistantHead(config, target.ends), read_args(config)
    due = ModelArgs.from_dict(text_config(target.config))
    check_size("backbone_hidden_size", int(config["backbone_hidden_size"]), due.hidden_size)
    if own.vocab_size != due.vocab_size:
        check_size("vocab_size", own.vocab_size, target.vocab_size)
    for key in ("head_dim", "global_head_dim", "sliding_window"):
        check_size(key, getattr(own, key), getattr(due, key))
    num_heads, num_shared = own.num_attention_heads, due.num_key_value_heads
    for num in (num_shared, (due.attention_k_eq_v and due.num_global_key_value_heads) or num_shared):
        if num_heads % num:
            raise MisfitError(f"its {num_heads} heads cannot share {num} of keys")
    return head


PUBLISHED = Published(
    "Gemma 4 assistant",
    "mtp",
    lambda config: config.get("model_type") in ("gemma4_assistant", "gemma4_unified_assistant"),
    _make,
    # The output head is the embedding again.
    lambda name: "" if name == "lm_head.weight" else name.removeprefix("model."),
)
