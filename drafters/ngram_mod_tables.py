"""The tables of one vocabulary: one for everybody, or one for each tenant."""

import hashlib
from collections import OrderedDict
from pathlib import Path
from typing import Any

from drafters.base import TableFileError
from drafters.ngram_mod_file import Contents, Kind, read_tables, write_tables
from drafters.ngram_mod_table import DEFAULT_N, DEFAULT_SIZE, NgramModCounts, NgramModTable

SCOPES = ("process", "api-key")
MAX_TENANTS = 16

_OWNER_BYTES = 16


class NgramModTables:
    """What requests in one vocabulary learn from each other.

    vocabulary: its fingerprint. n, size: of every table.
    scope: "process" for one table, "api-key" for a table of each tenant, which nobody else reads.
    file: where save and load go, or None.
    max_tenants: tables kept with scope "api-key"; the least recently used goes first.
    Raises ValueError for n < 1, a size outside of 1 .. 2**32, max_tenants < 1, or another scope.
    """

    def __init__(
        self,
        vocabulary: str,
        n: int = DEFAULT_N,
        size: int = DEFAULT_SIZE,
        scope: str = "process",
        file: Path | None = None,
        max_tenants: int = MAX_TENANTS,
    ) -> None:
        if n < 1:
            raise ValueError(f"n must be at least 1; got {n}")
        if not 1 <= size <= 1 << 32:
            raise ValueError(f"an ngram-mod table has 1 to 4294967296 entries; got {size}")
        if scope not in SCOPES:
            raise ValueError(f"ngram scope must be one of {', '.join(SCOPES)}; got {scope!r}")
        if max_tenants < 1:
            raise ValueError(f"max_tenants must be at least 1; got {max_tenants}")
        self.kind = Kind(vocabulary, n, size, scope)
        self.file = file
        self.max_tables = max_tenants if scope == "api-key" else 1
        self.counts = NgramModCounts()
        self._tables: OrderedDict[str, NgramModTable] = OrderedDict()

    def table(self, tenant: str) -> NgramModTable:
        """The table that this tenant reads and writes. May drop another one's."""
        return self._table(self._owner(tenant))

    def status(self) -> dict[str, Any]:
        """Counts for people and metrics.

        entries and occupied are of all tables together; occupancy is their ratio, and 0 without a table.
        """
        occupied = sum(table.occupied for table in list(self._tables.values()))
        entries = self.kind.size * max(1, len(self._tables))
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
            "n": self.kind.n,
            "scope": self.kind.scope,
            "file": None if self.file is None else str(self.file),
            "vocabulary": self.kind.vocabulary,
        }

    def reset(self) -> None:
        """Forget everything. Open requests keep their tables, which are empty now."""
        for table in self._tables.values():
            table.clear()

    def save(self) -> str:
        """Write all tables to the file. Tenants stand in it as digests.

        Raises TableFileError.
        """
        tables = [Contents(owner, *table.contents()) for owner, table in self._tables.items()]
        path = self._path()
        num_bytes = write_tables(path, self.kind, tables)
        return f"wrote {sum(len(table.slots) for table in tables)} entries ({num_bytes} bytes) to {path}"

    def load(self) -> str:
        """Read all tables from the file, in place of what they hold.

        Raises TableFileError; then nothing has changed.
        """
        path = self._path()
        tables = read_tables(path, self.kind, self.max_tables)
        self.reset()
        for table in tables:
            self._table(table.owner).replace(table.slots, table.tokens)
        return f"read {sum(len(table.slots) for table in tables)} entries from {path}"

    def _path(self) -> Path:
        if self.file is None:
            raise TableFileError("no file is set for the ngram-mod table; start with --ngram-table-file PATH")
        return self.file

    def _owner(self, tenant: str) -> str:
        if self.kind.scope == "process":
            return ""
        return hashlib.blake2b(tenant.encode(), digest_size=_OWNER_BYTES).hexdigest()

    def _table(self, owner: str) -> NgramModTable:
        table = self._tables.get(owner)
        if table is None:
            table = self._tables[owner] = NgramModTable(self.kind.n, self.kind.size, self.counts)
        self._tables.move_to_end(owner)
        while len(self._tables) > self.max_tables:
            self._tables.popitem(last=False)
        return table
