"""Prefixes: store the computed keys, values and state of texts, in memory and files, for later prompts."""

import hashlib
import logging
from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter

import numpy as np

from reprise.config.settings import AUTO, Settings
from reprise.engine.batch.sequence import Sequence
from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.buffers import (
    KVSlice,
    State,
    cut_slice,
    has_state,
    num_bytes,
    rebuild,
    start_copies,
    take_state,
)
from reprise.engine.kv_cache.per_row import Caches, can_trim, leaves, make_caches
from reprise.engine.kv_cache.prefix_cache.disk import (
    MAX_LOAD_S,
    Loading,
    PrefixStore,
    make_store,
    weights_fingerprint,
)
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.kv_cache.prefix_cache.trie import (
    CutSlice,
    PrefixCache,
    PrefixStatus,
)
from reprise.engine.kv_cache.rows import Rows
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.model.capabilities import NOT_TRIED
from reprise.engine.model.loading import LoadedModel
from reprise.engine.text.templates.chat_template import MessageOpenings
from reprise.engine.vision.keys import whole_images, without_cut_images

log = logging.getLogger("reprise.engine")

MIN_SHARED_TOKENS = 32
"""A shorter shared prefix is not waited for, and no state is kept for it alone."""

FIRST_COMPARED_TOKENS = 64
"""Tokens of two texts that are compared first; twice as many each time that all of them are equal."""

MIN_LOADED_TOKENS = 128
"""Prefixes that save fewer tokens are not read from files: computing them is as fast."""


MAX_LOADS = 2
"""Prompts for which files are read, or have been read while no row is free: their bytes count nowhere yet."""

WAIT_S = 0.05
"""Seconds that the engine's thread waits for files at a time, while it has nothing else to do."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies of a prompt's caches, perhaps not computed yet.

    tokens: of the prefix. num_held: leading tokens whose keys and values are already cached.
    """

    sequence: Sequence
    tokens: TextKey
    num_held: int
    kv_slice: KVSlice
    state: State
    weight: float

    @property
    def num_bytes(self) -> int:
        """The bytes of all copies."""
        return num_bytes(self.kv_slice) + num_bytes(self.state)


class Prefixes:
    """Stores and finds sequences' keys, values and state. Used by the engine's thread only.

    budget_bytes: memory for cached prefixes. memory_budget: decides whether there is memory for a copy now.
    can_look_back: whether state at a length can be stored after a chunk has passed that length.
    needs_state: whether a prefix is useful only with the state at its end.
    can_share: whether a prefix can also be copied from a running sequence.
    cache: None if budget_bytes is 0 or the model's caches cannot be sliced.
    copies: those that were started and are not in the prefix cache yet.
    searched_s: the seconds that is_loading() and awaits() have searched since the caller set it to 0.
    store: the cache's second tier on disk, if the settings name a folder. late: a load that was given up;
        nothing is loaded until it has ended. loaders: the sequences for which files were read last.
    Raises ModelError if the settings' folder is not usable.
    """

    def __init__(
        self, loaded: LoadedModel, settings: Settings, budget_bytes: int, memory_budget: MemoryBudget
    ) -> None:
        self.make_caches: Callable[[], Caches] = partial(make_caches, loaded.model, settings.kv_bits)
        self.budget_bytes, self.memory_budget = budget_bytes, memory_budget
        self.needs_state = has_state(self.make_caches())
        self.can_look_back = all(map(can_trim, leaves(self.make_caches())))
        fault = loaded.prefix_fault(settings.kv_bits)
        if fault not in (None, NOT_TRIED):
            log.warning("no prefix cache, so every prompt is computed in full: %s", fault)
        self.can_share = fault is None and not self.needs_state
        self.copies: list[Copies] = []
        self.searched_s = 0.0
        self.cache: PrefixCache | None = None
        if fault is None and budget_bytes:
            self.cache = PrefixCache(budget_bytes, self.make_caches, self.needs_state)
        self.store: PrefixStore | None = None
        self.late: Loading | None = None
        self.loaders: list[Sequence] = []
        if self.cache is not None and settings.prefix_folder is not None:
            self.store = self._open_store(loaded, settings, settings.prefix_folder)

    def _open_store(self, loaded: LoadedModel, settings: Settings, folder: Path) -> PrefixStore | None:
        model, tower = loaded.model, loaded.sight.tower.arrays() if loaded.sight else []
        # Other versions may compute other bytes.
        known = (weights_fingerprint(model, tower), settings.kv_bits, version("mlx"), version("mlx-lm"))
        fingerprint = hashlib.sha256(repr(known).encode()).hexdigest()
        try:
            limit = settings.prefix_cache_dir_bytes
            store = make_store(model, folder, limit, fingerprint, self.needs_state)
        except OSError as fault:
            why = f"--prefix-cache-dir {folder}: {fault.strerror or fault}"
            if settings.prefix_cache_dir != AUTO:
                raise ModelError(why) from fault
            log.warning("prompts are kept in memory only, and computed anew after a restart: %s", why)
            return None
        log.info(
            "%s keeps prompts over a restart: %.1f of at most %.1f GB (off: --prefix-cache-dir none)",
            folder, store.num_bytes / 1e9, store.budget_bytes / 1e9,
        )  # fmt: skip
        return store

    def status(self) -> PrefixStatus | None:
        """Return the prefix cache's counts, None without one. May be called on any thread."""
        if self.cache is None:
            return None
        status = self.cache.status()
        if self.store is not None:
            store = self.store
            status = replace(
                status, file_bytes=store.num_bytes, written_file_bytes=store.written_bytes,
                left_out_files=store.num_left_out,
            )  # fmt: skip
        return status

    def close(self) -> None:
        """Wait until all files are written, but not for long."""
        if self.store is not None:
            self.store.close()

    def start_keeping(self, sequence: Sequence, length: int) -> None:
        """Start copies of a prefilling sequence's caches up to a length that its last chunk passed.

        The device makes the copies after that chunk, and only finish_keeping() waits for them.
        """
        prefill = sequence.prefill
        if self.cache is None or not length:
            return
        tokens = sequence.text_key(length)
        num_held = max([
            self.cache.count_held(tokens),
            *(len(one.tokens) for one in self.copies if one.sequence is sequence),
        ])  # fmt: skip
        if num_held >= length and self.cache.state_at(tokens):
            return
        if not self.memory_budget.may_copy(length, num_held=num_held):
            return
        is_rung = length in prefill.rungs
        try:
            kv_slice = cut_slice(prefill.caches, num_held, length) if num_held < length else []
            state = take_state(prefill.caches, length if length < prefill.num_computed else None)
            start_copies(kv_slice, state)
        except Exception:
            log.warning("a prefix could not be cached", exc_info=True)
            return
        copies = Copies(sequence, tokens, num_held, kv_slice, state, prefill.rungs.get(length, 1.0))
        # Counted at once, so that nothing else takes their memory.
        self.cache.num_bytes += copies.num_bytes
        self.copies.append(copies)
        if not is_rung:
            sequence.prefix.unsaved.append(length)

    def finish_keeping(self) -> None:
        """Put the started copies into the prefix cache. Call it once the chunks before them are computed."""
        for one in self.drop_copies():
            assert self.cache is not None
            num_held = self.cache.count_held(one.tokens)
            # Something else may have been dropped, or kept, in the meantime.
            if num_held not in (one.num_held, len(one.tokens)):
                continue
            try:
                self.cache.put(one.tokens, lambda _start, _end, of=one: of.kv_slice, one.state, one.weight)  # type: ignore[misc]
            except Exception:
                # No request depends on this copy.
                log.warning("a prefix could not be cached", exc_info=True)

    def drop_copies(self) -> list[Copies]:
        """Forget the started copies, and return them."""
        copies, self.copies = self.copies, []
        if self.cache is not None:
            self.cache.num_bytes -= sum(one.num_bytes for one in copies)
        return copies

    def keep_cancelled(self, sequence: Sequence) -> None:
        """Store the computed part of a cancelled prompt as a prefix, in memory and files."""
        caches = sequence.prefill.caches
        cut = partial(cut_slice, caches)
        is_saved = self._save_kept(sequence, sequence.prefill.num_computed, cut)
        if self.keep_prefill(sequence) and is_saved:
            self._save(sequence.text_key(sequence.prefill.num_computed), cut, partial(take_state, caches))

    def keep_prefill(self, sequence: Sequence) -> bool:
        """Store the computed part of a prompt as a prefix in memory; return whether there was room for it."""
        caches, num_computed = sequence.prefill.caches, sequence.prefill.num_computed
        tokens = sequence.text_key(num_computed)
        return bool(num_computed) and self._keep(
            tokens, partial(cut_slice, caches), partial(take_state, caches)
        )

    def keep_row(self, sequence: Sequence, row: int, rows: Rows) -> bool:
        """Store a row's caches as a prefix if memory allows; return whether it did and waited for that."""
        held, num_tokens = rows.lengths[row], len(sequence.tokens)
        cut = partial(rows.kv_slice, row)
        is_saved = self._save_kept(sequence, held, cut)
        # A row may hold more than its answer, but its state cannot be rolled back to the answer's end.
        if held > num_tokens and self.needs_state:
            return False
        tokens = sequence.text_key(min(held, num_tokens))
        take = partial(rows.state, row)
        if not self._keep(tokens, cut, take):
            return False
        if is_saved:
            self._save(tokens, cut, take)
        return True

    def _keep(self, tokens: TextKey, cut: CutSlice, take: Callable[[], State]) -> bool:
        """Store a prefix in memory, if there is enough for a copy; return whether it was stored."""
        if self.cache is None:
            return False
        num_held = self.cache.count_held(tokens)
        if not self.memory_budget.may_copy(len(tokens), num_held=num_held):
            return False
        # The prefixes dropped to make room may be a part of this one.
        if self.cache.count_held(tokens) < num_held and not self.memory_budget.may_copy(len(tokens)):
            return False
        try:
            self.cache.put(tokens, cut, take())
        except Exception:
            # No request depends on this copy.
            log.warning("a prefix could not be cached", exc_info=True)
        return True

    def _save_kept(self, sequence: Sequence, num_held: int, cut: CutSlice) -> bool:
        """Save the first prompt, and what was cached of later text during prefill and still is in memory.

        Return whether all is saved. If not, no longer text may be: its files would hold these tokens too, and
        the state at their end could not be added.
        """
        unsaved, sequence.prefix.unsaved = sequence.prefix.unsaved, []
        if self.store is None or self.cache is None:
            return False
        head = sequence.request.head_tokens
        for length in sorted({head, *unsaved}):
            tokens = sequence.text_key(length)
            if length > num_held or (self.needs_state and not self.cache.state_at(tokens)):
                continue
            if not self._save(tokens, cut, partial(self.cache.state_at, tokens), is_head=length <= head):
                return False
        return True

    def _save(
        self, tokens: TextKey, cut: CutSlice, take: Callable[[], State], *, is_head: bool = False
    ) -> bool:
        """Save a prefix in files as far as limits allow; return whether all of it is saved."""
        if self.store is None:
            return False
        try:
            return self.store.save(tokens, cut, take, self.memory_budget.may_copy, is_head=is_head)
        except Exception:
            log.warning("a prefix could not be saved", exc_info=True)
            return False

    def is_loading(self, sequence: Sequence, may_wait: bool) -> bool:
        """Look for a prefix of the prompt in files, once; return whether files are still being read.

        A prefix that has been read is put into the prefix cache.

        may_wait: wait for the files a little, as no other sequence needs the thread.
        """
        if self.store is None or self.cache is None or sequence.request.prompt_logprobs:
            return False
        try:
            return self._is_loading(self.store, self.cache, sequence, may_wait)
        # The prompt can be computed in full instead.
        except Exception:
            log.warning("request %s reads no prefix from files", sequence.request.id, exc_info=True)
            sequence.prefix.is_disk_searched, sequence.prefix.loading = True, None
            return False

    def _is_loading(self, store: PrefixStore, cache: PrefixCache, sequence: Sequence, may_wait: bool) -> bool:
        if self.late is not None:
            if not self.late.wait():
                sequence.prefix.loading = None
                return False
            self.late = None
        if not sequence.prefix.is_disk_searched:
            start = perf_counter()
            self._search_files(store, cache, sequence)
            self.searched_s += perf_counter() - start
            if sequence.prefix.awaits_disk:
                return True
        if (loading := sequence.prefix.loading) is None:
            return False
        if not loading.wait(WAIT_S if may_wait else 0.0):
            if not loading.is_late:
                return True
            log.warning("cached prefixes are not read from files for now: it takes over %.0f s", MAX_LOAD_S)
            loading.cancel()
            self.late, sequence.prefix.loading = loading, None
            return False
        if not may_wait and store.advance_load(loading):
            return True
        sequence.prefix.loading = None
        # The prefix that was read, and its part that is not in memory yet.
        if not self.memory_budget.may_copy(loading.ends[-1], num_copies=2):
            return False
        if (taken := store.finish_load(loading)) is not None:
            cache.put(sequence.text_key(loading.ends[-1]), *taken)
        return False

    def _search_files(self, store: PrefixStore, cache: PrefixCache, sequence: Sequence) -> None:
        """Start to read a prefix from files if that saves enough, or note what it waits for."""
        search = sequence.prefix
        self.drop_loads()
        if search.awaits_disk in self.loaders:
            return
        search.awaits_disk = None
        if search.num_on_disk and not self.memory_budget.may_copy(search.num_on_disk, num_copies=2):
            return
        key = _whole(sequence, store.match)
        length = store.match(key)
        if length < cache.match_usable(key) + MIN_LOADED_TOKENS:
            search.is_disk_searched = True
            return
        search.awaits_disk = self._loader_before(sequence)
        if search.awaits_disk:
            return
        search.num_on_disk = length
        if self.memory_budget.may_copy(length, num_copies=2):
            search.is_disk_searched = True
            search.loading = store.start_load(key)
            self.loaders.append(sequence)

    def drop_loads(self) -> None:
        """Forget what was read for sequences that have ended, and who reads no more."""
        for one in self.loaders:
            if one.ended and one.prefix.loading:
                one.prefix.loading.cancel()
                one.prefix.loading = None
        self.loaders = [one for one in self.loaders if one.prefix.loading]

    def _loader_before(self, sequence: Sequence) -> Sequence | None:
        """Return an earlier sequence that reads a part of this one's prompt, or one of many that read."""
        earlier = [one for one in self.loaders if one.timing.submitted_at < sequence.timing.submitted_at]
        if len(earlier) >= MAX_LOADS:
            return earlier[0]
        return next((one for one in earlier if num_shared(sequence, one) >= MIN_LOADED_TOKENS), None)

    def awaits(self, sequence: Sequence, prefilling: SequenceOf[Sequence]) -> bool:
        """Whether a waiting sequence should wait until another has prefilled their shared prefix."""
        if sequence.request.prompt_logprobs or (self.cache is None and not self.can_share):
            return False
        if sequence.prefix.awaited and sequence.prefix.awaited[0] not in prefilling:
            # It has joined the rows, or it was cancelled or preempted, perhaps before it got so far.
            sequence.prefix.awaited, sequence.prefix.compared = None, ()
        # Compared only when the set of prefilling sequences changed, as this is called at every step.
        if sequence.prefix.awaited is None and sequence.prefix.compared != prefilling:
            start = perf_counter()
            sequence.prefix.compared = list(prefilling)
            sequence.prefix.awaited = self._choose_awaited(sequence, prefilling)
            if sequence.prefix.awaited and self.needs_state:
                sequence.prefix.awaited = self._keep_shared(*sequence.prefix.awaited)
            self.searched_s += perf_counter() - start
        if sequence.prefix.awaited is None:
            return False
        other, shared = sequence.prefix.awaited
        return other in prefilling and not other.ended and other.prefill.num_computed < shared

    def _keep_shared(self, other: Sequence, shared: int) -> tuple[Sequence, int]:
        """Have a prefilling sequence cache a prefix that another shares; return sequence and length."""
        head = other.request.head_tokens
        if (
            head in other.prefill.keep_at
            and other.prefill.num_computed < head <= shared < head + MIN_SHARED_TOKENS
        ):
            return other, head
        other.prefill.keep_at.add(shared)
        return other, shared

    def _choose_awaited(
        self, sequence: Sequence, prefilling: SequenceOf[Sequence]
    ) -> tuple[Sequence, int] | None:
        """Return the prefilling sequence to wait for, and the number of leading tokens that both share."""
        search = sequence.prefix
        # No tokens are committed to a sequence that waits or prefills, so these counts stay true.
        known, search.num_shared = search.num_shared, {}
        candidates = []
        for other in prefilling:
            key = other, len(other.tokens)
            shared = known.get(key)
            search.num_shared[key] = shared = num_shared(sequence, other) if shared is None else shared
            if other.prefill.num_computed < shared:
                candidates.append((other, shared))
        num_evictions = self.cache.num_evictions if self.cache else 0
        num_held, at_evictions = search.num_held
        at_least = num_held if at_evictions == num_evictions else 0
        if all(shared < at_least + MIN_SHARED_TOKENS for _, shared in candidates):
            return None
        held = self.count_kept(sequence)
        search.num_held = held, num_evictions
        awaited = None
        for other, shared in candidates:
            if shared >= held + MIN_SHARED_TOKENS:
                held, awaited = shared, (other, shared)
        return awaited

    def find(
        self, sequence: Sequence, members: SequenceOf[Sequence], rows: Rows, prefilling: SequenceOf[Sequence]
    ) -> tuple[Caches, int]:
        """Return caches with the longest known prefix of a sequence's tokens, and its length.

        The last token is never part of the prefix, since its logits have to be computed.
        members, rows: the sequences that decode, and their rows.
        """
        if sequence.request.prompt_logprobs:
            # The logits of the whole prompt are needed.
            return self.make_caches(), 0
        try:
            return self._find(sequence, members, rows, prefilling)
        # The prompt can be computed in full instead.
        except Exception:
            log.warning(
                "request %s computes its whole prompt: the prefix lookup failed",
                sequence.request.id,
                exc_info=True,
            )
            return self.make_caches(), 0

    def _find(
        self, sequence: Sequence, members: SequenceOf[Sequence], rows: Rows, prefilling: SequenceOf[Sequence]
    ) -> tuple[Caches, int]:
        cache, make_caches = self.cache, self.make_caches
        num_held = self.count_kept(sequence)
        shared, kv_slice = 0, None
        if self.can_share:
            shared, kv_slice = self._borrow(sequence, members, rows, prefilling)
        if kv_slice is not None and shared > num_held:
            return rebuild(make_caches(), [kv_slice], [], shared), shared
        found = cache.find(_whole(sequence, cache.match_usable)) if cache else None
        return found or (make_caches(), 0)

    def count_usable(self, sequence: Sequence) -> int:
        """Count the leading tokens of a prompt that the prefix cache would give it now."""
        cache = self.cache
        return cache.match_usable(_whole(sequence, cache.match_usable)) if cache else 0

    def count_kept(self, sequence: Sequence) -> int:
        """Count the leading tokens that the prefix cache holds, never a part of an image."""
        held = self.cache.match(sequence.text_key()) if self.cache else 0
        return whole_images(sequence.request.images, held)

    def _borrow(
        self, sequence: Sequence, members: SequenceOf[Sequence], rows: Rows, prefilling: SequenceOf[Sequence]
    ) -> tuple[int, KVSlice | None]:
        """Copy the longest prefix that a row or a prefilling prompt holds: its length and its KV slice."""
        holders: list[tuple[Sequence, int, CutSlice]] = [
            (m, rows.lengths[row], partial(rows.kv_slice, row)) for row, m in enumerate(members)
        ]
        holders += [(p, p.prefill.num_computed, partial(cut_slice, p.prefill.caches)) for p in prefilling]
        best, cut_best = 0, None
        for holder, held, cut in holders:
            shared = whole_images(sequence.request.images, min(num_shared(sequence, holder), held))
            if shared > best:
                best, cut_best = shared, cut
        if cut_best is None:
            return 0, None
        kv_slice = cut_best(0, best)
        # Copied now: until then the rows' next forward could not write to their buffers in place.
        start_copies(kv_slice)
        return best, kv_slice


def num_shared(sequence: Sequence, other: Sequence) -> int:
    """Count the leading tokens that a sequence shares with another, without the sequence's last token."""
    most = min(len(sequence.tokens) - 1, len(other.tokens))
    shared = length = 0
    # Texts that have little in common are not read to their ends.
    while shared == length < most:
        length = min(most, max(FIRST_COMPARED_TOKENS, 2 * length))
        shared = sequence.text_key(length).count_equal(other.text_key(length))
    return whole_images(sequence.request.images, shared)


def _whole(sequence: Sequence, match: Callable[[TextKey], int]) -> TextKey:
    """Return the key of a waiting sequence's text, shortened so that match() ends within no image."""
    return without_cut_images(sequence.request.images, sequence.text_key(), match)


MAX_GAP_TOKENS = 1024
"""Maximum tokens between two of these lengths near the prompt's end, where most prompts part."""

NUM_RUNGS = 16
"""Further away the gaps grow, unless all of them take little memory: a gap is at most 1/NUM_RUNGS of what
follows it."""

WITHIN_WEIGHT = 0.25
"""Relative chance that prompts diverge within a message rather than at its beginning (1)."""

EVEN_SHARE = 0.25
"""Share of the memory that one prompt's ladder may take for gaps that do not grow toward its start."""

OPENING_REACH = 256
"""Number of a prompt's last tokens in which the opening of the answer is searched."""


class Checkpoints:
    """Chooses the prompt lengths at which state is stored. Used by the engine's thread only.

    openings: the tokens with which messages begin in prompts.
    """

    def __init__(self, prefixes: Prefixes, openings: MessageOpenings) -> None:
        self._prefixes = prefixes
        self._openings, self._opening = openings, list(openings.answer)

    def plan(self, sequence: Sequence, max_cuts: int) -> None:
        """Choose the lengths at which to store the state of a newly admitted sequence.

        They are: where its prompt diverges from a cached one, where the answer begins, the end of system text
        and tools, and a ladder of lengths up to the prompt's end. The next turn's prompt may leave out the
        reasoning, and then diverges where the answer begins. If the answer's opening tokens stay in later
        turns, state is stored only after them.

        max_cuts: how many chunks may be cut short only to store state.
        """
        if not self._keeps(sequence):
            return
        prefill, start, end = sequence.prefill, sequence.prefill.num_computed, len(sequence.tokens) - 1
        opening = self.opening(sequence.tokens)
        if len(sequence.tokens) - opening == self._openings.num_lasting:
            opening = 0
        prefill.num_found, prefill.opening = start, opening
        at_least = start + MIN_SHARED_TOKENS
        prefill.keep_at = {at for at in (self._prefixes.count_kept(sequence), opening) if at >= at_least}
        if self._prefixes.can_look_back:
            max_cuts = end
        elif not prefill.opening:
            # Where the answer opens, other prompts are cut.
            max_cuts += 1
        head = sequence.request.head_tokens
        if at_least <= head < end and head not in prefill.keep_at and max_cuts:
            prefill.keep_at.add(head)
            max_cuts -= 1
        if end - start <= MAX_GAP_TOKENS:
            return
        state_bytes = self._prefixes.memory_budget.state_bytes(end)
        # One prompt's ladder takes at most half of the memory.
        max_rungs = min(max_cuts, self._prefixes.budget_bytes // (2 * state_bytes + 1))
        gap = -(-(end - start) // (max_rungs + 1))
        borders = np.flatnonzero(np.isin(sequence.text_key().ids, list(self._openings.tokens))).tolist()
        # Twice as many as there are gaps, as a rung at a border makes a gap shorter.
        most = 2 * (end - start) // MAX_GAP_TOKENS
        is_even = most <= max_rungs and most * state_bytes <= EVEN_SHARE * self._prefixes.budget_bytes
        num_rungs = max(NUM_RUNGS, most) if is_even else NUM_RUNGS
        rungs = choose_rungs(sorted(prefill.keep_at), borders, start, end, gap, num_rungs)
        rungs = [whole_images(sequence.request.images, at) for at in rungs]
        likely = {*borders}
        prefill.rungs = {
            at: 1.0 if at in likely else WITHIN_WEIGHT
            for at in rungs[:max_rungs]
            if at not in prefill.keep_at
        }

    def wants_end(self, sequence: Sequence) -> bool:
        """Whether to store state at the end of a prompt, so that it need not be computed again."""
        prefill = sequence.prefill
        if not self._keeps(sequence) or sequence.num_answered:
            return False
        kept = prefill.kept_lengths - {prefill.opening}
        last = max((at for at in kept if at <= prefill.num_computed), default=prefill.num_found)
        return prefill.num_computed > max(last, prefill.num_found)

    def _keeps(self, sequence: Sequence) -> bool:
        """Whether to store state of a sequence's prompt. With prompt log probabilities, none is used."""
        has_use = self._prefixes.cache is not None and self._prefixes.needs_state
        return has_use and not sequence.request.prompt_logprobs

    def opening(self, tokens: list[int]) -> int:
        """Return the number of tokens before the last answer's opening tokens; 0 without an opening."""
        count = len(self._opening)
        for at in range(len(tokens) - count, max(0, len(tokens) - OPENING_REACH), -1):
            if count and tokens[at : at + count] == self._opening:
                return at
        return 0


def choose_rungs(
    fixed: SequenceOf[int],
    borders: SequenceOf[int],
    start: int,
    end: int,
    min_gap: int = 0,
    num_rungs: int = NUM_RUNGS,
) -> list[int]:
    """Choose the ladder's lengths between start and end, ascending, with gaps that grow toward the start.

    The next length is the last fixed one within its gap, else the last border in the gap's second half, else
    the gap's end.
    fixed: lengths at which state is stored anyway. borders: lengths where messages begin. Both ascending.
    min_gap: minimum tokens of a gap, if more than MAX_GAP_TOKENS. num_rungs: see NUM_RUNGS.
    """
    rungs: list[int] = []
    at = start
    while (gap := max(MAX_GAP_TOKENS, min_gap, (end - at) // num_rungs)) < end - at:
        at = _last_within(fixed, at, at + gap) or _last_within(borders, at + gap // 2, at + gap) or at + gap
        rungs.append(at)
    return rungs


def _last_within(lengths: SequenceOf[int], after: int, limit: int) -> int:
    """Return the last of the ordered lengths in (after, limit]; 0 if there is none."""
    place = bisect_right(lengths, limit)
    return lengths[place - 1] if place and lengths[place - 1] > after else 0
