"""PrefixLookup of prompts and answers that were computed before, in a trie over tokens.

A node keeps the strip of the tokens on its edge, so that what several conversations begin with is kept once.
Models with state also need that, and a node keeps it at its end, where it was taken; they can go on at such
places alone. Everything kept is evaluated and shares no buffer with a row.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np

from engine.kv_cache.per_row import Caches
from engine.kv_cache.slices import KVSlice, State, num_bytes, rebuild, sub_slice

MAX_ARRAYS = 100_000
"""Metal can hold some 499,000 buffers at a time, and rows need theirs."""

CutSlice = Callable[[int, int], KVSlice]
"""Makes the strip of tokens start .. end."""


@dataclass(eq=False, slots=True)
class _Node:
    """tokens: those on its edge. end: how many lead to its end. state: at its end, where it was taken."""

    parent: "_Node | None"
    tokens: np.ndarray
    kv_slice: KVSlice
    end: int
    state: State = field(default_factory=list)
    children: "dict[int, _Node]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefixStatus:
    """Counts of a prefix cache. hits, misses: prompts that found a beginning, and that found none.

    num_files, file_bytes: of its second tier on disk.
    """

    num_bytes: int = 0
    budget_bytes: int = 0
    num_entries: int = 0
    num_tokens: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    num_files: int = 0
    file_bytes: int = 0


class PrefixCache:
    """Of the places where something was put, the least recently used goes first.

    make_empty: empty caches of the model. needs_state: whether strips alone do not make them up.
    """

    def __init__(self, budget_bytes: int, make_empty: Callable[[], Caches], needs_state: bool) -> None:
        self.budget_bytes = budget_bytes
        self.needs_state = needs_state
        self.num_bytes = 0
        self._make_empty = make_empty
        self._hits = self._misses = self._evictions = 0
        self.clear()

    def clear(self) -> None:
        """Drop everything."""
        self._root = _Node(None, np.array([], np.int32), [], 0)
        # Where something was put, least recently used first: only these are sure to be kept.
        self._places: OrderedDict[_Node, None] = OrderedDict()
        self.num_bytes = self._num_arrays = self._num_tokens = 0

    def status(self) -> PrefixStatus:
        """What it holds and how it did. May be called on any thread."""
        return PrefixStatus(
            self.num_bytes, self.budget_bytes, len(self._places), self._num_tokens,
            self._hits, self._misses, self._evictions,
        )  # fmt: skip

    def put(self, tokens: Sequence[int], cut: CutSlice, state: State) -> None:
        """Keep what caches hold for tokens. cut is asked only for what is not kept yet.

        state: theirs after the last of the tokens; empty where there is none.
        """
        if not len(tokens) or (self.needs_state and not state):
            return
        added = np.asarray(tokens, np.int32)
        last, matched = self._walk(added)
        if matched == len(added) and not self.needs_state:
            self._touch(last)
            return
        kv_slice = cut(matched, len(added)) if matched < len(added) else []
        path_bytes = sum(num_bytes(node.kv_slice) for node in _path_from(last))
        if path_bytes + num_bytes(kv_slice) + num_bytes(state) > self.budget_bytes:
            return
        mx.eval(kv_slice, state)
        node = self._split(last, matched) if matched < last.end else last
        if matched < len(added):
            node = self._grow(node, added[matched:], kv_slice)
        if not node.state:
            node.state = state
            self._count(state, 1)
        self._places[node] = None
        self._touch(node)
        self.shrink_to(self.budget_bytes)

    def match(self, prompt: Sequence[int]) -> int:
        """How many of the prompt's leading tokens are kept, whether or not a row could begin behind them."""
        return self._walk(np.asarray(prompt, np.int32)[:-1])[1]

    def find(self, prompt: Sequence[int]) -> tuple[Caches, int] | None:
        """Fresh caches for the longest kept beginning of prompt, and its length in tokens.

        The last token of the prompt is never included: its logits are still to be computed.
        """
        node, length = self._last_usable(prompt)
        if not length:
            self._misses += 1
            return None
        self._hits += 1
        self._touch(node)
        path = list(_path_from(node))[::-1]
        kv_slices = [one.kv_slice for one in path if one.kv_slice]
        if kv_slices and length < node.end:
            kv_slices[-1] = [array[:, :, : length - node.end] for array in kv_slices[-1]]
        return rebuild(self._make_empty(), kv_slices, node.state, length), length

    def match_usable(self, prompt: Sequence[int]) -> int:
        """How many tokens find() would find."""
        return self._last_usable(prompt)[1]

    def shrink_to(self, num_bytes: int) -> None:
        """Drop what was used least recently until no more than that many bytes are kept."""
        while self._places and (self.num_bytes > num_bytes or self._num_arrays > MAX_ARRAYS):
            self._evictions += 1
            self._drop(next(iter(self._places)))

    def _last_usable(self, prompt: Sequence[int]) -> tuple[_Node, int]:
        """The last node, maybe in part, with which a row could begin, and how many tokens lead there."""
        node, length = self._walk(np.asarray(prompt, np.int32)[:-1])
        if not self.needs_state:
            return node, length
        # What was matched in part, or has no state, cannot be gone on from.
        while node.parent and not (node.state and node.end <= length):
            node = node.parent
        return node, node.end

    def _walk(self, tokens: np.ndarray) -> tuple[_Node, int]:
        """The last node that tokens lead into, maybe in part, and how many of them are matched."""
        node, matched = self._root, 0
        while matched < len(tokens) and (child := node.children.get(int(tokens[matched]))):
            node = child
            here = tokens[matched : matched + len(node.tokens)]
            different = np.flatnonzero(node.tokens[: len(here)] != here)
            if len(different):
                return node, matched + int(different[0])
            matched += len(here)
        return node, matched

    def _touch(self, node: _Node) -> None:
        """Count a node as just used, or else a place behind it, which keeps it."""
        while node not in self._places:
            node = next(reversed(node.children.values()))
        self._places.move_to_end(node)

    def _grow(self, node: _Node, tokens: np.ndarray, kv_slice: KVSlice) -> _Node:
        child = _Node(node, tokens, kv_slice, node.end + len(tokens))
        node.children[int(tokens[0])] = child
        self._count(kv_slice, 1)
        self._num_tokens += len(tokens)
        return child

    def _split(self, node: _Node, length: int) -> _Node:
        """Cut a node's edge so that a node ends at length tokens; returns that one."""
        assert node.parent
        at, count = length - node.parent.end, len(node.tokens)
        kv_slices = sub_slice(node.kv_slice, 0, at), sub_slice(node.kv_slice, at, count)
        mx.eval(kv_slices)
        upper = _Node(node.parent, node.tokens[:at], kv_slices[0], length)
        node.parent.children[int(node.tokens[0])] = upper
        self._count(node.kv_slice, -1)
        node.parent, node.tokens, node.kv_slice = upper, node.tokens[at:], kv_slices[1]
        upper.children[int(node.tokens[0])] = node
        self._count([*upper.kv_slice, *node.kv_slice], 1)
        return upper

    def _drop(self, node: _Node) -> None:
        """Forget a place, and with it all that no other place needs."""
        del self._places[node]
        self._count(node.state, -1)
        node.state = []
        while node.parent and not node.children and node not in self._places:
            self._count(node.kv_slice, -1)
            self._num_tokens -= len(node.tokens)
            del node.parent.children[int(node.tokens[0])]
            node = node.parent

    def _count(self, arrays: State | KVSlice, sign: int) -> None:
        self.num_bytes += sign * num_bytes(arrays)
        self._num_arrays += sign * len(arrays)


def _path_from(node: _Node | None) -> Iterator[_Node]:
    """A node and all above it."""
    while node:
        yield node
        node = node.parent
