"""Find the longest prefix of a prompt that is computed already, so that nothing is computed twice.

It may be in the prefix cache, in a row that decodes, or in a prompt that is being prefilled, for which it can
be worth waiting.
"""

import hashlib
import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np

from config.settings import Settings
from engine.kv_cache.per_row import can_trim, leaves
from engine.kv_cache.rows import Caches, Rows, make_caches
from engine.kv_cache.slices import (
    KVSlice,
    State,
    cut_slice,
    has_state,
    num_bytes,
    rebuild,
    start_copies,
    take_state,
)
from engine.memory.budget import MemoryBudget
from engine.model.loading import LoadedModel, ModelError
from engine.prefix_cache.block_hashes import count_shared
from engine.prefix_cache.disk import PrefixStore, make_store
from engine.prefix_cache.trie import CutSlice, PrefixCache, PrefixStatus
from engine.prefix_cache.weights_digest import weights_fingerprint
from engine.scheduler.checkpoints import MAX_GAP_TOKENS, NUM_RUNGS, choose_rungs
from engine.sequence import Sequence
from engine.text.templates.message_openings import MessageOpenings
from engine.vision.keys import whole_images, without_cut_images

log = logging.getLogger("reprise.engine")

MIN_SHARED_TOKENS = 32
"""A shorter shared prefix is not waited for, and no state is kept for it alone."""

MIN_LOADED_TOKENS = 128
"""Prefixes that save fewer tokens are not read from files: computing them is as fast."""

WITHIN_WEIGHT = 0.25
"""How likely a prompt parts from another in the middle of a message, if 1 is where one begins."""

EVEN_SHARE = 0.25
"""Share of the memory that one prompt's ladder may take for gaps that do not grow toward its start."""

OPENING_REACH = 256
"""Number of a prompt's last tokens in which the opening of the answer is searched."""


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies of what a prompt's caches hold, which may not be computed yet.

    tokens: of the prefix. num_held: the leading ones whose keys and values are kept already.
    """

    sequence: Sequence
    tokens: np.ndarray
    num_held: int
    kv_slice: KVSlice
    state: State
    weight: float

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.kv_slice) + num_bytes(self.state)


class PrefixLookup:
    """Keeps prefixes and finds them again. Used by the engine's thread only.

    budget_bytes: memory for cached prefixes. memory_budget: says whether there is memory for a copy now.
    openings: how messages begin in prompts.
    can_look_back: whether state can be kept of a length that a chunk has passed.
    cache: None if budget_bytes is 0 or the model's caches cannot be sliced.
    store: the cache's second tier on disk, if the settings name a folder.
    Raises ModelError if that folder is not usable.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: Settings,
        budget_bytes: int,
        openings: MessageOpenings,
        memory_budget: MemoryBudget,
    ) -> None:
        self._memory_budget = memory_budget
        self._make = partial(make_caches, loaded.model, settings.kv_bits)
        self._needs_state = has_state(self._make())
        self._budget_bytes = budget_bytes
        self.can_look_back = all(map(can_trim, leaves(self._make())))
        self._openings, self._opening = openings, list(openings.answer)
        fault = loaded.prefix_fault(settings.kv_bits)
        if fault:
            log.warning("no prefix cache, so every prompt is computed in full: %s", fault)
        self._can_share = fault is None and not self._needs_state
        self._copies: list[_Copies] = []
        self.cache: PrefixCache | None = None
        if fault is None and budget_bytes:
            self.cache = PrefixCache(budget_bytes, self._make, self._needs_state)
        self.store: PrefixStore | None = None
        if self.cache is not None and settings.prefix_cache_dir is not None:
            self.store = self._open_store(loaded, settings, Path(settings.prefix_cache_dir))

    def status(self) -> PrefixStatus | None:
        """Return the prefix cache's counts, None without one. May be called on any thread."""
        if self.cache is None:
            return None
        status = self.cache.status()
        if self.store is not None:
            status = replace(status, num_files=len(self.store), file_bytes=self.store.num_bytes)
        return status

    def is_loading(self, sequence: Sequence, may_wait: bool) -> bool:
        """Look for a prefix of the prompt in files, once; return whether it is still being read.

        When it has been read, it is put into the cache.

        may_wait: wait for the files instead of returning True, as no other sequence needs the thread.
        """
        if self.store is None or self.cache is None or sequence.request.prompt_logprobs:
            return False
        if not sequence.prefix.is_disk_searched:
            sequence.prefix.is_disk_searched = True
            ids = _whole(sequence, self.store.match)
            if self.store.match(ids) >= self.cache.match_usable(_ids(sequence)) + MIN_LOADED_TOKENS:
                sequence.prefix.loading = self.store.start_load(ids)
        if (loading := sequence.prefix.loading) is None:
            return False
        if not (loading.future.done() or may_wait):
            return True
        sequence.prefix.loading = None
        # What was read, and the part of it that is not in memory yet.
        if not self._memory_budget.may_copy(loading.ends[-1], num_copies=2):
            return False
        if (taken := self.store.finish_load(loading)) is not None:
            self.cache.put(sequence.keys[: loading.ends[-1]], *taken)
        return False

    def close(self) -> None:
        """Wait until all files are written."""
        if self.store is not None:
            self.store.close()

    def _open_store(self, loaded: LoadedModel, settings: Settings, folder: Path) -> PrefixStore:
        model, tower = loaded.model, loaded.sight.tower.arrays() if loaded.sight else []
        # Other versions may compute other bytes.
        known = (weights_fingerprint(model, tower), settings.kv_bits, version("mlx"), version("mlx-lm"))
        fingerprint = hashlib.sha256(repr(known).encode()).hexdigest()
        try:
            limit = settings.prefix_cache_dir_bytes
            store = make_store(model, folder, limit, fingerprint, self._needs_state)
        except OSError as fault:
            raise ModelError(f"--prefix-cache-dir {folder}: {fault.strerror or fault}") from fault
        log.info("%s holds %d cached prefixes, %.0f MiB", folder, len(store), store.num_bytes / 2**20)
        return store

    def awaits(self, sequence: Sequence, prefilling: SequenceOf[Sequence]) -> bool:
        """Whether the sequence should wait for one that is prefilling a prefix that both share."""
        if sequence.request.prompt_logprobs or (self.cache is None and not self._can_share):
            return False
        if sequence.prefix.awaited and sequence.prefix.awaited[0] not in prefilling:
            # It has joined the rows, or it was cancelled or preempted, perhaps before it got so far.
            sequence.prefix.awaited, sequence.prefix.compared = None, ()
        # Compared only when the set of prefilling sequences changed, as this is called at every step.
        if sequence.prefix.awaited is None and sequence.prefix.compared != prefilling:
            sequence.prefix.compared = list(prefilling)
            sequence.prefix.awaited = self._choose_awaited(sequence, prefilling)
            if sequence.prefix.awaited and self._needs_state:
                sequence.prefix.awaited = self._keep_shared(*sequence.prefix.awaited)
        if sequence.prefix.awaited is None:
            return False
        other, shared = sequence.prefix.awaited
        return other in prefilling and not other.ended and other.prefill.num_computed < shared

    def _keep_shared(self, other: Sequence, shared: int) -> tuple[Sequence, int]:
        """Let a prefilling sequence keep what another shares with it; return it, and how much it keeps."""
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
        held = self._count_kept(sequence)
        search.num_held = held, num_evictions
        awaited = None
        for other, shared in candidates:
            if shared >= held + MIN_SHARED_TOKENS:
                held, awaited = shared, (other, shared)
        return awaited

    def find(
        self, sequence: Sequence, members: SequenceOf[Sequence], rows: Rows, prefilling: SequenceOf[Sequence]
    ) -> tuple[Caches, int]:
        """Return caches that hold the longest known prefix of its tokens, and the prefix's length.

        The last token is never part of the prefix, since its logits have to be computed.
        members, rows: the sequences that decode, and their rows.
        """
        if sequence.request.prompt_logprobs:
            # The logits of the whole prompt are needed.
            return self._make(), 0
        try:
            return self._find(sequence, members, rows, prefilling)
        # The prompt can be computed in full instead.
        except Exception:
            log.warning(
                "request %s computes its whole prompt: the prefix lookup failed",
                sequence.request.id,
                exc_info=True,
            )
            return self._make(), 0

    def _find(
        self, sequence: Sequence, members: SequenceOf[Sequence], rows: Rows, prefilling: SequenceOf[Sequence]
    ) -> tuple[Caches, int]:
        kept = self._count_kept(sequence)
        shared, kv_slice = self._borrow(sequence, members, rows, prefilling) if self._can_share else (0, None)
        if kv_slice is not None and shared > kept:
            return rebuild(self._make(), [kv_slice], [], shared), shared
        found = self.cache.find(_whole(sequence, self.cache.match_usable)) if self.cache else None
        caches, length = found or (self._make(), 0)
        if self.cache and self._needs_state:
            self._choose_kept_lengths(sequence, kept, length)
        return caches, length

    def _count_kept(self, sequence: Sequence) -> int:
        """Count the leading tokens that the prefix cache holds, of images all or none."""
        if self.cache is None:
            return 0
        return whole_images(sequence.request.images, self.cache.match(_ids(sequence)))

    def start_keeping(self, sequence: Sequence, length: int) -> None:
        """Start copies of what a prefilling sequence holds up to a length that its last chunk passed.

        They follow that chunk on the device, and nothing waits for them: finish_keeping() does.
        """
        prefill = sequence.prefill
        if self.cache is None or not length:
            return
        if not len(prefill.ids):
            prefill.ids = np.asarray(sequence.keys, np.int32)
        tokens = prefill.ids[:length]
        num_held = max([
            self.cache.count_held(tokens),
            *(len(one.tokens) for one in self._copies if one.sequence is sequence),
        ])  # fmt: skip
        if num_held >= length and self.cache.state_at(tokens):
            return
        if not self._memory_budget.may_copy(length, num_held=num_held):
            return
        is_rung = length in prefill.rungs
        try:
            kv_slice = cut_slice(prefill.caches, num_held, length) if num_held < length else []
            state = take_state(prefill.caches, length if length < prefill.num_computed else None)
            start_copies(kv_slice, state)
        except Exception:
            log.warning("a prefix could not be cached", exc_info=True)
            return
        copies = _Copies(sequence, tokens, num_held, kv_slice, state, prefill.rungs.get(length, 1.0))
        # Counted at once, so that nothing else takes their memory.
        self.cache.num_bytes += copies.num_bytes
        self._copies.append(copies)
        if not is_rung:
            sequence.prefix.unsaved.append(length)

    @property
    def is_keeping(self) -> bool:
        """Whether copies were started that are not in the prefix cache yet."""
        return bool(self._copies)

    def finish_keeping(self) -> None:
        """Put the copies that were started into the prefix cache. The chunks before them are computed."""
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

    def drop_copies(self) -> "list[_Copies]":
        """Forget the copies that were started, and return them."""
        copies, self._copies = self._copies, []
        if self.cache is not None:
            self.cache.num_bytes -= sum(one.num_bytes for one in copies)
        return copies

    def keep_cancelled(self, sequence: Sequence) -> None:
        """Keep the computed part of a cancelled prompt, in files too."""
        caches, num_computed = sequence.prefill.caches, sequence.prefill.num_computed
        tokens = np.asarray(sequence.keys[:num_computed], np.int32)
        cut = partial(cut_slice, caches)
        self._save_kept(sequence, cut)
        if num_computed and self._keep(tokens, cut, partial(take_state, caches)):
            self._save(tokens, cut, partial(take_state, caches))

    def keep_row(self, sequence: Sequence, row: int, rows: Rows) -> bool:
        """Keep a row's caches as a prefix, if memory allows a copy; return whether it waited for one."""
        held, num_tokens = rows.lengths[row], len(sequence.tokens)
        cut = partial(rows.kv_slice, row)
        self._save_kept(sequence, cut)
        # A row may hold more than its answer, but its state cannot be rolled back to the answer's end.
        if held > num_tokens and self._needs_state:
            return False
        tokens = np.asarray(sequence.keys[: min(held, num_tokens)], np.int32)
        take = partial(rows.state, row)
        if not self._keep(tokens, cut, take):
            return False
        self._save(tokens, cut, take)
        return True

    def _keep(self, tokens: np.ndarray, cut: CutSlice, take: Callable[[], State]) -> bool:
        """Keep a prefix in memory, if that allows a copy; return whether it does."""
        if self.cache is None:
            return False
        num_held = self.cache.count_held(tokens)
        if not self._memory_budget.may_copy(len(tokens), num_held=num_held):
            return False
        # What is dropped for the copy may be a part of the prefix.
        if self.cache.count_held(tokens) < num_held and not self._memory_budget.may_copy(len(tokens)):
            return False
        try:
            self.cache.put(tokens, cut, take())
        except Exception:
            # No request depends on this copy.
            log.warning("a prefix could not be cached", exc_info=True)
        return True

    def _save_kept(self, sequence: Sequence, cut: CutSlice) -> None:
        """Save the prefixes that were kept while a sequence's prompt was computed and are still in memory."""
        unsaved, sequence.prefix.unsaved = sequence.prefix.unsaved, []
        if self.store is None or self.cache is None:
            return
        for length in sorted(set(unsaved)):
            tokens = np.asarray(sequence.keys[:length], np.int32)
            if not self._needs_state or self.cache.state_at(tokens):
                self._save(tokens, cut, partial(self.cache.state_at, tokens))

    def _save(self, tokens: np.ndarray, cut: CutSlice, take: Callable[[], State]) -> None:
        """Save a prefix in files, if memory allows a copy."""
        if self.store is None or not self._memory_budget.may_copy(len(tokens)):
            return
        try:
            self.store.save(tokens, cut, take)
        except Exception:
            log.warning("a prefix could not be saved", exc_info=True)

    def _borrow(
        self, sequence: Sequence, members: SequenceOf[Sequence], rows: Rows, prefilling: SequenceOf[Sequence]
    ) -> tuple[int, KVSlice | None]:
        """Return the longest prefix that a row or a prefilling prompt holds: its length and its KV slice."""
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

    def _choose_kept_lengths(self, sequence: Sequence, kept: int, length: int) -> None:
        """Choose the lengths at which to keep state: where prompts diverge, and where the answer opens.

        The next turn's prompt may leave out the reasoning, and then it diverges from this one there. If all
        that opens the answer stays, state is kept after it.
        """
        opening, num_tokens = self.opening(sequence.tokens), len(sequence.tokens)
        if num_tokens - opening == self._openings.num_lasting:
            opening = 0
        prefill = sequence.prefill
        prefill.num_found, prefill.opening = length, opening
        prefill.keep_at = {at for at in (kept, opening) if at >= length + MIN_SHARED_TOKENS}

    def plan_checkpoints(self, sequence: Sequence, max_cuts: int) -> None:
        """Choose more lengths of a prompt at which to keep state, for prompts that part from it later.

        They are the end of system text and tools, and a ladder up to the prompt's end.
        max_cuts: how often the prefill may be cut only for that.
        """
        if self.cache is None or not self._needs_state or sequence.request.prompt_logprobs:
            return
        prefill, start, end = sequence.prefill, sequence.prefill.num_computed, len(sequence.tokens) - 1
        if self.can_look_back:
            max_cuts = end
        elif not prefill.opening:
            # Where the answer opens, other prompts are cut.
            max_cuts += 1
        head = sequence.request.head_tokens
        if start + MIN_SHARED_TOKENS <= head < end and head not in prefill.keep_at and max_cuts:
            prefill.keep_at.add(head)
            max_cuts -= 1
        if end - start <= MAX_GAP_TOKENS:
            return
        state_bytes = self._memory_budget.state_bytes(end)
        # One prompt's ladder takes at most half of the memory.
        max_rungs = min(max_cuts, self._budget_bytes // (2 * state_bytes + 1))
        gap = -(-(end - start) // (max_rungs + 1))
        prefill.ids = np.asarray(sequence.keys, np.int32)
        borders = np.flatnonzero(np.isin(prefill.ids, list(self._openings.tokens))).tolist()
        # Twice as many as there are gaps, as a rung at a border makes a gap shorter.
        most = 2 * (end - start) // MAX_GAP_TOKENS
        is_even = most <= max_rungs and most * state_bytes <= EVEN_SHARE * self._budget_bytes
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
        """Whether to keep the state of a prompt that is complete, so that it need not be computed again."""
        request, prefill = sequence.request, sequence.prefill
        if self.cache is None or not self._needs_state or request.prompt_logprobs or sequence.num_answered:
            return False
        kept = prefill.kept_lengths - {prefill.opening}
        last = max((at for at in kept if at <= prefill.num_computed), default=prefill.num_found)
        return prefill.num_computed > max(last, prefill.num_found)

    def opening(self, tokens: list[int]) -> int:
        """Return the length before the last opening of an answer; 0 if there is none."""
        count = len(self._opening)
        for at in range(len(tokens) - count, max(0, len(tokens) - OPENING_REACH), -1):
            if count and tokens[at : at + count] == self._opening:
                return at
        return 0


def num_shared(sequence: Sequence, other: Sequence) -> int:
    """Count the leading tokens of a sequence that another one shares; its own last token never counts."""
    shared = count_shared(sequence.keys, sequence.hashes, other.keys, other.hashes)
    return whole_images(sequence.request.images, min(shared, len(sequence.tokens) - 1))


def _ids(sequence: Sequence) -> np.ndarray:
    """Return the keys of a waiting sequence as an array, (n,) int32, made once."""
    if sequence.prefix.ids is None:
        sequence.prefix.ids = np.asarray(sequence.keys, np.int32)
    return sequence.prefix.ids


def _whole(sequence: Sequence, match: Callable[[np.ndarray], int]) -> np.ndarray:
    """Return the keys of a waiting sequence, up to where match() counts no image in part."""
    return without_cut_images(sequence.request.images, _ids(sequence), match)
