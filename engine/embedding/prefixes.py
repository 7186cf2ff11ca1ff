"""Compute once the *head* of texts: the tokens with which they all begin, such as an instruction or a query.

Only for models that decode: there no token depends on a later one. Heads are kept in a trie, like the prompts
of chats.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from reprise.engine.interface.embeddings import EmbeddingRequest, TokenIds, count_common
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.kv_cache.prefix_cache.trie import PrefixCache
from reprise.engine.kv_cache.slices import cut_slice

MIN_TOKENS = 8
"""What saves fewer tokens is not computed by itself: each pass costs something."""

NUM_RECENT = 16
"""Earlier requests that one with a single text is compared with, by the thread that owns MLX."""


class Prefixes:
    """Heads of texts, within a budget of bytes. Used by the thread that owns MLX only.

    make_caches: makes the empty caches of a text.
    pools_last: whether a text's vector is the state of its last token; else heads end before the first token
        that is pooled.
    """

    def __init__(self, make_caches: Callable[[], Caches], budget_bytes: int, *, pools_last: bool) -> None:
        self.kept = PrefixCache(budget_bytes, make_caches, needs_state=False)
        self._make_caches, self._pools_last = make_caches, pools_last
        self._recent: deque[TokenIds] = deque(maxlen=NUM_RECENT)

    def find_head(self, request: EmbeddingRequest) -> TokenIds:
        """Return the head of a request's inputs; empty if a head would save too few tokens.

        The head of several inputs is the beginning that all share; that of a single input is the longest
        beginning that it shares with one of the last requests. A kept head is preferred if it has only a few
        tokens less, so that requests with the same instruction share one head.
        """
        inputs, alike = request.inputs, request.inputs[0].tokens[: request.num_alike]
        earlier = [len(alike)] if len(inputs) > 1 else [count_common(alike, one) for one in self._recent]
        self._recent.append(alike)
        most = min(len(one.tokens) - 1 if self._pools_last else one.first_pooled for one in inputs)
        shared, held = (min(most, num) for num in (max(earlier, default=0), self.kept.count_held(alike)))
        num_tokens = held if shared < held + MIN_TOKENS else shared
        return alike[:num_tokens] if num_tokens >= MIN_TOKENS else ()

    def find(self, head: TokenIds) -> tuple[Caches, int]:
        """Return new caches with the longest kept beginning of a head, and its length in tokens."""
        # The trie leaves out the last token of what it is asked for.
        return self.kept.find((*head, -1)) or (self._make_caches(), 0)

    def keep(self, head: TokenIds, caches: Caches) -> None:
        """Keep a head. caches: they hold its keys and values."""
        self.kept.put(head, partial(cut_slice, caches), [])


class Before:
    """A layer's keys and values of a head, for the texts that continue the head; a pass adds nothing to them.

    It takes the place of mlx-lm's cache. offset: the number of the head's tokens.
    """

    def __init__(self, cache: Any) -> None:
        self.offset = cache.offset
        self._held = cache.keys[..., : cache.offset, :], cache.values[..., : cache.offset, :]

    def update_and_fetch(self, *added: mx.array) -> list[mx.array]:
        """Return the keys and the values of whole texts, the head's first.

        added: the keys and the values after the head, (texts, heads, tokens, size) each.
        """
        return [
            mx.concatenate([mx.broadcast_to(held, (len(new), *held.shape[1:])), new], axis=2)
            for held, new in zip(self._held, added, strict=True)
        ]
