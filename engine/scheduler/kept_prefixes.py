"""Keep computed prefixes in memory, and in files if the settings name a folder."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from reprise.config.settings import Settings
from reprise.engine.batch.sequence import Sequence
from reprise.engine.interface.errors import ModelError
from reprise.engine.kv_cache.per_row import Caches, can_trim, leaves, make_caches
from reprise.engine.kv_cache.prefix_cache.disk import PrefixStore, make_store
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice, PrefixCache, PrefixStatus
from reprise.engine.kv_cache.prefix_cache.weights_digest import weights_fingerprint
from reprise.engine.kv_cache.rows import Rows
from reprise.engine.kv_cache.slices import (
    KVSlice,
    State,
    cut_slice,
    has_state,
    num_bytes,
    start_copies,
    take_state,
)
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.model.loading import LoadedModel

log = logging.getLogger("reprise.engine")


@dataclass(frozen=True, slots=True)
class _Copies:
    """Copies of what a prompt's caches hold, which may not be computed yet.

    tokens: of the prefix. num_held: the leading ones whose keys and values are kept already.
    """

    sequence: Sequence
    tokens: TextKey
    num_held: int
    kv_slice: KVSlice
    state: State
    weight: float

    @property
    def num_bytes(self) -> int:
        return num_bytes(self.kv_slice) + num_bytes(self.state)


class KeptPrefixes:
    """Copies sequences' keys, values and state into the prefix cache. Used by the engine's thread only.

    budget_bytes: memory for cached prefixes. memory_budget: decides whether there is memory for a copy now.
    can_look_back: whether state at a length can be kept after a chunk has passed that length.
    needs_state: whether a prefix is of use only with the state at its end.
    can_share: whether a prefix can also be taken from a running sequence.
    cache: None if budget_bytes is 0 or the model's caches cannot be sliced.
    store: the cache's second tier on disk, if the settings name a folder.
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
        if fault:
            log.warning("no prefix cache, so every prompt is computed in full: %s", fault)
        self.can_share = fault is None and not self.needs_state
        self._copies: list[_Copies] = []
        self.cache: PrefixCache | None = None
        if fault is None and budget_bytes:
            self.cache = PrefixCache(budget_bytes, self.make_caches, self.needs_state)
        self.store: PrefixStore | None = None
        if self.cache is not None and settings.prefix_cache_dir is not None:
            self.store = self._open_store(loaded, settings, Path(settings.prefix_cache_dir))

    def _open_store(self, loaded: LoadedModel, settings: Settings, folder: Path) -> PrefixStore:
        model, tower = loaded.model, loaded.sight.tower.arrays() if loaded.sight else []
        # Other versions may compute other bytes.
        known = (weights_fingerprint(model, tower), settings.kv_bits, version("mlx"), version("mlx-lm"))
        fingerprint = hashlib.sha256(repr(known).encode()).hexdigest()
        try:
            limit = settings.prefix_cache_dir_bytes
            store = make_store(model, folder, limit, fingerprint, self.needs_state)
        except OSError as fault:
            raise ModelError(f"--prefix-cache-dir {folder}: {fault.strerror or fault}") from fault
        log.info("%s holds %d cached prefixes, %.0f MiB", folder, len(store), store.num_bytes / 2**20)
        return store

    def status(self) -> PrefixStatus | None:
        """Return the prefix cache's counts, None without one. May be called on any thread."""
        if self.cache is None:
            return None
        status = self.cache.status()
        if self.store is not None:
            status = replace(status, file_bytes=self.store.num_bytes)
        return status

    def close(self) -> None:
        """Wait until all files are written."""
        if self.store is not None:
            self.store.close()

    def start_keeping(self, sequence: Sequence, length: int) -> None:
        """Start copies of a prefilling sequence's caches up to a length that its last chunk passed.

        The device makes the copies after that chunk, and only finish_keeping() waits for them.
        """
        prefill = sequence.prefill
        if self.cache is None or not length:
            return
        prefill.key = prefill.key or sequence.text_key()
        tokens = prefill.key[:length]
        num_held = max([
            self.cache.count_held(tokens),
            *(len(one.tokens) for one in self._copies if one.sequence is sequence),
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

    def drop_copies(self) -> "list[_Copies]":
        """Forget the started copies, and return them."""
        copies, self._copies = self._copies, []
        if self.cache is not None:
            self.cache.num_bytes -= sum(one.num_bytes for one in copies)
        return copies

    def keep_cancelled(self, sequence: Sequence) -> None:
        """Keep the computed part of a cancelled prompt as a prefix, in memory and in files."""
        caches, num_computed = sequence.prefill.caches, sequence.prefill.num_computed
        tokens = sequence.text_key(num_computed)
        cut = partial(cut_slice, caches)
        self._save_kept(sequence, cut)
        if num_computed and self._keep(tokens, cut, partial(take_state, caches)):
            self._save(tokens, cut, partial(take_state, caches))

    def keep_row(self, sequence: Sequence, row: int, rows: Rows) -> bool:
        """Keep a row's caches as a prefix, if memory allows a copy; return whether it did, and waited."""
        held, num_tokens = rows.lengths[row], len(sequence.tokens)
        cut = partial(rows.kv_slice, row)
        self._save_kept(sequence, cut)
        # A row may hold more than its answer, but its state cannot be rolled back to the answer's end.
        if held > num_tokens and self.needs_state:
            return False
        tokens = sequence.text_key(min(held, num_tokens))
        take = partial(rows.state, row)
        if not self._keep(tokens, cut, take):
            return False
        self._save(tokens, cut, take)
        return True

    def _keep(self, tokens: TextKey, cut: CutSlice, take: Callable[[], State]) -> bool:
        """Keep a prefix in memory, if that allows a copy; return whether it does."""
        if self.cache is None:
            return False
        num_held = self.cache.count_held(tokens)
        if not self.memory_budget.may_copy(len(tokens), num_held=num_held):
            return False
        # What is dropped for the copy may be a part of the prefix.
        if self.cache.count_held(tokens) < num_held and not self.memory_budget.may_copy(len(tokens)):
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
            tokens = sequence.text_key(length)
            if not self.needs_state or self.cache.state_at(tokens):
                self._save(tokens, cut, partial(self.cache.state_at, tokens))

    def _save(self, tokens: TextKey, cut: CutSlice, take: Callable[[], State]) -> None:
        """Save a prefix in files, if memory allows a copy."""
        if self.store is None or not self.memory_budget.may_copy(len(tokens)):
            return
        try:
            self.store.save(tokens, cut, take)
        except Exception:
            log.warning("a prefix could not be saved", exc_info=True)
