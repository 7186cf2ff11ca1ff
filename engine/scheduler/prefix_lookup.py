"""Where a sequence takes the beginning of its prompt from, so that nothing is computed twice.

From the prefix cache; from a row that decodes; or from a prompt that is being prefilled, which is worth
waiting for until it has got so far.
"""

import hashlib
import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from config.settings import Settings
from engine.kv_cache.probes import prefix_fault
from engine.kv_cache.rows import Caches, Rows, make_caches
from engine.kv_cache.slices import KVSlice, State, cut_slice, has_state, rebuild, take_state
from engine.model.loading import ModelError
from engine.model.weights_digest import weights_fingerprint
from engine.prefix_cache.disk import PrefixStore
from engine.prefix_cache.trie import CutSlice, PrefixCache, PrefixStatus
from engine.sequence import Sequence

log = logging.getLogger("reprise.engine")

MIN_SHARED_TOKENS = 32
"""A shorter beginning is not waited for, nor is state kept for it alone."""

MIN_LOADED_TOKENS = 128
"""Fewer are computed as fast as they are read."""

OPENING_REACH = 256
"""Where an answer's opening begins is looked for in so many of the prompt's last tokens."""


class PrefixLookup:
    """What is kept, and what of it a sequence can have. Used by the engine's thread only.

    budget_bytes: for what is kept in memory.
    cache: None if it may have no bytes, or the model's caches cannot be taken apart.
    store: its second tier on disk, if the settings name a folder. Raises ModelError if that cannot be used.
    answer_opening: the tokens with which the chat template opens an answer.
    """

    def __init__(
        self, model: Any, settings: Settings, budget_bytes: int, answer_opening: SequenceOf[int]
    ) -> None:
        self._make = partial(make_caches, model, settings.kv_bits)
        self._needs_state = has_state(self._make())
        self._answer_opening = list(answer_opening)
        fault = prefix_fault(model, settings.kv_bits)
        if fault:
            log.warning("prompts are computed anew each time: %s", fault)
        self._can_share = fault is None and not self._needs_state
        self.cache: PrefixCache | None = None
        if fault is None and budget_bytes:
            self.cache = PrefixCache(budget_bytes, self._make, self._needs_state)
        self.store: PrefixStore | None = None
        if self.cache is not None and settings.prefix_cache_dir is not None:
            self.store = self._open_store(model, settings, Path(settings.prefix_cache_dir).expanduser())

    def status(self) -> PrefixStatus | None:
        """Counts; None where nothing is kept. May be called on any thread."""
        if self.cache is None:
            return None
        status = self.cache.status()
        if self.store is not None:
            status = replace(status, num_files=len(self.store), file_bytes=self.store.num_bytes)
        return status

    def is_loading(self, sequence: Sequence, may_wait: bool) -> bool:
        """Whether the beginning of its prompt is being read from files; once read it is in the cache.

        may_wait: nobody else needs the thread, so this may wait instead.
        """
        if self.store is None or self.cache is None or sequence.request.prompt_logprobs:
            return False
        if not sequence.was_looked_up:
            sequence.was_looked_up = True
            if (
                self.store.match(sequence.tokens)
                >= self.cache.match_usable(sequence.tokens) + MIN_LOADED_TOKENS
            ):
                sequence.loading = self.store.start_load(sequence.tokens)
        if (loading := sequence.loading) is None:
            return False
        if not (loading.future.done() or may_wait):
            return True
        sequence.loading = None
        if (taken := self.store.finish_load(loading)) is not None:
            self.cache.put(sequence.tokens[: loading.ends[-1]], *taken)
        return False

    def close(self) -> None:
        """Wait until the files are written."""
        if self.store is not None:
            self.store.close()

    def _open_store(self, model: Any, settings: Settings, folder: Path) -> PrefixStore:
        # Other versions may compute other bytes.
        known = (weights_fingerprint(model), settings.kv_bits, version("mlx"), version("mlx-lm"))
        fingerprint = hashlib.sha256(repr(known).encode()).hexdigest()
        try:
            store = PrefixStore(folder, settings.prefix_cache_dir_bytes, fingerprint, self._needs_state)
        except OSError as fault:
            raise ModelError(f"--prefix-cache-dir {folder}: {fault.strerror or fault}") from fault
        log.info(
            "%s holds %d stretches of earlier prompts, %.0f MiB", folder, len(store), store.num_bytes / 2**20
        )
        return store

    def awaits(self, sequence: Sequence, prefilling: SequenceOf[Sequence]) -> bool:
        """Whether a prompt that is being prefilled begins as this one, and will soon have got so far."""
        if sequence.request.prompt_logprobs or (self.cache is None and not self._can_share):
            return False
        # Compared once with each set of them: who waits long is asked at every turn.
        if sequence.awaited is None and sequence.compared != prefilling:
            sequence.compared = list(prefilling)
            held = self.cache.match(sequence.tokens) if self.cache and prefilling else 0
            for other in prefilling:
                shared = _num_shared(sequence.tokens, other.tokens)
                if shared >= held + MIN_SHARED_TOKENS and other.num_computed < shared:
                    held, sequence.awaited = shared, (other, shared)
            if sequence.awaited and self._needs_state:
                other, shared = sequence.awaited
                other.edges.add(shared)
        if sequence.awaited is None:
            return False
        other, shared = sequence.awaited
        return other in prefilling and not other.ended and other.num_computed < shared

    def find(
        self, sequence: Sequence, members: SequenceOf[Sequence], rows: Rows, prefilling: SequenceOf[Sequence]
    ) -> tuple[Caches, int]:
        """Caches with the longest beginning of its tokens that can be had, and how many those are.

        members, rows: those that decode. Its last token is never among them: its logits are to be computed.
        """
        if sequence.request.prompt_logprobs:
            # All of the prompt has to be computed.
            return self._make(), 0
        try:
            return self._find(sequence, members, rows, prefilling)
        # What can be computed anew is no reason to fail.
        except Exception:
            log.warning(
                "request %s begins anew: nothing kept could be taken", sequence.request.id, exc_info=True
            )
            return self._make(), 0

    def _find(
        self, sequence: Sequence, members: SequenceOf[Sequence], rows: Rows, prefilling: SequenceOf[Sequence]
    ) -> tuple[Caches, int]:
        kept = self.cache.match(sequence.tokens) if self.cache else 0
        shared, kv_slice = self._borrow(sequence, members, rows, prefilling) if self._can_share else (0, None)
        if kv_slice is not None and shared > kept:
            return rebuild(self._make(), [kv_slice], [], shared), shared
        found = self.cache.find(sequence.tokens) if self.cache else None
        caches, length = found or (self._make(), 0)
        if self.cache and self._needs_state:
            self._mark_edges(sequence, kept, length)
        return caches, length

    def keep_prefilled(self, sequence: Sequence) -> None:
        """Keep what a sequence that prefills has got so far."""
        caches, length = sequence.caches, sequence.num_computed
        if length:
            self._keep(sequence.tokens[:length], partial(cut_slice, caches), partial(take_state, caches))

    def keep_row(self, sequence: Sequence, row: int, rows: Rows) -> None:
        """Keep what a row holds."""
        held, num_tokens = rows.lengths[row], len(sequence.tokens)
        # State cannot go back to where the answer ended.
        if held <= num_tokens or not self._needs_state:
            tokens = sequence.tokens[: min(held, num_tokens)]
            self._keep(tokens, partial(rows.kv_slice, row), partial(rows.state, row))

    def _keep(self, tokens: list[int], cut: CutSlice, take: Callable[[], State]) -> None:
        try:
            if self.cache is not None:
                self.cache.put(tokens, cut, take())
            if self.store is not None:
                self.store.save(tokens, cut, take)
        except Exception:
            # Nobody asked for this copy, so nobody fails for it.
            log.warning("a prefix could not be kept", exc_info=True)

    def _borrow(
        self, sequence: Sequence, members: SequenceOf[Sequence], rows: Rows, prefilling: SequenceOf[Sequence]
    ) -> tuple[int, KVSlice | None]:
        """The longest beginning that a row or a prompt in prefill holds, and its strip."""
        best, kv_slice = 0, None
        holders = [(m, rows.lengths[row], partial(rows.kv_slice, row)) for row, m in enumerate(members)]
        holders += [
            (p, p.num_computed, partial(cut_slice, p.caches)) for p in prefilling if p is not sequence
        ]
        for holder, held, cut in holders:
            shared = min(_num_shared(sequence.tokens, holder.tokens), held)
            if shared > best:
                best, kv_slice = shared, cut(0, shared)
        return best, kv_slice

    def _mark_edges(self, sequence: Sequence, kept: int, length: int) -> None:
        """Note where state will be wanted again: where prompts part, and where this one's answer opens.

        The next turn's prompt may leave out what was thought, and then parts from this one just there.
        """
        sequence.edges = {kept, self._opening(sequence.tokens)}
        sequence.edges = {edge for edge in sequence.edges if edge >= length + MIN_SHARED_TOKENS}

    def _opening(self, tokens: list[int]) -> int:
        """Where the last opening of an answer begins; 0 if there is none."""
        count = len(self._answer_opening)
        for at in range(len(tokens) - count, max(0, len(tokens) - OPENING_REACH), -1):
            if count and tokens[at : at + count] == self._answer_opening:
                return at
        return 0


def _num_shared(tokens: list[int], others: list[int]) -> int:
    """How many leading tokens agree, without the last of tokens."""
    count = min(len(tokens) - 1, len(others))
    if tokens[:count] == others[:count]:
        return count
    return int(np.argmax(np.asarray(tokens[:count]) != np.asarray(others[:count])))
