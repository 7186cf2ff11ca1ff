"""An n-gram table that records which n-gram wrote each slot, to count collisions."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

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

    def look_up(self, text: Sequence[int]) -> Counter[str]:
        """Look up every n-gram of a text of more than n tokens; count them, and how often it held what.

        "right": the next token. "wrong": another token, written by the same n-gram. "foreign": a token that
        another n-gram wrote. "foreign_right": foreign tokens that happen to be the next token.
        """
        tokens = np.asarray(text, np.int64)
        hashes, follows = self.hashes(tokens), tokens[self.n :]
        slots = self.slots(hashes)
        owners, held = self._owners[slots], self._held(slots)
        is_held, is_owner, is_right = held >= 0, owners == hashes, held == follows
        found = {
            "count": np.ones(len(slots)),
            "right": is_held & is_owner & is_right,
            "wrong": is_held & is_owner & ~is_right,
            "foreign": is_held & ~is_owner,
            "foreign_right": is_held & ~is_owner & is_right,
        }
        return Counter({name: int(np.count_nonzero(mask)) for name, mask in found.items()})

    def _held(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.fromiter((self.token(slot) for slot in slots.tolist()), np.int64, len(slots))

    def _take_slots(self, hashes: Hashes) -> None:
        """Count the slots that these n-grams take from others, in order, and record the new owners."""
        if not len(hashes):
            return
        slots = self.slots(hashes)
        order = np.argsort(slots, kind="stable")
        slots, owners = slots[order], hashes[order]
        starts_group = np.append(True, slots[1:] != slots[:-1])
        before = np.empty_like(owners)
        before[1:] = owners[:-1]
        before[starts_group] = self._owners[slots[starts_group]]
        self.collisions["written"] += len(hashes)
        self.collisions["overwritten"] += int(np.count_nonzero((before != owners) & (before != NO_OWNER)))
        self._owners[slots[np.append(starts_group[1:], True)]] = owners[np.append(starts_group[1:], True)]


class WatchedTables(NgramModTables):
    """A single watched table, shared by all tenants."""

    def __init__(self, vocabulary: str, n: int, size: int) -> None:
        super().__init__(vocabulary, n, size)
        self.watched = WatchedTable(n, size)

    def table(self, tenant: str) -> WatchedTable:  # noqa: ARG002
        """Return the shared table."""

        return self.watched
