"""An n-gram table that also knows whose each slot is, for counting what collisions do."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from drafters.ngram_mod_table import Hashes, NgramModTable, Tokens
from drafters.ngram_mod_tables import NgramModTables

NOBODY = 0x9E3779B97F4A7C15
"""The owner of an empty slot: a hash as unlikely as any. 0 is that of n tokens 0."""


@dataclass(slots=True)
class Collisions:
    """What n-grams with one slot did to each other.

    written: tokens written. overwritten: of them, those that took the slot of another n-gram.
    drafted: tokens drafted. foreign: of them, those that another n-gram had left there.
    """

    written: int = 0
    overwritten: int = 0
    drafted: int = 0
    foreign: int = 0

    def add(self, other: "Collisions") -> None:
        """Count these too."""
        self.written += other.written
        self.overwritten += other.overwritten
        self.drafted += other.drafted
        self.foreign += other.foreign

    def since(self, earlier: "Collisions") -> "Collisions":
        """What came since an earlier count."""
        return Collisions(
            self.written - earlier.written,
            self.overwritten - earlier.overwritten,
            self.drafted - earlier.drafted,
            self.foreign - earlier.foreign,
        )


@dataclass(frozen=True, slots=True)
class Lookups:
    """What the table held behind each n-gram of a text: counts that add up to its n-grams.

    right: its next token. wrong: an older one, of the same n-gram. foreign: the token of another n-gram.
    empty: nothing. foreign_right: of the foreign ones, those that happened to be the next token.
    """

    right: int = 0
    wrong: int = 0
    foreign: int = 0
    empty: int = 0
    foreign_right: int = 0

    @property
    def count(self) -> int:
        """N-grams that were looked up."""
        return self.right + self.wrong + self.foreign + self.empty

    def __add__(self, other: "Lookups") -> "Lookups":
        return Lookups(
            self.right + other.right,
            self.wrong + other.wrong,
            self.foreign + other.foreign,
            self.empty + other.empty,
            self.foreign_right + other.foreign_right,
        )


class WatchedTable(NgramModTable):
    """The server's table, with the hash of the n-gram that wrote each slot beside it: 8 bytes more a slot.

    collisions: counted since it was made.
    """

    def __init__(self, n: int, size: int) -> None:
        super().__init__(n, size)
        self.collisions = Collisions()
        self._owners: Hashes = np.full(size, NOBODY, np.uint64)

    def put(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As NgramModTable.put."""
        self._own(np.array([hash_ for hash_, _ in pairs], np.uint64))
        super().put(pairs)

    def put_all(self, hashes: Hashes, tokens: Tokens) -> None:
        """As NgramModTable.put_all."""
        self._own(hashes)
        super().put_all(hashes, tokens)

    def continuation(self, ngram: Sequence[int], hash_: int, limit: int) -> list[int]:
        """As NgramModTable.continuation."""
        tokens = super().continuation(ngram, hash_, limit)
        line = [*ngram, *tokens]
        for at, token in enumerate(tokens):
            self.collisions.foreign += int(self._owners[self.slot(hash_)]) != hash_
            hash_ = self.roll(hash_, line[at], token)
        self.collisions.drafted += len(tokens)
        return tokens

    def look_up(self, text: Sequence[int]) -> Lookups:
        """What stands behind every n-gram of a text of more than n tokens, against what follows it there."""
        tokens = np.asarray(text, np.int64)
        hashes, follows = self.hashes(tokens), tokens[self.n :]
        slots = self.slots(hashes)
        owners, held = self._owners[slots], self._held(slots)
        is_empty, is_own, is_right = held < 0, owners == hashes, held == follows
        is_foreign = ~is_empty & ~is_own
        return Lookups(
            right=int(np.count_nonzero(~is_empty & is_own & is_right)),
            wrong=int(np.count_nonzero(~is_empty & is_own & ~is_right)),
            foreign=int(np.count_nonzero(is_foreign)),
            empty=int(np.count_nonzero(is_empty)),
            foreign_right=int(np.count_nonzero(is_foreign & is_right)),
        )

    def _held(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.fromiter((self.token(slot) for slot in slots.tolist()), np.int64, len(slots))

    def _own(self, hashes: Hashes) -> None:
        """Count whose slots these n-grams take, in order, and take them."""
        if not len(hashes):
            return
        slots = self.slots(hashes)
        order = np.argsort(slots, kind="stable")
        slots, owners = slots[order], hashes[order]
        starts_group = np.append(True, slots[1:] != slots[:-1])
        before = np.empty_like(owners)
        before[1:] = owners[:-1]
        before[starts_group] = self._owners[slots[starts_group]]
        self.collisions.written += len(hashes)
        self.collisions.overwritten += int(np.count_nonzero((before != owners) & (before != NOBODY)))
        self._owners[slots[np.append(starts_group[1:], True)]] = owners[np.append(starts_group[1:], True)]


class WatchedMemory(NgramModTables):
    """One watched table for everybody."""

    def __init__(self, vocabulary: str, n: int, size: int) -> None:
        super().__init__(vocabulary, n, size)
        self.watched = WatchedTable(n, size)

    def table(self, tenant: str) -> WatchedTable:  # noqa: ARG002
        """The one table."""
        return self.watched
