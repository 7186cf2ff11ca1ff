"""What a head has read of earlier texts: its own keys and values, in memory and in files."""

from collections.abc import Callable, Sequence

from engine.kv_cache.slices import State
from engine.prefix_cache.disk import PrefixStore
from engine.prefix_cache.trie import CutSlice
from engine.prefix_cache.weights_digest import weights_fingerprint
from engine.speculative.draft_model.prefixes import DraftPrefixes
from engine.speculative.draft_model.reader import Reader
from engine.speculative.heads.drafter import HeadDrafter, HeadReader

MIN_LOADED_IDS = 128
"""Prefixes that save fewer ids are not read from files: they hardly make drafts better."""

MayCopy = Callable[[int], bool]
"""Says whether there is memory for copies of what the head holds of so many tokens."""


class HeadPrefixes(DraftPrefixes):
    """Keeps the keys and values of a head, and finds them when the target's come from its prefix cache.

    The states of these tokens are not known any more, so the head cannot read them again. What it holds of a
    position depends on the token after it, too, and is kept under the id of that one: of position 0 under the
    text's second token. Texts that differ in the first one share nothing in the target's cache, either.

    store: of the target, the second tier on disk, if there is one. may_copy: asked before files are loaded.
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

    def look_up(self, reader: Reader, tokens: Sequence[int], max_tokens: int) -> int:  # noqa: ARG002
        """Begin to read a text after what is known of it, unless that has to be loaded first.

        Returns 0, as no token was read.
        """
        assert isinstance(reader, HeadReader)
        # The last one is never looked for.
        ids = reader.following(tokens, 0, reader.num_before + 1)
        if not self._is_loading(reader, ids):
            self._begin(reader, ids if reader.num_before else ())
        return 0

    def _is_loading(self, reader: HeadReader, ids: Sequence[int]) -> bool:
        """Look for a prefix in files, once; return whether it is being read. Then it is in the cache."""
        if self._store is None or self.cache is None or not reader.num_before:
            return False
        if not reader.is_disk_searched:
            reader.is_disk_searched = True
            if self._store.match(ids) >= self.cache.match_usable(ids) + MIN_LOADED_IDS:
                reader.loading = self._store.start_load(ids)
            return reader.loading is not None
        loading, reader.loading = reader.loading, None
        if loading and self._may_copy(loading.ends[-1]) and (taken := self._store.finish_load(loading)):
            self.cache.put(ids[: loading.ends[-1]], *taken)
        return False

    def _put(self, ids: Sequence[int], cut: CutSlice, take: Callable[[], State]) -> None:
        super()._put(ids, cut, take)
        if self._store is not None and len(ids) and self._may_copy(len(ids)):
            self._store.save(ids, cut, take)
