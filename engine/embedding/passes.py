"""Choose texts of similar length for a pass, so that no short request waits for long ones."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.nn.layers.activations import gelu, relu, silu

from reprise.engine.embedding.architecture import Config
from reprise.engine.interface.embeddings import (
    Dense,
    Embedded,
    EmbeddingInput,
    EmbeddingRequest,
    Recipe,
    TokenIds,
    count_common,
)
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.events import EmbeddingSink, Failed
from reprise.engine.kv_cache.buffers import cut_slice
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.kv_cache.prefix_cache.trie import PrefixCache
from reprise.engine.memory.budget import SharedMemory
from reprise.engine.vision.weights import Activation, Weights, read_arrays

NUMBER_BYTES = 4
NUM_HIDDEN, NUM_INNER, NUM_SCORES, NUM_COPIES = 16, 4, 4, 4
"""Arrays of a layer that exist at once at most: of the size of its states, of its inner states, of what
each token attends to, and of the keys and values of a head in each text."""

HEAD_GROWTH_TOKENS = 256
"""Tokens by which mlx-lm's caches grow."""

PREFIX_BYTES = 256 * 2**20
"""Budget of shared prefixes without --prefix-cache-bytes. They give way to whatever needs memory."""


def bytes_of(config: Config, num_texts: int, num_tokens: int, num_before: int = 0) -> int:
    """Return an upper estimate of the bytes of a pass over num_texts texts, each padded to num_tokens.

    num_before: tokens of the texts' shared prefix, which is computed before them or cached.
    """
    heads = config["num_attention_heads"]
    # All heads together may be wider than the states, as in Qwen3.
    size = max(config["hidden_size"], heads * (config.get("head_dim") or 0))
    each = NUM_HIDDEN * size + NUM_INNER * config["intermediate_size"]

    def of(texts: int, tokens: int, seen: int) -> int:
        return int(NUMBER_BYTES * texts * tokens * (each + NUM_SCORES * heads * seen))

    whole = of(num_texts, num_tokens, num_before + num_tokens)
    if not num_before:
        return whole
    num_kept = config["num_hidden_layers"] + NUM_COPIES * num_texts
    held_bytes = 2 * NUMBER_BYTES * size * (num_before + HEAD_GROWTH_TOKENS) * num_kept
    return int(held_bytes) + max(whole, of(1, num_before, num_before))


class PassMemory:
    """The memory that a model that embeds or ranks holds.

    prefixes: the cached prefixes; None if it caches none.
    shared: the memory of all models, set once this one is loaded; None for a single model.
    """

    def __init__(self, weight_bytes: int, config: Config, prefixes: PrefixCache | None = None) -> None:
        self.weight_bytes = weight_bytes
        self.shared: SharedMemory | None = None
        self._config, self._prefixes = config, prefixes
        self._pass_bytes = 0

    @property
    def held_bytes(self) -> int:
        """The bytes of the weights, the cached prefixes and the running pass."""
        return self.weight_bytes + self._pass_bytes + self.prefix_bytes

    def give_up(self, num_bytes: int) -> int:
        """Drop cached prefixes to free num_bytes, or all; return the bytes that were freed."""
        before = self.prefix_bytes
        if self._prefixes:
            self._prefixes.shrink_to(max(0, before - num_bytes))
        return before - self.prefix_bytes

    def take(self, num_texts: int, num_tokens: int, num_before: int = 0) -> bool:
        """Reserve the memory of a pass, until release(); return False if too little is free now.

        Arguments: see bytes_of().
        """
        needed = bytes_of(self._config, num_texts, num_tokens, num_before)
        while self.shared and not self.shared.make_room(needed + self.prefix_bytes, self):
            if not self.give_up(needed):
                return False
        self._pass_bytes = needed
        return True

    def release(self) -> None:
        """End the reservation that take() made for a pass."""
        self._pass_bytes = 0

    @property
    def prefix_bytes(self) -> int:
        """The bytes of the cached prefixes."""
        return self._prefixes.num_bytes if self._prefixes else 0

    def fault(self, num_tokens: int) -> str | None:
        """Return the reason why a text of this length can never be computed; None if it can."""
        needed = self.weight_bytes + bytes_of(self._config, 1, num_tokens)
        if self.shared is None or needed <= self.shared.limit_bytes:
            return None
        return (
            f"a text of {num_tokens} tokens takes {needed / 2**20:,.0f} MiB with the weights, and there are "
            f"{self.shared.limit_bytes / 2**20:,.0f} MiB for all models (--memory-bytes); send a shorter text"
        )


MIN_TOKENS = 8
"""A shorter prefix is not computed separately: each pass has a cost."""

NUM_RECENT = 16
"""Earlier requests that one with a single text is compared with, by the thread that owns MLX."""


class Prefixes:
    """Cached prefixes of texts, within a budget of bytes. Used by the thread that owns MLX only.

    make_caches: makes the empty caches of a text.
    pools_last: whether a text's vector is the state of its last token; else prefixes end before the first
        pooled token.
    """

    def __init__(self, make_caches: Callable[[], Caches], budget_bytes: int, *, pools_last: bool) -> None:
        self.kept = PrefixCache(budget_bytes, make_caches, needs_state=False)
        self._make_caches, self._pools_last = make_caches, pools_last
        self._recent: deque[TokenIds] = deque(maxlen=NUM_RECENT)

    def find_head(self, request: EmbeddingRequest) -> TokenIds:
        """Return the prefix to share among a request's inputs; empty if it would save too few tokens.

        For several inputs it is their common prefix; for a single input, the longest that it shares with a
        recent request. A cached prefix that is only a few tokens shorter is preferred, so that requests with
        the same instruction share one.
        """
        inputs, alike = request.inputs, request.inputs[0].tokens[: request.num_alike]
        earlier = [len(alike)] if len(inputs) > 1 else [count_common(alike, one) for one in self._recent]
        self._recent.append(alike)
        most = min(len(one.tokens) - 1 if self._pools_last else one.first_pooled for one in inputs)
        shared, held = (min(most, num) for num in (max(earlier, default=0), self.kept.count_held(alike)))
        num_tokens = held if shared < held + MIN_TOKENS else shared
        return alike[:num_tokens] if num_tokens >= MIN_TOKENS else ()

    def find(self, head: TokenIds) -> tuple[Caches, int]:
        """Return new caches with the longest cached part of a prefix, and its length in tokens."""
        # The trie leaves out the last token of what it is asked for.
        return self.kept.find((*head, -1)) or (self._make_caches(), 0)

    def keep(self, head: TokenIds, caches: Caches) -> None:
        """Cache a prefix. caches: hold its keys and values."""
        self.kept.put(head, partial(cut_slice, caches), [])


class Before:
    """A layer's keys and values of a shared prefix. A pass adds nothing to them.

    It replaces mlx-lm's cache. offset: the number of the prefix's tokens.
    """

    def __init__(self, cache: Any) -> None:
        self.offset = cache.offset
        self._held = cache.keys[..., : cache.offset, :], cache.values[..., : cache.offset, :]

    def update_and_fetch(self, *added: mx.array) -> list[mx.array]:
        """Return the keys and the values of whole texts, the prefix's first.

        added: the keys and the values after the prefix, (texts, heads, tokens, size) each.
        """
        return [
            mx.concatenate([mx.broadcast_to(held, (len(new), *held.shape[1:])), new], axis=2)
            for held, new in zip(self._held, added, strict=True)
        ]


ACTIVATIONS: dict[str, Activation] = {
    "Identity": lambda states: states,
    "Tanh": mx.tanh,
    "GELU": gelu,
    "ReLU": relu,
    "SiLU": silu,
    "Sigmoid": mx.sigmoid,
}

MIN_NORM = 1e-12
"""Minimum divisor when normalizing, as in torch."""

Stage = Activation
"""A dense layer's function."""


def make_vector(
    recipe: Recipe, dense: Sequence[Stage], states: mx.array, first_pooled: int, dimensions: int | None
) -> mx.array:
    """Return the vector of a text by a recipe, (dimensions,) float32.

    dense: see load_dense(). states: (tokens, size) after the last layer. first_pooled: index of the first
        token that is pooled. dimensions: how many numbers of the vector to keep; None for all.
    """
    states = states.astype(mx.float32)
    match recipe.pooling:
        case "cls":
            vector = states[0]
        case "last":
            vector = states[-1]
        case "max":
            vector = states[first_pooled:].max(axis=0)
        case "mean":
            vector = states[first_pooled:].mean(axis=0)
    for stage in dense:
        vector = stage(vector[None])[0]
    vector = vector[:dimensions]
    if recipe.normalizes:
        vector = vector / mx.maximum(mx.sqrt(vector.square().sum()), MIN_NORM)
    return vector


def load_dense(layers: Sequence[Dense], size: int) -> tuple[list[Stage], int]:
    """Load the dense layers after pooling; return them, and the size of their output.

    size: that of the pooled states. Raises ModelError.
    """
    stages = []
    for layer in layers:
        stage, size = _load_layer(layer, size)
        stages.append(stage)
    return stages, size


def _load_layer(layer: Dense, size: int) -> tuple[Stage, int]:
    """Return a layer's function and output size. size: of its input."""
    if layer.activation not in ACTIVATIONS:
        raise ModelError(f"{layer.folder} has the activation {layer.activation}, which is not known here")
    loaded = Weights(read_arrays(layer.folder))
    if f"{layer.name}.weight" not in loaded.arrays:
        raise ModelError(f"{layer.folder} has no weights {layer.name}, which follow its pooling")
    weight = loaded.table(layer.name, size).astype(mx.float32)
    bias = loaded[f"{layer.name}.bias"].astype(mx.float32) if layer.has_bias else mx.zeros(len(weight))
    activation = ACTIVATIONS[layer.activation]
    mx.eval(weight, bias)
    return lambda states: activation(mx.addmm(bias, states, weight.T)), len(weight)


SHARE = 4
"""One of SHARE passes is begun by the oldest request, the others by the one that lacks the least."""

MAX_PADDING = 4
"""A text shares a pass with a longer one if it is padded by less than 1/MAX_PADDING of that one's length."""


@dataclass(eq=False)
class Job:
    """A request and its results.

    left: indices of the inputs without a vector that are in no pass, the longest first.
    num_left: the sum of the tokens of these inputs.
    head: the tokens that all inputs begin with, computed once.
    vectors: the results so far, by the input's index.
    is_alone: whether the request shares no pass with others, because a shared one failed.
    """

    request: EmbeddingRequest
    sink: EmbeddingSink
    left: list[int] = field(default_factory=list, init=False)
    num_left: int = field(default=0, init=False)
    head: TokenIds = ()
    vectors: dict[int, bytes] = field(default_factory=dict)
    is_alone: bool = False
    ended: bool = False

    def __post_init__(self) -> None:
        self.put_back(range(len(self.request.inputs)))

    def take(self, indices: Collection[int]) -> None:
        """Remove inputs, by index, from those that are left: a pass computes them now."""
        self.left = [index for index in self.left if index not in indices]
        self.num_left -= sum(map(self.num_tokens, indices))

    def put_back(self, indices: Iterable[int]) -> None:
        """Add inputs, by index, to those that are left."""
        self.left += indices
        self.left.sort(key=self.num_tokens, reverse=True)
        self.num_left = sum(map(self.num_tokens, self.left))

    def num_tokens(self, index: int) -> int:
        """Return the number of an input's tokens."""
        return len(self.request.inputs[index].tokens)

    def first_up_to(self, num_tokens: int) -> int:
        """Return the first place in left whose input has at most num_tokens; so do all inputs after it."""
        return bisect_left(self.left, -num_tokens, key=lambda index: -self.num_tokens(index))

    def end(self, event: Embedded | Failed) -> None:
        """Send the request its terminal event, unless it has had one."""
        if not self.ended:
            self.ended = True
            self.sink(event)

    def finish(self) -> None:
        """End the request with the vectors of all its inputs."""
        self.end(Embedded(tuple(self.vectors[index] for index in range(len(self.request.inputs)))))


@dataclass(frozen=True)
class Member:
    """One input of a request, in a pass."""

    job: Job
    index: int

    @property
    def input(self) -> EmbeddingInput:
        """The text or the pair that this member stands for."""
        return self.job.request.inputs[self.index]

    @property
    def num_tokens(self) -> int:
        """The number of the input's tokens."""
        return self.job.num_tokens(self.index)


def by_job(members: Iterable[Member]) -> dict[Job, set[int]]:
    """Group members by request: request -> indices of its inputs."""
    found: dict[Job, set[int]] = {}
    for member in members:
        found.setdefault(member.job, set()).add(member.index)
    return found


Fits = Callable[[int, int], bool]
"""Returns whether num_texts texts, padded to num_tokens after their prefix, fit into a pass."""


def choose_members(jobs: Sequence[Job], num_passes: int, fits: Fits) -> list[Member]:
    """Choose the inputs of the next pass, the longest first; at least one, whether it fits or not.

    All of them share the prefix of the first one's request.
    jobs: in the order of their arrival, each with inputs left. num_passes: passes that were chosen before.
    fits: see Fits.
    """
    is_for_oldest = num_passes % SHARE == SHARE - 1
    first = jobs[0] if is_for_oldest else min(jobs, key=lambda job: job.num_left)
    members = [Member(first, first.left[0])]
    longest = members[0].num_tokens
    num_head = len(first.head)
    others = () if first.is_alone else (job for job in jobs if job is not first and _may_join(job, first))
    for member in _alike([first, *others], longest, num_head):
        if member != members[0]:
            if not fits(len(members) + 1, longest - num_head):
                break
            members.append(member)
    return members


def _may_join(job: Job, first: Job) -> bool:
    """Return whether two requests' texts may share a pass: no prefix may be computed twice."""
    is_alike = job.head[: len(first.head)] == first.head and bool(job.head) == bool(first.head)
    return is_alike and not job.is_alone


def _alike(jobs: Iterable[Job], longest: int, num_head: int) -> Iterable[Member]:
    """Yield the texts that may share a pass with one of this length, request by request.

    num_head: tokens of the prefix.
    """
    for job in jobs:
        for index in job.left[job.first_up_to(longest) :]:
            padding = longest - job.num_tokens(index)
            if padding * MAX_PADDING >= longest - num_head:
                break
            yield Member(job, index)
