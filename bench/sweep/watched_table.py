"""An n-gram table that records which n-gram wrote each slot, to count collisions."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from drafters.ngram_mod_table import Hashes, NgramModTable, Tokens
from drafters.ngram_mod_tables import NgramModTables

NO_OWNER = 0x9E3779B97F4A7C15
"""Marks an empty slot: a hash that is as unlikely as any. 0 will not do: it is the hash of n tokens 0."""


class WatchedTable(NgramModTable):
    """The server's table, with the hash of the n-gram that wrote each slot: 8 more bytes per slot.

    collisions: counts since the table was made. "written": tokens written; "overwritten": those of them that
    replaced another n-gram's; "drafted": tokens drafted; "foreign": those of them that another n-gram had
    written.
    """

    def __init__(self, n: int, size: int) -> None:
        super().__init__(n, size)
        self.collisions: Counter[str] = Counter()
        self._owners: Hashes = np.full(size, NO_OWNER, np.uint64)

    def put(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Put as NgramModTable does, and count collisions."""
        self._take_slots(np.array([hash_ for hash_, _ in pairs], np.uint64))
        super().put(pairs)

    def put_all(self, hashes: Hashes, tokens: Tokens) -> None:
        """Put as NgramModTable does, and count collisions."""
        self._take_slots(hashes)
        super().put_all(hashes, tokens)

    def continuation(self, ngram: Sequence[int], hash_: int, limit: int) -> list[int]:
        """Draft as NgramModTable does, and count foreign tokens."""
        tokens = super().continuation(ngram, hash_, limit)
        line = [*ngram, *tokens]
        for at, token in enumerate(tokens):
            self.collisions["foreign"] += int(self._owners[self.slot(hash_)]) != hash_
            hash_ = self.roll(hash_, line[at], token)
        self.collisions["drafted"] += len(tokens)
        return tokens

    def look_up(self, text: Sequence[int]) -> dict[str, int]:
        """Look up every n-gram of a text of more than n tokens.

        Return their "count", and for how many the table held the next token ("right"), written by the same
        n-gram; tokens that another one wrote are right by chance.
        """
        tokens = np.asarray(text, np.int64)
        hashes, follows = self.hashes(tokens), tokens[self.n :]
        slots = self.slots(hashes)
        held = np.fromiter((self.token(slot) for slot in slots.tolist()), np.int64, len(slots))
        is_right = (held == follows) & (self._owners[slots] == hashes)
        return {"count": len(slots), "right": int(np.count_nonzero(is_right))}

    def _take_slots(self, hashes: Hashes) -> None:
        """Count the slots that these n-grams take from others, in order, and record the new owners."""
        if not len(hashes):
            return
        slots = self.slots(hashes)
        order = np.argsort(slots, kind="stable")
        slots, owners = slots[order], hashes[order]
        starts_group = np.append(True, slots[1:] != slots[:-1])
        before = np.where(starts_group, self._owners[slots], np.roll(owners, 1))
        self.collisions["written"] += len(hashes)
        self.collisions["overwritten"] += int(np.count_nonzero((before != owners) & (before != NO_OWNER)))
        # Of several n-grams that write to one slot, the last one becomes its owner.
        self._owners[slots] = owners


class WatchedTables(NgramModTables):
    """A single watched table, shared by all tenants."""

    def __init__(self, vocabulary: str, n: int, size: int) -> None:
        super().__init__(vocabulary, n, size)
        self.watched = WatchedTable(n, size)

    def table(self, tenant: str) -> WatchedTable:  # noqa: ARG002
        """Return the shared table."""
        return self.watched
