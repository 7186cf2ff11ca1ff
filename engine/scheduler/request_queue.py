"""The sequences that wait for a row, and the order in which they are admitted."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as SequenceOf
from functools import partial

from reprise.config.settings import Settings
from reprise.engine.batch.sequence import Sequence
from reprise.engine.interface.events import Failed
from reprise.engine.interface.spans import span
from reprise.engine.kv_cache.buffers import KVSlice, cut_slice, rebuild, start_copies
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey, before_other_picture
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice, count_shared
from reprise.engine.kv_cache.rows import Rows
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.scheduler.kept_prefixes import MIN_SHARED_TOKENS, Checkpoints, KeptPrefixes
from reprise.engine.scheduler.prefiller import Prefiller
from reprise.engine.vision.keys import whole_images, without_cut_images

log = logging.getLogger("reprise.engine")

MIN_LOADED_TOKENS = 128
"""Prefixes that save fewer tokens are not read from files: computing them is as fast."""


class PrefixLookup:
    """Finds prefixes for waiting sequences. Used by the engine's thread only.

    kept: the kept prefixes. checkpoints: chooses the lengths at which to keep state of new prompts.
    """

    def __init__(self, kept: KeptPrefixes, checkpoints: Checkpoints) -> None:
        self.kept, self.checkpoints = kept, checkpoints

    def is_loading(self, sequence: Sequence, may_wait: bool) -> bool:
        """Look for a prefix of the prompt in files, once; return whether those are still being read.

        A prefix that has been read is put into the prefix cache.

        may_wait: wait for the files instead of returning True, as no other sequence needs the thread.
        """
        if self.kept.store is None or self.kept.cache is None or sequence.request.prompt_logprobs:
            return False
        if not sequence.prefix.is_disk_searched:
            sequence.prefix.is_disk_searched = True
            key = _whole(sequence, self.kept.store.match)
            if self.kept.store.match(key) >= self.kept.cache.match_usable(key) + MIN_LOADED_TOKENS:
                sequence.prefix.loading = self.kept.store.start_load(key)
        if (loading := sequence.prefix.loading) is None:
            return False
        if not may_wait and (not loading.future.done() or self.kept.store.advance_load(loading)):
            return True
        sequence.prefix.loading = None
        # What was read, and the part of it that is not in memory yet.
        if not self.kept.memory_budget.may_copy(loading.ends[-1], num_copies=2):
            return False
        if (taken := self.kept.store.finish_load(loading)) is not None:
            self.kept.cache.put(sequence.text_key(loading.ends[-1]), *taken)
        return False

    def awaits(self, sequence: Sequence, prefilling: SequenceOf[Sequence]) -> bool:
        """Whether a waiting sequence should wait until another one has prefilled a prefix that both share."""
        if sequence.request.prompt_logprobs or (self.kept.cache is None and not self.kept.can_share):
            return False
        if sequence.prefix.awaited and sequence.prefix.awaited[0] not in prefilling:
            # It has joined the rows, or it was cancelled or preempted, perhaps before it got so far.
            sequence.prefix.awaited, sequence.prefix.compared = None, ()
        # Compared only when the set of prefilling sequences changed, as this is called at every step.
        if sequence.prefix.awaited is None and sequence.prefix.compared != prefilling:
            sequence.prefix.compared = list(prefilling)
            sequence.prefix.awaited = self._choose_awaited(sequence, prefilling)
            if sequence.prefix.awaited and self.kept.needs_state:
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
        num_evictions = self.kept.cache.num_evictions if self.kept.cache else 0
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
        """Return caches that hold the longest known prefix of a sequence's tokens, and the prefix's length.

        The last token is never part of the prefix, since its logits have to be computed.
        members, rows: the sequences that decode, and their rows.
        """
        if sequence.request.prompt_logprobs:
            # The logits of the whole prompt are needed.
            return self.kept.make_caches(), 0
        try:
            return self._find(sequence, members, rows, prefilling)
        # The prompt can be computed in full instead.
        except Exception:
            log.warning(
                "request %s computes its whole prompt: the prefix lookup failed",
                sequence.request.id,
                exc_info=True,
            )
            return self.kept.make_caches(), 0

    def _find(
        self, sequence: Sequence, members: SequenceOf[Sequence], rows: Rows, prefilling: SequenceOf[Sequence]
    ) -> tuple[Caches, int]:
        cache, make_caches = self.kept.cache, self.kept.make_caches
        num_held = self._count_kept(sequence)
        shared, kv_slice = 0, None
        if self.kept.can_share:
            shared, kv_slice = self._borrow(sequence, members, rows, prefilling)
        if kv_slice is not None and shared > num_held:
            return rebuild(make_caches(), [kv_slice], [], shared), shared
        found = cache.find(_whole(sequence, cache.match_usable)) if cache else None
        caches, length = found or (make_caches(), 0)
        if cache and self.kept.needs_state:
            self.checkpoints.choose(sequence, num_held, length)
        return caches, length

    def _count_kept(self, sequence: Sequence) -> int:
        """Count the leading tokens that the prefix cache holds, of images all or none."""
        held = self.kept.cache.match(_key(sequence)) if self.kept.cache else 0
        return whole_images(sequence.request.images, held)

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


def num_shared(sequence: Sequence, other: Sequence) -> int:
    """Count the leading tokens that a sequence shares with another, without the sequence's last token."""
    shared = count_shared(sequence.keys, sequence.hashes, other.keys, other.hashes)
    shared = before_other_picture(shared, sequence.pictures, other.pictures)
    return whole_images(sequence.request.images, min(shared, len(sequence.tokens) - 1))


def _key(sequence: Sequence) -> TextKey:
    """Return the key of a waiting sequence's text, made once."""
    if sequence.prefix.key is None:
        sequence.prefix.key = sequence.text_key()
    return sequence.prefix.key


def _whole(sequence: Sequence, match: Callable[[TextKey], int]) -> TextKey:
    """Return the key of a waiting sequence's text, up to where match() counts no image in part."""
    return without_cut_images(sequence.request.images, _key(sequence), match)


MAX_OVERTAKEN = 16
"""How many smaller sequences may overtake one that does not fit into memory; then all wait for it."""

LONG_PROMPT_TOKENS = 256
"""A longer prompt counts as long: not all rows may prefill such prompts."""


class RequestQueue:
    """Admits waiting sequences to prefill, first come first served except as admit() says.

    waiting: in the order of their submission.
    only: if not None, no other sequence may be admitted.
    """

    def __init__(
        self,
        settings: Settings,
        memory_budget: MemoryBudget,
        prefix_lookup: PrefixLookup,
        prefiller: Prefiller,
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.only: Collection[Sequence] | None = None
        self.memory_budget = memory_budget
        self.prefix_lookup = prefix_lookup
        self.prefiller = prefiller
        self._settings = settings

    def end_waiting(self, failed: Failed) -> None:
        """End all sequences that wait for a row."""
        for sequence in self.waiting:
            sequence.fail(failed)

    def drop_ended(self) -> None:
        """Forget sequences that ended while they waited or prefilled."""
        self.prefiller.drop_ended()
        if self.waiting and any(s.ended for s in self.waiting):
            self.waiting = deque(s for s in self.waiting if not s.ended)

    @span("admission")
    def admit(self, members: list[Sequence], rows: Rows) -> None:
        """Admit waiting sequences, in order, while rows and memory last.

        Three kinds of sequences let later ones overtake them: one that waits until another has prefilled the
        prefix that both share; one with a long prompt while half of the rows prefill long prompts, so that
        short ones still find a row; and, up to MAX_OVERTAKEN times, one that does not fit into memory.

        members, rows: the sequences that decode, and their rows.
        """
        too_large: list[Sequence] = []
        may_be_long = self._may_begin_long()
        for sequence in list(self.waiting):
            prefilling = self.prefiller.prefilling
            num_running = len(members) + len(prefilling)
            if num_running >= self._settings.max_rows:
                return
            if self.only is not None and sequence not in self.only:
                continue
            if self.prefix_lookup.is_loading(sequence, may_wait=not num_running):
                continue
            if self.prefix_lookup.awaits(sequence, prefilling):
                continue
            if not may_be_long and self._is_long(sequence):
                continue
            if not self.memory_budget.may_begin(sequence, members, prefilling):
                too_large.append(sequence)
                if sequence.num_overtaken >= MAX_OVERTAKEN:
                    return
                continue
            for overtaken in too_large:
                overtaken.num_overtaken += 1
            self.prefiller.finish_keeping()
            try:
                sequence.admit(*self.prefix_lookup.find(sequence, members, rows, prefilling))
                self.prefiller.begin(sequence)
            except Exception as fault:
                sequence.fail_with(fault)
            # Only now: if the engine dies meanwhile, the sequence must still be found.
            self.waiting.remove(sequence)
            may_be_long = self._may_begin_long()

    def put_back(self, sequences: Iterable[Sequence]) -> None:
        """Put running sequences back into the queue, at their old places, unless they have ended."""
        running = [s for s in sequences if not s.ended]
        for sequence in running:
            sequence.restart()
        self.waiting = deque(sorted([*running, *self.waiting], key=lambda s: s.timing.submitted_at))

    def _may_begin_long(self) -> bool:
        """Whether fewer than half of the rows prefill long prompts, so that another one may begin."""
        num_long = sum(self._is_long(s) for s in self.prefiller.prefilling)
        return num_long < max(1, self._settings.max_rows // 2)

    def _is_long(self, sequence: Sequence) -> bool:
        return sequence.num_to_prefill > min(LONG_PROMPT_TOKENS, self._settings.prefill_chunk_tokens)
