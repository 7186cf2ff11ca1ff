"""Keep the KV slices and state of earlier prompts and answers in memory, in a trie over tokens.

Each node holds the KV slice of the tokens on its edge, so a prefix that several conversations share is stored
once. If the model has recurrent or windowed state, a node may hold a snapshot of it taken at its end. A row
can then start only from such a node. All stored arrays are evaluated and share no buffer with a row.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import mlx.core as mx

from reprise.engine.kv_cache.buffers import (
    KVSlice,
    State,
    leading,
    num_bytes,
    rebuild,
    split_slice,
    start_copies,
)
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey, Tokens

MAX_ARRAYS = 100_000
"""Maximum arrays to keep. Metal allows about 499,000 buffers at a time, and the rows need some of them."""

CutSlice = Callable[[int, int], KVSlice]
"""Returns the KV slice of tokens [start, end)."""


@dataclass(eq=False, slots=True)
class _Node:
    """A node of the trie.

    tokens: those on the edge from its parent. kv_slice: theirs.
    end: number of tokens from the root to the node's end.
    state: snapshot at the end; empty if none was taken there.
    children: by the first token on their edge, and the image that begins with it.
    weight: how likely the state is needed, relative to others. used_at: the tick of its last use.
    """

    parent: "_Node | None"
    tokens: TextKey
    kv_slice: KVSlice
    end: int
    state: State = field(default_factory=list)
    children: "dict[tuple[int, bytes], _Node]" = field(default_factory=dict)
    weight: float = 1.0
    used_at: int = 0


@dataclass(frozen=True, slots=True)
class PrefixStatus:
    """Counts of a prefix cache.

    num_bytes: bytes of the stored arrays. budget_bytes: their maximum.
    num_entries: prefixes stored with put().
    hits, misses: lookups that found a cached prefix, and that found none.
    evictions: prefixes dropped to free memory.
    file_bytes: bytes of the files of the second tier, on disk. written_file_bytes: written so far.
    left_out_files: saves that the limit of bytes written in an hour cut short.
    """

    num_bytes: int = 0
    budget_bytes: int = 0
    num_entries: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    file_bytes: int = 0
    written_file_bytes: int = 0
    left_out_files: int = 0


class PrefixCache:
    """Prefixes in memory, within a budget.

    An *entry* is a node at which a put() ended. A node is kept as long as it is an entry or leads to one. The
    least recently used entry is dropped first; with state, the entry with the most bytes per token that it
    saves, times the number of puts and finds since its last use.

    make_empty: makes empty caches for a row of the model.
    needs_state: whether the model's caches hold state besides KV slices.
    num_evictions: entries dropped so far. While it does not grow, match() of a prompt never falls.
    """

    def __init__(self, budget_bytes: int, make_empty: Callable[[], Caches], needs_state: bool) -> None:
        self.budget_bytes = budget_bytes
        self.needs_state = needs_state
        self._make_empty = make_empty
        self._hits = self._misses = self.num_evictions = self._tick = 0
        self._root = _Node(None, TextKey.of([]), [], 0)
        # The least recently used entry first.
        self._entries: OrderedDict[_Node, None] = OrderedDict()
        self.num_bytes = self._num_arrays = 0

    def status(self) -> PrefixStatus:
        """Return the counts. May be called on any thread."""
        return PrefixStatus(
            self.num_bytes, self.budget_bytes, len(self._entries),
            self._hits, self._misses, self.num_evictions,
        )  # fmt: skip

    def put(self, tokens: Tokens, cut: CutSlice, state: State, weight: float = 1.0) -> None:
        """Store the keys, values and state of a row's caches under its tokens.

        Nothing is stored if the prefix alone exceeds the budget, or if the model needs state and state is
        empty.
        cut: called at most once, only for the tokens that are not stored yet.
        state: after the last token; empty if there is none.
        weight: how likely the state is needed at this length, relative to others.
        """
        if not len(tokens) or (self.needs_state and not state):
            return
        added = TextKey.of(tokens)
        last, matched = self._walk(added)
        if matched == len(added) and (not self.needs_state or (last.end == matched and last.state)):
            last.weight = max(last.weight, weight)
            self._touch(last)
            return
        kv_slice = cut(matched, len(added)) if matched < len(added) else []
        path_bytes = sum(num_bytes(node.kv_slice) for node in _with_ancestors(last))
        if path_bytes + num_bytes(kv_slice) + num_bytes(state) > self.budget_bytes:
            return
        start_copies(kv_slice, state)
        mx.eval(kv_slice, state)
        node = self._split(last, matched) if matched < last.end else last
        if matched < len(added):
            node = self._add_child(node, added[matched:], kv_slice)
        if not node.state:
            node.state, node.weight = state, weight
            self._count(state, 1)
        self._entries[node] = None
        self._touch(node)
        self.shrink_to(self.budget_bytes)

    def match(self, prompt: Tokens) -> int:
        """Count the prompt's leading tokens that are stored, even if no row can start after them.

        The last token of the prompt is never counted.
        """
        return self._walk(TextKey.of(prompt)[:-1])[1]

    def count_held(self, tokens: Tokens) -> int:
        """Count how many leading tokens are stored, the last one included."""
        return self._walk(TextKey.of(tokens))[1]

    def state_at(self, tokens: Tokens) -> State:
        """Return the state after the last of these tokens; empty if none is stored there."""
        node, matched = self._walk(TextKey.of(tokens))
        return node.state if matched == len(tokens) == node.end else []

    def find(self, prompt: Tokens) -> tuple[Caches, int] | None:
        """Return new caches with the longest stored prefix of prompt, and its length in tokens.

        The last token of the prompt is never included, because its logits have to be computed.
        Returns None if nothing is found.
        """
        node, length = self._last_usable(prompt)
        if not length:
            self._misses += 1
            return None
        self._hits += 1
        self._touch(node)
        path = list(_with_ancestors(node))[::-1]
        kv_slices = [one.kv_slice for one in path if one.kv_slice]
        if kv_slices and length < node.end:
            kv_slices[-1] = leading(kv_slices[-1], len(node.tokens) + length - node.end)
        return rebuild(self._make_empty(), kv_slices, node.state, length), length

    def match_usable(self, prompt: Tokens) -> int:
        """Return the length in tokens of the prefix that find() would return; 0 for none."""
        return self._last_usable(prompt)[1]

    def shrink_to(self, num_bytes: int) -> None:
        """Drop entries until at most num_bytes bytes and MAX_ARRAYS arrays are kept."""
        costs: list[tuple[float, int, _Node]] = []
        while self._entries and (self.num_bytes > num_bytes or self._num_arrays > MAX_ARRAYS):
            self.num_evictions += 1
            self._drop(self._dearest(costs) if self.needs_state else next(iter(self._entries)))

    def _dearest(self, costs: list[tuple[float, int, _Node]]) -> _Node:
        """Return the entry to drop first. costs: a heap of the entries' costs, filled if empty."""
        if not costs:
            costs += [(-self._cost(node), number, node) for number, node in enumerate(self._entries)]
            heapify(costs)
        while True:
            _, number, node = heappop(costs)
            # What an entry saves has grown if one before it was dropped meanwhile.
            if not costs or -self._cost(node) <= costs[0][0]:
                return node
            heappush(costs, (-self._cost(node), number, node))

    def _cost(self, node: _Node) -> float:
        """Return the bytes that dropping an entry frees per token that it saves, times its age."""
        freed, above = num_bytes(node.state), node.parent
        if not node.children:
            freed += num_bytes(node.kv_slice)
            while above and above.parent and len(above.children) == 1 and above not in self._entries:
                freed, above = freed + num_bytes(above.kv_slice), above.parent
        while above and not above.state:
            above = above.parent
        num_saved = node.end - (above.end if above else 0)
        return (self._tick - node.used_at + 1) * freed / (num_saved * node.weight)

    def _last_usable(self, prompt: Tokens) -> tuple[_Node, int]:
        """Return the last node from which a row can start, and the number of tokens that lead there.

        Without state, the tokens may end inside the node's edge.
        """
        node, length = self._walk(TextKey.of(prompt)[:-1])
        if not self.needs_state:
            return node, length
        # A row cannot start inside an edge or at a node without state.
        while node.parent and not (node.state and node.end <= length):
            node = node.parent
        return node, node.end

    def _walk(self, tokens: TextKey) -> tuple[_Node, int]:
        """Return the last node whose edge matches tokens, in whole or in part, and how many tokens match."""
        node, matched = self._root, 0
        while matched < len(tokens) and (child := node.children.get((left := tokens[matched:]).first)):
            node, matched = child, matched + child.tokens.count_equal(left)
            if matched < node.end:
                break
        return node, matched

    def _touch(self, node: _Node) -> None:
        """Mark an entry as just used: the node itself, or the entry below it that keeps it alive."""
        while node not in self._entries:
            node = next(reversed(node.children.values()))
        self._entries.move_to_end(node)
        self._tick += 1
        node.used_at = self._tick

    def _add_child(self, node: _Node, tokens: TextKey, kv_slice: KVSlice) -> _Node:
        child = _Node(node, tokens, kv_slice, node.end + len(tokens))
        node.children[tokens.first] = child
        self._count(kv_slice, 1)
        return child

    def _split(self, node: _Node, length: int) -> _Node:
        """Split a node's edge so that a new node ends at length tokens; return the new node."""
        assert node.parent
        at = length - node.parent.end
        self._count(node.kv_slice, -1)
        try:
            upper_slice = split_slice(node.kv_slice, at) if node.kv_slice else []
        except Exception:
            self._count(node.kv_slice, 1)
            self._drop_below(node)
            raise
        upper = _Node(node.parent, node.tokens[:at], upper_slice, length)
        node.parent.children[node.tokens.first] = upper
        node.parent, node.tokens = upper, node.tokens[at:]
        upper.children[node.tokens.first] = node
        self._count([*upper.kv_slice, *node.kv_slice], 1)
        return upper

    def _drop(self, node: _Node) -> None:
        """Drop an entry, and every node that no other entry needs."""
        del self._entries[node]
        self._count(node.state, -1)
        node.state = []
        while node.parent and not node.children and node not in self._entries:
            self._count(node.kv_slice, -1)
            del node.parent.children[node.tokens.first]
            node = node.parent

    def _drop_below(self, node: _Node) -> None:
        """Drop every entry at a node or below it, and so the node itself."""
        for entry in [one for one in self._entries if node in _with_ancestors(one)]:
            self.num_evictions += 1
            self._drop(entry)

    def _count(self, arrays: State | KVSlice, sign: int) -> None:
        """Add the arrays to the counts, or subtract them. sign: 1 or -1."""
        self.num_bytes += sign * num_bytes(arrays)
        self._num_arrays += sign * len(arrays)


def _with_ancestors(node: _Node | None) -> Iterator[_Node]:
    while node:
        yield node
        node = node.parent
