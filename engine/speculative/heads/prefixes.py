"""A head's keys and values of earlier texts, in memory and in files."""

from collections.abc import Callable, Sequence

from reprise.engine.kv_cache.prefix_cache.disk import PrefixStore
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice
from reprise.engine.kv_cache.prefix_cache.weights_digest import weights_fingerprint
from reprise.engine.kv_cache.slices import State
from reprise.engine.speculative.draft_model.draft_prefill import TextPrefill
from reprise.engine.speculative.draft_model.prefixes import DraftPrefixes
from reprise.engine.speculative.heads.head_drafter import HeadDrafter
from reprise.engine.speculative.heads.prefill import HeadPrefill

MIN_LOADED_IDS = 128
"""Prefixes that save fewer ids are not read from files: they hardly make drafts better."""

MayCopy = Callable[[int], bool]
"""Says whether there is memory for copies of what the head holds of so many tokens."""


class HeadPrefixes(DraftPrefixes):
    """Keeps a head's keys and values, for prompts whose first tokens are in the target's prefix cache.

    The target's states of these tokens are not known any more, so the head cannot be fed them again. A head's
    keys and values of a position depend on the token after it, too, and are kept under that token's id: those
    of position 0 under the text's second token. Texts that differ in the first token share nothing in the
    target's cache, either.

    store: the target's second tier on disk, if there is one. may_copy: asked before files are loaded.
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
            part = f"{drafter.source} {drafter.head.taps} {weights_fingerprint(drafter.head)}"
            self._store = store.sibling(part, self.needs_state)

    def look_up(self, prefill: TextPrefill, tokens: Sequence[int], max_tokens: int) -> int:  # noqa: ARG002
        """Begin the prefill of a text after its cached part, or start to load that part from a file.

        Returns 0, as no token was looked up.
        """
        assert isinstance(prefill, HeadPrefill)
        # The last one is never looked for.
        ids = prefill.following(tokens, 0, prefill.num_before + 1)
        if not self._is_loading(prefill, ids):
            self._begin(prefill, ids if prefill.num_before else ())
        return 0

    def _is_loading(self, prefill: HeadPrefill, ids: Sequence[int]) -> bool:
        """Look for a prefix in files, once; return whether it is being read. Then it is in the cache."""
        if self._store is None or self.cache is None or not prefill.num_before:
            return False
        if not prefill.is_disk_searched:
            prefill.is_disk_searched = True
            if self._store.match(ids) >= self.cache.match_usable(ids) + MIN_LOADED_IDS:
                prefill.loading = self._store.start_load(ids)
            return prefill.loading is not None
        loading, prefill.loading = prefill.loading, None
        if loading and self._may_copy(loading.ends[-1]) and (taken := self._store.finish_load(loading)):
            self.cache.put(ids[: loading.ends[-1]], *taken)
        return False

    def _put(self, ids: Sequence[int], cut: CutSlice, take: Callable[[], State]) -> None:
        super()._put(ids, cut, take)
        if self._store is not None and len(ids) and self._may_copy(len(ids)):
            self._store.save(ids, cut, take)
