"""The draft model's prefix cache: keys and values of earlier texts, by its own ids."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.prefix_cache.trie import CutSlice, PrefixCache, PrefixStatus
from reprise.engine.kv_cache.rows import Rows
from reprise.engine.kv_cache.slices import State, cut_slice, has_state, take_state
from reprise.engine.speculative.draft_model.draft_prefill import DraftPrefill, TextPrefill

log = logging.getLogger("reprise.engine")

MIN_SAVED_IDS = 32
"""No state is kept for a prefix that saves fewer ids."""


class DraftPrefixes:
    """Keeps the draft model's keys and values of texts for later requests. Only settled ids are kept.

    find_fault: returns why the model's caches cannot be sliced, None if they can.
    budget_bytes: memory for it. find_opening: returns the length before the opening of the answer.
    cache: None if budget_bytes is 0 or the draft model's caches cannot be sliced.
    needs_state: whether those caches hold state besides KV slices.
    """

    def __init__(
        self,
        model: Any,
        find_fault: Callable[[], str | None],
        budget_bytes: int,
        find_opening: Callable[[list[int]], int],
    ) -> None:
        self._make = partial(make_caches, model)
        self._find_opening = find_opening
        self.needs_state = has_state(self._make())
        self.cache: PrefixCache | None = None
        if not budget_bytes:
            return
        if fault := find_fault():
            log.warning("no prefix cache for the draft model, so it computes every text in full: %s", fault)
        else:
            self.cache = PrefixCache(budget_bytes, self._make, self.needs_state)

    def status(self) -> PrefixStatus | None:
        """Return the prefix cache's counts, None without one. May be called on any thread."""
        return self.cache.status() if self.cache else None

    def opening(self, tokens: list[int]) -> int:
        """Return after how many of the target's tokens state is to be kept; 0 for nowhere."""
        return self._find_opening(tokens) if self.cache and self.needs_state else 0

    def look_up(self, prefill: TextPrefill, tokens: Sequence[int], max_tokens: int) -> int:
        """Look up the next max_tokens tokens of a text; begin its prefill once its longest prefix is found.

        The prefix is found once the text's ids differ from those in the cache, or no text is left.
        Returns the number of tokens looked up. Raises as DraftPrefill.translate() does.
        """
        if self.cache is None:
            prefill.begin(self._make(), 0)
            return 0
        assert isinstance(prefill, DraftPrefill)
        num_looked_up = prefill.translate_more(tokens, max_tokens)
        ids = prefill.ids[: prefill.num_usable + 1]
        num_held = self.cache.match(ids)
        if num_held == prefill.num_usable and prefill.count_left(len(tokens)) > num_held:
            return num_looked_up
        # Where texts diverge, the next one may diverge too.
        prefill.keep_at.add(num_held)
        self._begin(prefill, ids)
        return num_looked_up

    def _begin(self, prefill: TextPrefill, ids: Sequence[int]) -> None:
        """Begin to compute after the longest known prefix of ids, which never has the last one of them."""
        caches, num_found = (self.cache and self.cache.find(ids)) or (self._make(), 0)
        prefill.begin(caches, num_found)
        wanted = prefill.keep_at if self.needs_state else set()
        prefill.keep_at = {at for at in wanted if at >= num_found + MIN_SAVED_IDS}

    def keep(self, prefill: TextPrefill, tokens: Sequence[int]) -> None:
        """Keep the caches of a draft prefill as a prefix. tokens: all committed tokens of its sequence."""
        caches = prefill.caches
        self._put(prefill.computed_ids(tokens), partial(cut_slice, caches), partial(take_state, caches))

    def keep_row(self, ids: Sequence[int], row: int, rows: Rows) -> None:
        """Keep a row's caches as a prefix of these ids."""
        self._put(ids, partial(rows.kv_slice, row), partial(rows.state, row))

    def _put(self, ids: Sequence[int], cut: CutSlice, take: Callable[[], State]) -> None:
        if self.cache is None:
            return
        try:
            self.cache.put(ids, cut, take())
        except Exception:
            # No request depends on this copy.
            log.warning("a prefix of the draft model could not be cached", exc_info=True)
