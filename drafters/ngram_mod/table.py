"""An n-gram table: the hash of n tokens -> the token that last followed them.

The table is lossy by design. Two n-grams that share a slot overwrite each other, and a lookup cannot detect
that: a wrong token only makes a draft that the target model rejects. Source: llama.cpp's ngram-mod.

The hash of tokens t[0..n-1] is the sum of t[k] * MULTIPLIER ** (n - k) mod 2 ** 64. It is a rolling hash: one
more token costs two multiplications. Its high bits are the best mixed, so they choose the slot, by a
multiplication instead of a remainder. That is why even the newest token is multiplied once.
"""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reprise.drafters import checked_file
from reprise.drafters.base import Slices, TableFileError
from reprise.drafters.checked_file import owner_of

DEFAULT_SIZE = 4 * 1024 * 1024
DEFAULT_N = 16
EMPTY = -1
"""The value of token() for an empty slot."""
MULTIPLIER = 6364136223846793005

_MASK = (1 << 64) - 1
_PAGE_SLOTS = 1024  # slots in a page of memory
_TOUCHED_SLOTS = 1 << 16

Hashes = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]


@dataclass(slots=True)
class NgramModCounts:
    """Counts since the server started, summed over its tables; a reset does not zero them.

    inserts: tokens written. overwrites: how many of those replaced another token.
    hits: drafted tokens. misses: lookups that found an empty slot.
    """

    inserts: int = 0
    overwrites: int = 0
    hits: int = 0
    misses: int = 0


class NgramModTable:
    """Slots that hold the token after an n-gram, 4 bytes each, allocated with the first insert.

    n: tokens of an n-gram, >= 1. size: number of slots, 1 <= size <= 2**32; need not be a power of two.
    counts: the counts to add to, shared by all tables of one vocabulary; None for counts of its own.
    occupied: number of slots that are not empty.
    """

    def __init__(
        self, n: int = DEFAULT_N, size: int = DEFAULT_SIZE, counts: NgramModCounts | None = None
    ) -> None:
        self.n = n
        self.size = size
        self.counts = counts or NgramModCounts()
        self.occupied = 0
        # A slot holds the complement of its token, so that zeros are empty: allocating zeros takes no time.
        self._cells: npt.NDArray[np.int32] | None = None
        # Single items of a memoryview are read three times as fast as those of an array.
        self._slots: memoryview[int] | None = None
        self._oldest_weight = pow(MULTIPLIER, n, 1 << 64)

    @property
    def num_bytes(self) -> int:
        """Memory allocated, in bytes; 0 before the first insert."""
        return 0 if self._slots is None else self._slots.nbytes

    def roll(self, hash_: int, oldest: int, token: int) -> int:
        """Return the hash after dropping the oldest token and appending one; oldest is 0 to drop none."""
        return (hash_ + token - oldest * self._oldest_weight) * MULTIPLIER & _MASK

    def hash(self, tokens: Sequence[int]) -> int:
        """Return the hash of at most n tokens."""
        hash_ = 0
        for token in tokens:
            hash_ = self.roll(hash_, 0, token)
        return hash_

    def slot(self, hash_: int) -> int:
        """Return the slot of the n-gram with this hash."""
        return (hash_ >> 32) * self.size >> 32

    def token(self, slot: int) -> int:
        """Return the token in a slot, or EMPTY. This is not counted as a lookup."""
        return EMPTY if self._slots is None else ~self._slots[slot]

    def continuation(self, ngram: Sequence[int], hash_: int, limit: int) -> list[int]:
        """Return up to limit tokens that follow an n-gram, fewer if a slot is empty.

        Each token is looked up by the n tokens before it.
        ngram: (n,) tokens. hash_: of ngram.
        """
        slots, n, size, weight = self._slots, self.n, self.size, self._oldest_weight
        if slots is None or not slots[(hash_ >> 32) * size >> 32]:
            self.counts.misses += 1
            return []
        line = list(ngram)
        for at in range(limit):
            token = ~slots[(hash_ >> 32) * size >> 32]
            if token < 0:
                self.counts.misses += 1
                break
            hash_ = (hash_ + token - line[at] * weight) * MULTIPLIER & _MASK
            line.append(token)
        self.counts.hits += len(line) - n
        return line[n:]

    def learn(self, tokens: Sequence[int]) -> None:
        """Write every token that has n tokens before it, in order. tokens: ids in [0, 2**31)."""
        if len(tokens) > self.n:
            # By way of an array, which is made three times as fast as NumPy's from a tuple.
            followers = np.asarray(array("I", tokens))
            self.put(self.hashes(followers), followers[self.n :].astype(np.int32))

    def clear(self) -> Slices:
        """Forget everything, and return the work of freeing the memory, which takes milliseconds."""
        cells = self._cells
        self._cells = self._slots = None
        self.occupied = 0
        return iter(()) if cells is None else _free(cells)

    def contents(self) -> tuple[Slots, Tokens]:
        """Return the occupied slots in ascending order, and their tokens."""
        if self._cells is None:
            return np.empty(0, np.int64), np.empty(0, np.int32)
        occupied = np.flatnonzero(self._cells)
        return occupied, ~self._cells[occupied]

    def replace(self, occupied: Slots, tokens: Tokens) -> None:
        """Replace the table's contents by slots and tokens as contents() returns them."""
        self.clear()
        if len(occupied):
            self._allocate()[occupied] = ~tokens
            self.occupied = len(occupied)

    def hashes(self, tokens: npt.NDArray[np.integer]) -> Hashes:
        """Return the hashes (m - n,) of all n-grams in (m,) tokens that are followed by a token; m > n."""
        wide = tokens.astype(np.uint64)
        num_ngrams = len(wide) - self.n
        hashes = np.zeros(num_ngrams, np.uint64)
        for at in range(self.n):
            # Unsigned arrays overflow modulo 2 ** 64, as the hash does.
            hashes += wide[at : at + num_ngrams]
            hashes *= np.uint64(MULTIPLIER)
        return hashes

    def put(self, hashes: Hashes, tokens: Tokens) -> None:
        """Write the tokens (m,) after n-grams with these hashes, in order: in a slot the newest stays."""
        high = np.uint64(32)
        slots = ((hashes >> high) * np.uint64(self.size) >> high).astype(np.int64)
        # A stable sort groups equal slots and keeps their order, so the last of a group is the newest.
        order = np.argsort(slots, kind="stable")
        slots, tokens = slots[order], tokens[order]
        cells = self._allocate()
        starts_group = np.append(True, slots[1:] != slots[:-1])
        ends_group = np.append(starts_group[1:], True)
        before = np.empty_like(tokens)
        before[1:] = tokens[:-1]
        before[starts_group] = ~cells[slots[starts_group]]
        self.counts.overwrites += int(np.count_nonzero((before != tokens) & (before >= 0)))
        self.counts.inserts += len(tokens)
        self.occupied += int(np.count_nonzero(before < 0))
        cells[slots[ends_group]] = ~tokens[ends_group]

    def allocate(self) -> Slices:
        """Return the work of allocating the table, if that is not done yet.

        Otherwise the first insert would make the system provide all that memory, which takes milliseconds.
        """
        if self._cells is None:
            cells = self._allocate()
            for start in range(0, self.size, _TOUCHED_SLOTS):
                # Writes to every page, and changes nothing: others may use the table already.
                cells[start : start + _TOUCHED_SLOTS : _PAGE_SLOTS] += 0
                yield 0

    def _allocate(self) -> npt.NDArray[np.int32]:
        """Return the slots' contents, allocated if they are not yet."""
        if self._cells is None:
            self._cells = np.zeros(self.size, np.int32)
            self._slots = self._cells.data
        return self._cells


def _free(cells: npt.NDArray[np.int32]) -> Slices:
    """Return the work of returning an otherwise unused array's memory to the system."""
    for size in range(len(cells) - _TOUCHED_SLOTS, 0, -_TOUCHED_SLOTS):
        cells.resize(size, refcheck=False)
        yield 0


MAGIC = b"reprise ngram-mod\n"
VERSION = 1

_PAIR_BYTES = 8


SCOPES = ("process", "api-key")
MAX_TENANTS = 16
"""Maximum number of tables with scope "api-key"; the least recently used is dropped first."""


class NgramModTables:
    """The n-gram tables of one vocabulary, which requests share.

    vocabulary: its fingerprint. n, size: of every table.
    scope: "process" for one table, "api-key" for one table per tenant, which no other tenant reads.
    file: path for save and load, or None.
    Raises ValueError for n < 1, a size not in [1, 2**32], or an unknown scope.
    """

    def __init__(
        self,
        vocabulary: str,
        n: int = DEFAULT_N,
        size: int = DEFAULT_SIZE,
        scope: str = "process",
        file: Path | None = None,
    ) -> None:
        if n < 1:
            raise ValueError(f"n must be at least 1; got {n}")
        if not 1 <= size <= 1 << 32:
            raise ValueError(f"an ngram-mod table has 1 to 4294967296 entries; got {size}")
        if scope not in SCOPES:
            raise ValueError(f"ngram scope must be one of {', '.join(SCOPES)}; got {scope!r}")
        # A file and the tables that load it must share this.
        self._header = {"version": VERSION, "vocabulary": vocabulary, "n": n, "size": size, "scope": scope}
        self._n, self._size, self._is_shared = n, size, scope == "process"
        self.file = file
        self.max_tables = 1 if self._is_shared else MAX_TENANTS
        self.counts = NgramModCounts()
        self._tables: OrderedDict[str, NgramModTable] = OrderedDict()

    def table(self, tenant: str) -> NgramModTable:
        """Return the tenant's table, creating it if needed. May drop another tenant's table."""
        return self._table("" if self._is_shared else owner_of(tenant))

    def status(self) -> dict[str, Any]:
        """Return counts for people and metrics.

        entries and occupied are totals over all tables. occupancy is occupied / entries, 0 without a table.
        """
        occupied = sum(table.occupied for table in list(self._tables.values()))
        entries = self._size * max(1, len(self._tables))
        return {
            "entries": entries,
            "occupied": occupied,
            "occupancy": occupied / entries,
            "inserts": self.counts.inserts,
            "overwrites": self.counts.overwrites,
            "hits": self.counts.hits,
            "misses": self.counts.misses,
            "tables": len(self._tables),
            "bytes": sum(table.num_bytes for table in list(self._tables.values())),
            "n": self._n,
            "scope": self._header["scope"],
            "file": None if self.file is None else str(self.file),
            "vocabulary": self._header["vocabulary"],
        }

    def reset(self) -> Slices:
        """Forget everything, and return the work of freeing memory. Open requests keep their empty tables."""
        return chain.from_iterable([table.clear() for table in self._tables.values()])

    def save(self) -> str:
        """Write all tables to the file and return a summary. Tenants appear in the file as digests.

        Raises TableFileError.
        """
        path = self._path()
        found = {owner: table.contents() for owner, table in self._tables.items()}
        entries = [{"owner": owner, "occupied": len(slots)} for owner, (slots, _) in found.items()]
        arrays = chain.from_iterable(
            (slots.astype("<u4").tobytes(), tokens.astype("<i4").tobytes())
            for slots, tokens in found.values()
        )
        num_bytes = checked_file.write(path, MAGIC, {**self._header, "tables": entries}, arrays)
        return f"wrote {sum(len(slots) for slots, _ in found.values())} entries ({num_bytes} bytes) to {path}"

    def load(self) -> str:
        """Replace all tables by those in the file and return a summary.

        Raises TableFileError; the tables are then unchanged.
        """
        path = self._path()
        max_bytes = self.max_tables * (128 + self._size * _PAIR_BYTES)
        header, arrays = checked_file.read(path, MAGIC, "an ngram-mod file", max_bytes)
        try:
            checked_file.check_header(path, header, self._header)
            found = self._parse(header["tables"], arrays)
        except (ValueError, KeyError, TypeError) as error:
            raise TableFileError(f"cannot load {path}: its contents are invalid ({error})") from error
        self.reset()
        for owner, slots, tokens in found:
            self._table(owner).replace(slots, tokens)
        return f"read {sum(len(slots) for _, slots, _ in found)} entries from {path}"

    def _parse(self, entries: list[dict[str, Any]], arrays: bytes) -> list[tuple[str, Slots, Tokens]]:
        """Return each table's owner and contents. Raises ValueError if the arrays do not fit the entries."""
        if len(entries) > self.max_tables:
            raise ValueError(f"it has {len(entries)} tables, the maximum is {self.max_tables}")
        counts = [int(entry["occupied"]) for entry in entries]
        if min(counts, default=0) < 0 or sum(counts) * _PAIR_BYTES != len(arrays):
            raise ValueError("its length does not agree with its header")
        found, at = [], 0
        for entry, count in zip(entries, counts, strict=True):
            slots = np.frombuffer(arrays, "<u4", count, at).astype(np.int64)
            tokens = np.frombuffer(arrays, "<i4", count, at + 4 * count).astype(np.int32)
            at += count * _PAIR_BYTES
            if count and (slots[-1] >= self._size or np.any(np.diff(slots) <= 0) or tokens.min() < 0):
                raise ValueError("slots or tokens out of range")
            found.append((str(entry["owner"]), slots, tokens))
        return found

    def _path(self) -> Path:
        if self.file is None:
            raise TableFileError("no file is set for the ngram-mod table; start with --ngram-table-file PATH")
        return self.file

    def _table(self, owner: str) -> NgramModTable:
        table = self._tables.get(owner)
        if table is None:
            table = self._tables[owner] = NgramModTable(self._n, self._size, self.counts)
        self._tables.move_to_end(owner)
        while len(self._tables) > self.max_tables:
            self._tables.popitem(last=False)
        return table
