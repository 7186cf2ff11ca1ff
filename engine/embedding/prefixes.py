"""What texts begin with alike, such as an instruction or a query, is computed once: the *head* of texts.

Only for models that decode: there no token depends on a later one. Heads are kept in a trie, like the prompts
of chats.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from engine.interface.embeddings import EmbeddingRequest, TokenIds, count_common
from engine.kv_cache.per_row import Caches
from engine.kv_cache.prefix_cache.trie import PrefixCache
from engine.kv_cache.slices import cut_slice

MIN_TOKENS = 8
"""What saves fewer tokens is not computed by itself: each pass costs something."""

NUM_RECENT = 16
"""Earlier requests that one with a single text is compared with, by the thread that owns MLX."""


class Prefixes:
    """Heads of texts, within a budget of bytes. Used by the thread that owns MLX only.

    make_caches: makes the empty caches of a text. pools_last: whether the last token's state alone becomes
    the vector; else no head has a token that is pooled.
    """

    def __init__(self, make_caches: Callable[[], Caches], budget_bytes: int, *, pools_last: bool) -> None:
        self.kept = PrefixCache(budget_bytes, make_caches, needs_state=False)
        self._make_caches, self._pools_last = make_caches, pools_last
        self._recent: deque[TokenIds] = deque(maxlen=NUM_RECENT)

    def find_head(self, request: EmbeddingRequest) -> TokenIds:
        """Return the head of a request's inputs; empty if none is worth it.

        Several inputs: what all begin with. A single one: the most that it begins with like one of the last
        requests. If that has only a few tokens more than a head that is kept, the kept one is returned, so
        that requests with one instruction share a head.
        """
        inputs, alike = request.inputs, request.inputs[0].tokens[: request.num_alike]
        earlier = [len(alike)] if len(inputs) > 1 else [count_common(alike, one) for one in self._recent]
        self._recent.append(alike)
        most = min(len(one.tokens) - 1 if self._pools_last else one.first_pooled for one in inputs)
        shared, held = (min(most, num) for num in (max(earlier, default=0), self.kept.count_held(alike)))
        num_tokens = held if shared < held + MIN_TOKENS else shared
        return alike[:num_tokens] if num_tokens >= MIN_TOKENS else ()

    def find(self, head: TokenIds) -> tuple[Caches, int]:
        """Return caches with as much of a head as is kept, and its length in tokens."""
        # The trie leaves out the last token of what it is asked for.
        return self.kept.find((*head, -1)) or (self._make_caches(), 0)

    def keep(self, head: TokenIds, caches: Caches) -> None:
        """Keep a head, whose keys and values are computed."""
        self.kept.put(head, partial(cut_slice, caches), [])


class Before:
    """A layer's keys and values of a head, for texts that continue it; a pass adds nothing to them.

    It takes the place of mlx-lm's cache. offset: tokens of the head.
    """

    def __init__(self, cache: Any) -> None:
        self.offset = cache.offset
        self._held = cache.keys[..., : cache.offset, :], cache.values[..., : cache.offset, :]

    def update_and_fetch(self, *added: mx.array) -> list[mx.array]:
        """Return the keys and the values of whole texts. added: (texts, heads, tokens, size) of either."""
        return [
            mx.concatenate([mx.broadcast_to(held, (len(new), *held.shape[1:])), new], axis=2)
            for held, new in zip(self._held, added, strict=True)
        ]
