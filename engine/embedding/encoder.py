"""BERT and those that followed it (see architecture.py) in MLX: one encoder, and the names of its weights.

token, type and position embeddings -> norm -> layers: attention, feed forward -> states
"""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import LayerNorm

from reprise.engine.embedding.architecture import (
    ACTIVATIONS,
    Config,
    Design,
    Mask,
    Masks,
    attend_before,
    attend_less_with_distance,
    attend_near,
    attend_to_all,
    find_design,
)
from reprise.engine.interface.embeddings import EmbeddingInfo, Recipe
from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.model.files.model_folder import GEMMA
from reprise.engine.text.tokenizer import Tokenizer


class _Stand:
    """Replaces a layer's cache. offset: tokens before those that are fed.

    whole: the keys and values to attend to; None for those that the layer passes in.
    made: the keys and values that the layer passed in.
    """

    def __init__(self, offset: int, whole: Sequence[mx.array] | None = None) -> None:
        self.offset = offset
        self.made: Sequence[mx.array] = ()
        self._whole = whole

    def update_and_fetch(self, *added: mx.array) -> Sequence[mx.array]:
        self.made = added
        return self._whole or added


class CutLayer:
    """A layer computed in parts. The parts' sizes do not change a bit of the result.

    hidden: the layer's input, (texts, tokens, size). mask: of the pass. before: the layer's keys and values
    of the prefix, or None. grows: whether `before` stores what it is fed, as a cache does.
    """

    def __init__(
        self, layer: Callable[..., mx.array], hidden: mx.array, mask: Masks, before: Any, *, grows: bool
    ) -> None:
        self._layer, self._hidden, self._mask, self._before = layer, hidden, mask, before
        self._grows = grows
        self._num_before = before.offset if before is not None else 0
        self._made: list[Sequence[mx.array]] = []
        self._whole: Sequence[mx.array] | None = None
        self._fed: list[mx.array] = []
        self._num_keyed = self._num_fed = 0

    @property
    def states(self) -> mx.array | None:
        """The states after the layer; None before all are computed."""
        return mx.concatenate(self._fed, axis=1) if self._num_fed == self._hidden.shape[1] else None

    def advance(self, most: int) -> tuple[Sequence[mx.array], int]:
        """Return arrays to evaluate next, for up to `most` tokens of each text, and how many these are.

        The number is 0 if they are keys and values only.
        """
        width = self._hidden.shape[1]
        if self._whole is None and not self._grows:
            start, self._num_keyed = self._num_keyed, min(width, self._num_keyed + most)
            stand = _Stand(self._num_before + start)
            self._layer(self._hidden[:, start : self._num_keyed], Masks(None, None), stand)
            self._made.append(stand.made)
            if self._num_keyed == width:
                whole = [mx.concatenate(list(one), axis=2) for one in zip(*self._made, strict=True)]
                self._whole = self._before.update_and_fetch(*whole) if self._before is not None else whole
                self._made = []
                return self._whole, 0
            return stand.made, 0
        start, end = self._num_fed, min(width, self._num_fed + most)
        self._num_fed = end
        cache = self._before
        is_causal = isinstance(self._mask.whole, str)
        seen = self._num_before + end if is_causal else self._num_before + width
        if self._whole is not None:
            cache = _Stand(self._num_before + start, [one[:, :, :seen] for one in self._whole])
        masks = Masks(*(_of_rows(one, start, end, seen) for one in self._mask))
        self._fed.append(self._layer(self._hidden[:, start:end], masks, cache))
        return (self._fed[-1],), end - start


def _of_rows(mask: Mask | None, start: int, end: int, seen: int) -> Mask | None:
    """Return a mask's part for some tokens. seen: leading tokens that they may attend to."""
    if mask is None or isinstance(mask, str):
        return mask
    rows = mask if mask.shape[-2] == 1 else mask[..., start:end, :]
    return rows[..., :seen]


DECODERS = frozenset({"qwen2", "qwen3", "llama", "mistral", GEMMA})
"""Model types whose layers take the same arguments: states and a mask."""

Answers = tuple[int, int]
"""The tokens of yes and no."""


class Decoder:
    """The body of a decoder model, used to embed or rank.

    layers: functions of the states and the masks, one per layer. end: the norm of the states after them.
    make_caches: makes empty caches for shared prefixes; None if attention is bidirectional or windowed.
    max_tokens: the longest text; None if nothing limits it.
    answers: the ids of the tokens yes and no, for a model that ranks; else None.
    """

    def __init__(
        self, model: Any, config: dict[str, Any], max_tokens: int | None, answers: Answers | None = None
    ) -> None:
        body, is_gemma = model.model, config.get("model_type") == GEMMA
        is_local, window = find_local(config), int(config.get("sliding_window") or 0)
        self.layers = [_masked(*pair) for pair in zip(body.layers, is_local, strict=True)]
        self._embed, self.end = body.embed_tokens, body.norm
        self._scale = config["hidden_size"] ** 0.5 if is_gemma else 1
        sees_all = config.get("use_bidirectional_attention", is_gemma)
        self._is_causal = config.get("is_causal", not sees_all)
        # e5-mistral has a window as long as its longest text.
        holds_all = self._is_causal and max_tokens is not None and max_tokens <= window
        self._window = window if any(is_local) and not holds_all else 0
        can_continue = self._is_causal and not self._window
        self.make_caches = partial(make_caches, model) if can_continue else None
        self._yes_not_no = _difference(model, answers) if answers else None

    def begin(self, tokens: mx.array, _: mx.array, num_tokens: mx.array) -> tuple[mx.array, Masks]:
        """Return the states before the first layer, and the masks. See Encoder.begin()."""
        hidden, width = self._embed(tokens), tokens.shape[1]
        hidden = hidden * mx.array(self._scale, hidden.dtype)
        whole: Mask = "causal" if self._is_causal else attend_to_all(num_tokens, width)
        if not self._window:
            return hidden, Masks(whole, whole)
        if self._is_causal:
            return hidden, Masks(whole, attend_before(width, self._window))
        # A bidirectional window extends by half its size to either side.
        return hidden, Masks(whole, attend_near(num_tokens, width, self._window // 2))

    def rate(self, states: mx.array) -> mx.array:
        """Return the score of a pair, (1,): the logit of yes as the next token, less that of no.

        states: (tokens, size) after the last layer.
        """
        assert self._yes_not_no is not None
        return states[-1:].astype(mx.float32) @ self._yes_not_no


def find_local(config: dict[str, Any]) -> list[bool]:
    """Return, for each layer, whether its tokens attend to a window only."""
    num_layers, kind = config["num_hidden_layers"], config.get("model_type")
    if kinds := config.get("layer_types"):
        return [one == "sliding_attention" for one in kinds]
    if kind == GEMMA:
        every = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern") or 6
        return [(index + 1) % every > 0 for index in range(num_layers)]
    if kind == "mistral":
        return [bool(config.get("sliding_window"))] * num_layers
    first = config.get("max_window_layers", 0) if config.get("use_sliding_window") else num_layers
    return [index >= first for index in range(num_layers)]


def _masked(layer: Any, kind: int) -> Callable[..., mx.array]:
    """Return a function that calls a layer with its mask. kind: index into Masks."""
    return lambda hidden, masks, *before: layer(hidden, masks[kind], *before)


def _difference(model: Any, answers: Answers) -> mx.array:
    """Return the output head's row for yes minus that for no: (size, 1)."""
    head = model.lm_head if "lm_head" in model else model.model.embed_tokens
    ids = mx.array(answers)
    rows = head.weight[ids]
    if "scales" in head:
        biases = head.biases[ids] if "biases" in head else None
        rows = mx.dequantize(
            rows, head.scales[ids], biases, group_size=head.group_size, bits=head.bits, mode=head.mode
        )
    rows = rows.astype(mx.float32)
    difference: mx.array = rows[0] - rows[1]
    return difference[:, None]


BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
PAIR = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>:"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


JUDGE = "qwen3"
"""Model type of Qwen3-Reranker."""


def describe_judge(tokenizer: Tokenizer) -> EmbeddingInfo:
    """Describe how the model rates pairs, with the template's tokens around a pair's text."""
    before, after = (tuple(tokenizer.encode_answer(text)) for text in (BEFORE, AFTER))
    return EmbeddingInfo(1, Recipe("last"), before=before, after=after, pair=PAIR, instruction=INSTRUCTION)


def find_answers(tokenizer: Tokenizer, told: tuple[int | None, int | None] | None) -> Answers:
    """Return the ids of the tokens yes and no. told: the ids in the model's folder, if any.

    Raises ModelError if yes or no takes several tokens, or the folder names other ids.
    """
    yes, no = (tokenizer.encode_answer(word) for word in ("yes", "no"))
    if len(yes) != 1 or len(no) != 1:
        raise ModelError("it has no single tokens for yes and no, by which models that decode rank")
    if told not in (None, (yes[0], no[0])):
        raise ModelError(f"it ranks by the tokens {told}, not by yes and no after Qwen3-Reranker's template")
    return yes[0], no[0]


_NAMES = {
    "embeddings.norm": r"embeddings\.LayerNorm|emb_ln",
    "embeddings.tokens": r"embeddings\.(word|tok)_embeddings",
    "embeddings.positions": r"embeddings\.position_embeddings",
    "embeddings.types": r"embeddings\.token_type_embeddings",
    "layers.": r"encoder\.layers?\.",
    "attention.": r"attention\.self\.|mixer\.|attn\.",
    "attention.out": r"attention\.(output\.dense|out_proj|o_proj|Wo)",
    "attention_norm": r"attention\.output\.LayerNorm|attn_norm|attn_ln|norm1",
    "norm": r"output\.LayerNorm|mlp_norm|mlp_ln|mlp\.layernorm|norm2",
    "gate": r"mlp\.fc12",
    "up": r"intermediate\.dense|mlp\.fc11?",
    "down": r"output\.dense|mlp\.(fc2|down_proj|Wo|wo)",
    "classifier.": r"head\.",
    "classifier.out": r"classifier\.out_proj",
    ".weight": r"\.gamma",
    ".bias": r"\.beta",
}
"""Names of parts of an encoder, and patterns of those that checkpoints give them, in order."""

_JOINED = {
    "attention.Wqkv": ("attention.query", "attention.key", "attention.value"),
    "attention.qkv_proj": ("attention.query", "attention.key", "attention.value"),
    "mlp.Wi": ("gate", "up"),
    "mlp.gated_layers": ("gate", "up"),
    "mlp.up_gate_proj": ("up", "gate"),
}
"""Weights that some checkpoints keep as one, and those that they are here, in the order of their rows."""

_PREFIXES = ("bert.", "roberta.", "model.", "new.")
_UNUSED = ("pooler.", "cls.", "lm_head.", "decoder.", "embeddings.position_ids")


class Attention(Module):
    """Attention of every token to all tokens of its text, or, if is_local, to those nearby."""

    def __init__(self, config: Config, design: Design, *, is_local: bool) -> None:
        super().__init__()
        self.num_heads = config["num_attention_heads"]
        self.query, self.key, self.value, self.out = (
            Linear(config["hidden_size"], config["hidden_size"]) for _ in range(4)
        )
        self._is_local, self._base, self._scale = is_local, design.bases[is_local], design.position_scale

    def __call__(self, hidden: mx.array, masks: Masks, cache: Any = None) -> mx.array:
        """Return the outcome of attention, (texts, tokens, size). hidden: the states, of the same shape.

        cache: says where these tokens stand in the text, and gives all keys and values; None for all tokens.
        """
        num_texts, num_tokens, size = hidden.shape

        def split(states: mx.array) -> mx.array:
            return states.reshape(num_texts, num_tokens, self.num_heads, -1).transpose(0, 2, 1, 3)

        queries, keys, values = split(self.query(hidden)), split(self.key(hidden)), split(self.value(hidden))
        if self._base:
            offset = cache.offset if cache else 0
            queries, keys = self._rotate(queries, offset), self._rotate(keys, offset)
        if cache:
            keys, values = cache.update_and_fetch(keys, values)
        scale = queries.shape[-1] ** -0.5
        found = mx.fast.scaled_dot_product_attention(
            queries, keys, values, scale=scale, mask=masks[self._is_local]
        )
        return self.out(found.transpose(0, 2, 1, 3).reshape(num_texts, num_tokens, size))

    def _rotate(self, states: mx.array, offset: int) -> mx.array:
        return mx.fast.rope(
            states, states.shape[-1], traditional=False, base=self._base, scale=self._scale, offset=offset
        )


class Layer(Module):
    """One layer: attention and a feed-forward network."""

    def __init__(self, config: Config, design: Design, index: int) -> None:
        super().__init__()
        size, inner = config["hidden_size"], config["intermediate_size"]
        self.attention = Attention(config, design, is_local=index in design.local)
        if not (design.norms_first and index == 0):
            self.attention_norm = LayerNorm(size, config["layer_norm_eps"])
        if design.is_gated:
            self.gate = Linear(size, inner)
        self.up, self.down = Linear(size, inner), Linear(inner, size)
        self.norm = LayerNorm(size, config["layer_norm_eps"])
        self._activation = ACTIVATIONS[config["hidden_act"]]
        self._norms_first = design.norms_first

    def __call__(self, hidden: mx.array, masks: Masks, cache: Any = None) -> mx.array:
        """Return the states after this layer, (texts, tokens, size). hidden: those before it.

        cache: see Attention.
        """
        if self._norms_first:
            # The first layer has no norm of its own: its states come from that of the embeddings.
            normed = self.attention_norm(hidden) if "attention_norm" in self else hidden
            hidden = hidden + self.attention(normed, masks, cache)
            return hidden + self._feed_forward(self.norm(hidden))
        hidden = self.attention_norm(hidden + self.attention(hidden, masks, cache))
        after: mx.array = self.norm(hidden + self._feed_forward(hidden))
        return after

    def _feed_forward(self, hidden: mx.array) -> mx.array:
        if "gate" in self:
            return self.down(self._activation(self.gate(hidden)) * self.up(hidden))
        return self.down(self._activation(self.up(hidden)))


class Embeddings(Module):
    """The sum of the embeddings of a token, its type and its position."""

    def __init__(self, config: Config, design: Design) -> None:
        super().__init__()
        size = config["hidden_size"]
        self.tokens = Embedding(config["vocab_size"], size)
        if config["type_vocab_size"]:
            self.types = Embedding(config["type_vocab_size"], size)
        if design.positions == "learned":
            self.positions = Embedding(config["max_position_embeddings"], size)
        self.norm = LayerNorm(size, config["layer_norm_eps"])
        self._first_position = design.first_position

    def __call__(self, tokens: mx.array, types: mx.array) -> mx.array:
        """Return the states before the first layer, (texts, tokens, size). tokens, types: (texts, tokens)."""
        first = self.tokens(tokens)
        if "types" in self:
            first = first + self.types(types)
        if "positions" in self:
            first = first + self.positions(mx.arange(tokens.shape[1]) + self._first_position)
        normed: mx.array = self.norm(first)
        return normed


class Classifier(Module):
    """The layers that turn a pair's last states into its score."""

    def __init__(self, config: Config, design: Design) -> None:
        super().__init__()
        size = config["hidden_size"]
        self.dense, self.out = Linear(size, size), Linear(size, 1)
        if design.norms_first:
            self.norm = LayerNorm(size, config["layer_norm_eps"])
        self._pools_mean = config.get("classifier_pooling") == "mean"
        self._activation = ACTIVATIONS[config.get("classifier_activation", "gelu")]

    def __call__(self, states: mx.array) -> mx.array:
        """Return the logit of a document's relevance to a query, (1,). states: (tokens, size) of both."""
        pooled = states.mean(axis=0, keepdims=True) if self._pools_mean else states[:1]
        rated = self.dense(pooled)
        rated = self.norm(self._activation(rated)) if "norm" in self else mx.tanh(rated)
        return self.out(rated)[0]


class Encoder(Module):
    """A whole encoder. ranks: whether it rates pairs of texts instead of embedding."""

    def __init__(self, config: Config, *, ranks: bool = False) -> None:
        super().__init__()
        self._design = design = find_design(config)
        self.embeddings = Embeddings(config, design)
        self.layers = [Layer(config, design, index) for index in range(config["num_hidden_layers"])]
        if design.norms_first:
            self.final_norm = LayerNorm(config["hidden_size"], config["layer_norm_eps"])
        if ranks:
            self.classifier = Classifier(config, design)
        for path, part in self.named_modules():
            if path.rpartition(".")[2] in design.unbiased and not path.startswith("classifier.out"):
                part.pop("bias", None)

    def begin(self, tokens: mx.array, types: mx.array, num_tokens: mx.array) -> tuple[mx.array, Masks]:
        """Return the states before the first layer, (texts, tokens, size), and the masks.

        tokens, types: (texts, tokens) token ids and token types, padded at the end.
        num_tokens: (texts,) tokens without padding.
        """
        hidden, width = self.embeddings(tokens, types), tokens.shape[1]
        if self._design.positions == "alibi":
            num_heads = self.layers[0].attention.num_heads
            whole = attend_less_with_distance(num_tokens, width, num_heads, hidden.dtype)
        else:
            whole = attend_to_all(num_tokens, width)
        window = self._design.window
        return hidden, Masks(whole, attend_near(num_tokens, width, window) if window else whole)

    def end(self, hidden: mx.array) -> mx.array:
        """Return the states after the last layer, with the norm that follows it, if any."""
        states: mx.array = self.final_norm(hidden) if "final_norm" in self else hidden
        return states

    def rate(self, states: mx.array) -> mx.array:
        """Return the logit of a document's relevance to a query, (1,). states: (tokens, size) of both."""
        return self.classifier(states)


def rename(weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Rename a checkpoint's weights to the names of Encoder, and leave out heads for other tasks."""
    found, ranks = {}, any(key.startswith("classifier.") for key in weights)
    for given, array in weights.items():
        name = next((given.removeprefix(one) for one in _PREFIXES if given.startswith(one)), given)
        if name.startswith("pooler.dense") and ranks:
            # BERT's classifier uses its pooler's output; RoBERTa's has its own layer.
            name = name.replace("pooler.dense", "classifier.dense")
        elif name in ("classifier.weight", "classifier.bias", "classifier.scales", "classifier.biases"):
            name = name.replace("classifier.", "classifier.out.")
        if name.startswith(_UNUSED) or (name.startswith("head.") and not ranks):
            continue
        for ours, theirs in _NAMES.items():
            name = re.sub(theirs, ours, name)
        joined = next((one for one in _JOINED if one in name), None)
        parts = _JOINED[joined] if joined else ("",)
        for part, rows in zip(parts, mx.split(array, len(parts)), strict=True):
            found[name.replace(joined, part) if joined else name] = rows
    return found
