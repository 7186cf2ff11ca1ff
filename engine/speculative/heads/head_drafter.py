"""Let a head draft for the target's rows, with caches of its own.

    forward pass -> states of committed positions -> fed to the head -> drafts from the newest

The head replaces the draft model. Its rows are in the order of the target's. A row may draft once the head
was fed the states of its prompt, in slices between the target's steps. Only committed positions are fed, with
the states that the target computed, so only padding is ever rolled back. If the target's prefix cache
supplied a position, its state is not known. The head's keys and values for it come from the head's own prefix
cache (HeadPrefixes). Positions missing there are absent, and the head's positions begin after them.

A head that reads the target's caches needs none of that: only the state of each row's newest position.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_flatten

from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.models import HeadKind
from reprise.engine.kv_cache.batched_rows import BatchedRows
from reprise.engine.kv_cache.buffers import GroupedKVCache, RaggedKVCache, State, rebuild
from reprise.engine.kv_cache.per_row import Caches, leaves, make_caches
from reprise.engine.kv_cache.prefix_cache.disk import Loading, PrefixStore, weights_fingerprint
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice
from reprise.engine.kv_cache.rows import NextTokenView, Rows, evaluate
from reprise.engine.kv_cache.sliding_window import WindowKVCache
from reprise.engine.model.loading import LoadedModel
from reprise.engine.sampling.sampler import Draw, Sampler
from reprise.engine.speculative.draft_model.draft_prefill import DraftPrefixes, TextPrefill
from reprise.engine.speculative.draft_model.forecast import DraftWork
from reprise.engine.speculative.draft_model.model import (
    MAX_BACKLOG_TOKENS,
    MAX_FEEDS,
    PADDING_ID,
    DraftModel,
    draw_as_target,
)
from reprise.engine.speculative.heads.head import Bounds, Head, States, TappedStates, Taps
from reprise.engine.speculative.verify import RowInput

MAX_FILLED = 64
"""Maximum positions whose states are not known to feed as zeros, so that the others keep their distances."""


class HeadPrefill(TextPrefill):
    """The draft prefill of one sequence by a head.

    states: the target's states of the positions not fed yet. num_idle: steps since the row last was fed or
        drafted for.
    num_before: positions before the first known state; their keys and values came from the prefix cache.
    num_skipped: positions that the head's caches lack; later positions move down by that many.
    loading: the prefix files being read. is_disk_searched: whether they were looked for.
    """

    def __init__(self, head: Head, states: States, num_before: int = 0) -> None:
        super().__init__()
        self.is_ready = head.reads_target
        self.states = states
        self.num_idle = 0
        self.num_before = num_before
        self.num_skipped = 0
        self.loading: Loading | None = None
        self.is_disk_searched = False
        self._head = head

    def begin(self, caches: Caches, num_computed: int) -> None:
        """Begin; feed zeros for positions that are not in the caches and whose states are not known.

        Above MAX_FILLED, a single position of zeros stands for them all, as the head treats its first cached
        position as the first of the text.
        """
        num_missing = self.num_before - num_computed
        num_filled = num_missing if num_missing <= MAX_FILLED else 1
        self.states.prepend_zeros(num_filled)
        self.num_skipped = num_missing - num_filled
        if (bounds := self._head.bounds) and num_computed + self.states.num > bounds.most:
            sink = max(0, bounds.sink - num_computed)
            num_dropped = max(0, self.states.num - sink - bounds.window)
            self.states.drop(sink, num_dropped)
            self.num_skipped += num_dropped
        super().begin(caches, num_computed)

    @property
    def is_waiting(self) -> bool:
        """Whether files with this sequence's keys and values are being read."""
        return self.loading is not None and not self.loading.wait()

    def compute(self, model: object, tokens: Sequence[int], max_ids: int) -> int:  # noqa: ARG002
        """Feed the head the next positions of a text, and wait for it; return how many, at most max_ids."""
        num_fed = self._until_kept(min(max_ids, self.count_left(len(tokens))))
        if num_fed:
            following = mx.array([self.following(tokens, self.num_computed, num_fed)])
            self._head.feed(self.states.take(num_fed)[None], following, self.caches)
            evaluate(self.caches)
            self.num_computed += num_fed
            self.num_idle = 0
        return num_fed

    def count_left(self, num_tokens: int) -> int:  # noqa: ARG002
        """Count the positions left to feed, except the newest, from which a draft begins."""
        return max(0, self.states.num - 1)

    def computed_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        """Return the ids under which to cache the prefix; none if positions are missing."""
        return self.kept_ids(tokens, self.num_computed)

    def kept_ids(self, tokens: Sequence[int], num_held: int) -> Sequence[int]:
        """Return the ids to cache num_held positions under: the token after each; none if any is missing."""
        return () if self.num_skipped else self.following(tokens, 0, num_held)

    def following(self, tokens: Sequence[int], num_held: int, num: int) -> list[int]:
        """Return the token after each of num positions, starting after num_held cached ones."""
        start = self.num_skipped + num_held + 1
        return list(tokens[start : start + num])


MAX_IDLE_STEPS = 32
"""Steps after which nothing more is drafted for a row whose head has neither been fed nor drafted: to hand
its states over takes time in every step, which nobody pays back."""


@dataclass(frozen=True)
class NamedHead:
    """A head. source: the name of its drafts in timings. described: its kind with an article, for people."""

    head: Head
    source: HeadKind
    described: str = "a head"


class _HeadCaller:
    """Stands in for a model where rows expect one: runs a function of the head on their caches."""

    def __init__(self, head: Head) -> None:
        self.make_cache = head.make_cache
        self.run: Callable[[mx.array, Caches], mx.array]

    def __call__(self, tokens: mx.array, cache: Caches) -> mx.array:
        return self.run(tokens, cache)


class HeadDrafter:
    """A head and its rows, which the worker keeps in the order of the target's rows.

    source: the name of its drafts in timings. model: makes the caches of a row.
    num_bytes: bytes of the head's weights. state_bytes: bytes of the target's states at one position.
    target: the target's rows, set by their owner; for a head that reads them.
    Raises ModelError if the target's states cannot be collected, or its keys and values not be read.
    """

    target: Rows

    def __init__(self, named: NamedHead, loaded: LoadedModel) -> None:
        self.head = head = named.head
        self.source = named.source
        self._read_layers = _find_read_layers(loaded) if head.reads_target else ()
        self.model = _HeadCaller(head)
        self.taps = Taps(loaded.model, head.taps)
        self.num_bytes = sum(_array_bytes(head))
        self._make_draw = partial(draw_as_target, loaded.info.vocab_size)
        found = self._probe(loaded.model)
        self._size, self._dtype = found.shape[-1], found.dtype
        self.state_bytes = found.shape[-1] * found.dtype.size
        self.clear()

    def _probe(self, model: Any) -> mx.array:
        """Return the states of one position, not evaluated."""
        with self.taps.tapping() as tapped:
            model(mx.zeros((1, 1), mx.int32), cache=make_caches(model))
        return tapped.states()[0]

    def cost_share(self, loaded: LoadedModel) -> float:
        """Return a drafted token's cost as a share of a target's step, by the bytes of weights read."""
        of_target = _array_bytes(loaded.model)
        # The target's output head, which is among its largest arrays, is read unless the head has its own.
        has_own = self.head.reads_target or hasattr(self.head, "lm_head")
        of_output = 0 if has_own else max(of_target)
        return min(1.0, (self.num_bytes + of_output) / sum(of_target))

    def clear(self) -> None:
        """Remove all rows."""
        self.rows = BatchedRows(self.model)
        # Each row's draft prefill; None if nothing is drafted for the row.
        self._prefills: list[HeadPrefill | None] = []

    def measure_caches(self) -> tuple[int, dict[int, int], int]:
        """Return a row's bytes per position, in three parts.

        They are the bytes in caches of every position, in sliding caches by window, and in the largest cache.
        """
        caches = self.model.make_cache()
        num = 2
        states = mx.zeros((1, num, self._size), self._dtype)
        self.head.feed(states, mx.zeros((1, num), mx.int32), caches)
        token_bytes, windows, largest = 0, dict[int, int](), 0
        for cache in leaves(caches):
            each = sum(
                array.nbytes // array.shape[2] for array in (cache.keys, cache.values) if array.shape[2]
            )
            largest = max(largest, each)
            window = self.head.bounds.most if self.head.bounds else getattr(cache, "window", None)
            if window:
                windows[window] = windows.get(window, 0) + each
            else:
                token_bytes += each
        return token_bytes, windows, largest

    def make_prefill(self, states: States, num_computed: int) -> HeadPrefill:
        """Make the draft prefill of a sequence that joins the rows with num_computed tokens computed.

        states: those of the last of these tokens; the tokens before them came from the prefix cache.
        """
        return HeadPrefill(self.head, states, num_computed - states.num)

    def add(self, prefill: HeadPrefill | None) -> None:
        """Add an empty row at the end. prefill: its draft prefill; None to draft nothing for the row."""
        self.rows.add(self.model.make_cache(), 0)
        self._prefills.append(prefill)

    def awaiting_prefill(self) -> list[tuple[int, HeadPrefill]]:
        """Return the index and the draft prefill of each row whose draft prefill is not complete."""
        return [
            (row, prefill) for row, prefill in enumerate(self._prefills) if prefill and not prefill.is_ready
        ]

    def idle_rows(self) -> list[int]:
        """Return the rows idle for MAX_IDLE_STEPS."""
        return [row for row, one in enumerate(self._prefills) if one and one.num_idle > MAX_IDLE_STEPS]

    def start_drafting(self, row: int) -> None:
        """Give a row the caches of its complete draft prefill, so that it may draft."""
        prefill = self._prefills[row]
        assert prefill is not None
        self.rows.fill(row, prefill.release_caches(), prefill.num_computed)

    def drop_prefill(self, row: int) -> None:
        """Draft nothing more for a row."""
        self._prefills[row] = None

    def keep_row(self, row: int, tokens: Sequence[int], prefixes: DraftPrefixes) -> None:
        """Store a row's keys and values as a prefix before its removal, after feeding the remaining states.

        tokens: all committed tokens of the row.
        """
        prefill = self._prefills[row]
        if prefill is None:
            return
        if not prefill.is_ready:
            prefixes.keep(prefill, tokens)
            return
        num_held = self.rows.lengths[row]
        # States of what came after the end of the answer are of no use.
        num_left = min(prefill.states.num, len(tokens) - 1 - num_held, MAX_BACKLOG_TOKENS)
        if prefixes.cache is None or not (ids := prefill.kept_ids(tokens, num_held + num_left)):
            return
        if num_left:
            alone = [prefill if at == row else None for at in range(len(self._prefills))]
            self._feed(alone, [num_left if one else 0 for one in alone], [tokens] * len(alone))
        prefixes.keep_row(ids, row, self.rows)

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        self.rows.remove(row)
        self._prefills[row] = self._prefills[-1]
        self._prefills.pop()

    @contextmanager
    def tapping(self) -> Iterator[TappedStates | None]:
        """Collect the states of the target's next forward pass over all rows; None if no row needs them."""
        with self.taps.tapping() if any(self._prefills) else nullcontext() as tapped:
            yield tapped

    def receive(self, tapped: TappedStates | None, num_final: Sequence[int]) -> list[mx.array]:
        """Take each row's states of the positions that stay in the target's caches.

        num_final: (rows,) how many of the positions fed stay.
        Returns copies of these states, not evaluated: until then the states of all positions fed stay alive.
        """
        if tapped is None:
            return []
        wanted = [num if prefill else 0 for prefill, num in zip(self._prefills, num_final, strict=True)]
        taken = []
        for prefill, part in zip(self._prefills, tapped.of_rows(wanted), strict=True):
            if prefill and part is not None:
                if self.head.reads_target:
                    # Not a view, which would keep the others.
                    prefill.states, part = States(), mx.contiguous(part[-1:])
                else:
                    # A copy pays for it.
                    prefill.num_idle += len(part) == 1
                prefill.states.add(part)
                taken.append(part)
        return taken

    def fill_in(
        self, inputs: list[RowInput], committed: Sequence[Sequence[int]], sampler: Sampler
    ) -> DraftWork | None:
        """Draft the tokens that the inputs want. A row that lacks too many positions only catches up.

        inputs: one for each row; those with new drafts are replaced. committed: all tokens of each row.
        sampler: the target's, for the same rows.
        Returns the work done, None if no input wants a draft.
        """
        num = min(self.head.max_drafted, max(row_input.num_to_draft for row_input in inputs))
        if not num:
            return None
        wanting = [
            prefill if prefill and prefill.is_ready and row_input.num_wanted else None
            for prefill, row_input in zip(self._prefills, inputs, strict=True)
        ]
        for busy in filter(None, wanting):
            busy.num_idle = 0
        for at, prefill in enumerate(wanting):
            if prefill and self.head.bounds and self.rows.lengths[at] > self.head.bounds.most:
                self._shorten(at, prefill, self.head.bounds)
        num_fed = 1
        for _ in range(MAX_FEEDS):
            backlogs = [max(0, min(MAX_BACKLOG_TOKENS, r.states.num - 1)) if r else 0 for r in wanting]
            if not any(backlogs):
                break
            if num_fed > 1:
                mx.eval(self._held)
            self._feed(wanting, backlogs, committed)
            num_fed += max(backlogs)
        drafting = [prefill if prefill and prefill.states.num == 1 else None for prefill in wanting]
        if self.head.reads_target and not any(drafting):
            # The rows that want drafts have just joined, without a state yet.
            return None
        translated: list[tuple[int, int] | None] = [None] * len(inputs)
        if any(drafting):
            drafts = self._draft(drafting, [tokens[-1] for tokens in committed], num, inputs, sampler)
            for row, (row_input, prefill) in enumerate(zip(inputs, drafting, strict=True)):
                if prefill:
                    draft = drafts[row][: row_input.num_wanted]
                    source = replace(row_input.source, tokens=draft)
                    inputs[row], translated[row] = replace(row_input, draft=draft, source=source), (num, num)
        else:
            mx.eval(self._held)
        lacking = [prefill.states.num if prefill else 0 for prefill in self._prefills]
        return DraftWork(num_fed, num if any(drafting) else 0, lacking, translated)

    def _shorten(self, row: int, prefill: HeadPrefill, bounds: Bounds) -> None:
        """Drop a row's positions between sink and window; those after them move up."""
        held, num_kept = self.rows.lengths[row], bounds.sink + bounds.window
        last = bounds.move(self.rows.kv_slice(row, held - bounds.window, held), held - num_kept)
        kept = [self.rows.kv_slice(row, 0, bounds.sink), last]
        caches = rebuild(self.model.make_cache(), kept, [], num_kept)
        evaluate(caches)
        self.rows.fill(row, caches, num_kept)
        prefill.num_skipped += held - num_kept

    @property
    def _held(self) -> list[mx.array]:
        """All rows' buffers."""
        return [array for cache in leaves(self.rows.caches) for one in _parts(cache) for array in one.arrays]

    def _feed(
        self,
        prefills: Sequence[HeadPrefill | None],
        nums: Sequence[int],
        committed: Sequence[Sequence[int]],
    ) -> None:
        """Feed each row its number of positions, all rows in one forward pass."""
        held, width = list(self.rows.lengths), max(nums)
        fed, states = [], []
        for row, (prefill, num, tokens) in enumerate(zip(prefills, nums, committed, strict=True)):
            if prefill and num:
                fed.append(prefill.following(tokens, held[row], num))
                states.append(mx.pad(prefill.states.take(num), [(0, width - num), (0, 0)]))
            else:
                fed.append([PADDING_ID])
                states.append(mx.zeros((width, self._size), self._dtype))

        def feed(following: mx.array, caches: Caches) -> mx.array:
            self.head.feed(mx.stack(states), following, caches)
            return following

        self.model.run = feed
        self.rows.forward_ragged(fed)
        self._forget(held, nums)

    def _draft(
        self,
        prefills: Sequence[HeadPrefill | None],
        newest: Sequence[int],
        num: int,
        inputs: Sequence[RowInput],
        sampler: Sampler,
    ) -> list[list[int]]:
        """Draft num tokens for each row; waits once. The newest position stays in the caches."""
        reads = self.head.reads_target
        rows = [row for row, prefill in enumerate(prefills) if prefill or not reads]
        none = mx.zeros((1, self._size), self._dtype)
        drafting = [prefills[row] for row in rows]
        states = mx.concatenate([prefill.states.take(1) if prefill else none for prefill in drafting])
        draws = [Draw(row) for row in rows] if reads else None
        draw = self._make_draw(sampler, [inputs[row].position for row in rows], num, draws)

        def choose(logits: mx.array, _: int) -> mx.array:
            return mx.stack([draw(logits[:, at]) for at in range(logits.shape[1])], axis=1)

        last = mx.array([newest[row] for row in rows])
        if reads:
            seen = [NextTokenView(self.target, rows, layer) for layer in self._read_layers]
            with NextTokenView.attending():
                drafted: Any = self.head.draft(states, last, seen, num, choose).tolist()
            by_row = dict(zip(rows, drafted, strict=True))
            return [by_row.get(row, []) for row in range(len(prefills))]
        held = list(self.rows.lengths)
        self.model.run = lambda last, caches: self.head.draft(states, last[:, 0], caches, num, choose)
        drafted = self.rows.forward(last[:, None]).tolist()
        self._forget(held, [int(prefill is not None) for prefill in prefills])
        return list(drafted)

    def _forget(self, held: Sequence[int], nums: Sequence[int]) -> None:
        """Forget the padding that rows were fed. held: lengths before. nums: positions to keep."""
        for row, (length, num) in enumerate(zip(held, nums, strict=True)):
            self.rows.roll_back(row, length + num)


def _find_read_layers(loaded: LoadedModel) -> tuple[int, int]:
    """Return the indices of the caches of the last layer with full attention and of the last with a window.

    Raises ModelError if other machines have parts of the model.
    """
    # There rank 0 has but a handle of the whole model.
    if not isinstance(loaded.model, Module):
        raise ModelError(
            f"the head reads keys and values of {loaded.info.name}, and other machines have some of them; "
            "leave --draft-model or --hosts out"
        )
    last = {isinstance(cache, WindowKVCache): at for at, cache in enumerate(make_caches(loaded.model))}
    return last[False], last[True]


def _array_bytes(module: Any) -> list[int]:
    flat: Any = tree_flatten(module.parameters())
    return [array.nbytes for _, array in flat]


def _parts(cache: Any) -> list[RaggedKVCache]:
    return list(cache.parts.values()) if isinstance(cache, GroupedKVCache) else [cache]


RowDrafter = DraftModel | HeadDrafter
"""A drafter for the target's rows with caches of its own: a draft model or a head."""


MIN_LOADED_IDS = 128
"""Prefixes that save fewer ids are not read from files: they hardly make drafts better."""

MAX_WAIT_S = 2.0
"""Seconds that the engine's thread waits for the files of a head, which are small."""

KEPT_VERSION = 2
"""Changes with what a head keeps by the same weights; files of other versions are not read."""

MayCopy = Callable[[int], bool]
"""Returns whether memory allows copies of the head's caches for this many tokens."""


class HeadPrefixes(DraftPrefixes):
    """A head's prefix cache, for prompts whose first tokens are in the target's prefix cache.

    The target's states of these tokens are gone, so the head cannot be fed them again. A head's keys and
    values at a position also depend on the next token, and are stored under that token's id: position 0 under
    the text's second token. Texts that differ in the first token share nothing in the target's cache either.

    store: the target's prefix files, if any. may_copy: called before files are loaded.
    """

    def __init__(
        self,
        drafter: HeadDrafter,
        budget_bytes: int,
        find_opening: Callable[[list[int]], int],
        store: PrefixStore | None,
        may_copy: MayCopy,
    ) -> None:
        super().__init__(drafter.model, lambda: None, budget_bytes, find_opening)
        self._may_copy = may_copy
        self._store: PrefixStore | None = None
        if store is not None and self.cache is not None:
            part = f"{KEPT_VERSION} {drafter.source} {drafter.head.taps} {weights_fingerprint(drafter.head)}"
            self._store = store.sibling(part, self.needs_state)

    def look_up(self, prefill: TextPrefill, tokens: Sequence[int], max_tokens: int) -> int:  # noqa: ARG002
        """Begin a text's prefill after its cached part, or start to load that part from a file.

        Returns 0, as no token was looked up.
        """
        assert isinstance(prefill, HeadPrefill)
        # The last one is never looked for.
        ids = prefill.following(tokens, 0, prefill.num_before + 1)
        if not self._is_loading(prefill, ids):
            self._begin(prefill, ids if prefill.num_before else ())
        return 0

    def _is_loading(self, prefill: HeadPrefill, ids: Sequence[int]) -> bool:
        """Look for a prefix in files, once; return whether it is being read, to be put into the cache."""
        if self._store is None or self.cache is None or not prefill.num_before:
            return False
        if not prefill.is_disk_searched:
            prefill.is_disk_searched = True
            if self._store.match(ids) >= self.cache.match_usable(ids) + MIN_LOADED_IDS:
                prefill.loading = self._store.start_load(ids)
            return prefill.loading is not None
        loading, prefill.loading = prefill.loading, None
        if loading is None or not loading.wait(MAX_WAIT_S):
            return False
        if self._may_copy(loading.ends[-1]) and (taken := self._store.finish_load(loading)):
            self.cache.put(ids[: loading.ends[-1]], *taken)
        return False

    def _put(self, ids: Sequence[int], cut: CutSlice, take: Callable[[], State]) -> None:
        super()._put(ids, cut, take)
        if self._store is not None and len(ids):
            self._store.save(ids, cut, take, self._may_copy)
