"""The n-gram tables of one vocabulary: one for all requests, or one for each tenant."""

from collections import OrderedDict
from itertools import chain
from pathlib import Path
from typing import Any

from reprise.drafters.base import Slices, TableFileError
from reprise.drafters.checked_file import owner_of
from reprise.drafters.ngram_mod.table import DEFAULT_N, DEFAULT_SIZE, NgramModCounts, NgramModTable
from reprise.drafters.ngram_mod.table_file import SavedTable, TableSpec, read_tables, write_tables

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
        self.spec = TableSpec(vocabulary, n, size, scope)
        self.file = file
        self.max_tables = MAX_TENANTS if scope == "api-key" else 1
        self.counts = NgramModCounts()
        self._tables: OrderedDict[str, NgramModTable] = OrderedDict()

    def table(self, tenant: str) -> NgramModTable:
        """Return the tenant's table, creating it if needed. May drop another tenant's table."""
        return self._table(self._owner(tenant))

    def status(self) -> dict[str, Any]:
        """Return counts for people and metrics.

        entries and occupied are totals over all tables. occupancy is occupied / entries, 0 without a table.
        """
        occupied = sum(table.occupied for table in list(self._tables.values()))
        entries = self.spec.size * max(1, len(self._tables))
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
            "n": self.spec.n,
            "scope": self.spec.scope,
            "file": None if self.file is None else str(self.file),
            "vocabulary": self.spec.vocabulary,
        }

    def reset(self) -> Slices:
        """Forget everything, and return the work of freeing memory. Open requests keep their empty tables."""
        return chain.from_iterable([table.clear() for table in self._tables.values()])

    def save(self) -> str:
        """Write all tables to the file and return a summary. Tenants appear in the file as digests.

        Raises TableFileError.
        """
        tables = [SavedTable(owner, *table.contents()) for owner, table in self._tables.items()]
        path = self._path()
        num_bytes = write_tables(path, self.spec, tables)
        return f"wrote {sum(len(table.slots) for table in tables)} entries ({num_bytes} bytes) to {path}"

    def load(self) -> str:
        """Replace all tables by those in the file and return a summary.

        Raises TableFileError; the tables are then unchanged.
        """
        path = self._path()
        tables = read_tables(path, self.spec, self.max_tables)
        self.reset()
        for table in tables:
            self._table(table.owner).replace(table.slots, table.tokens)
        return f"read {sum(len(table.slots) for table in tables)} entries from {path}"

    def _path(self) -> Path:
        if self.file is None:
            raise TableFileError("no file is set for the ngram-mod table; start with --ngram-table-file PATH")
        return self.file

    def _owner(self, tenant: str) -> str:
        if self.spec.scope == "process":
            return ""
        return owner_of(tenant)

    def _table(self, owner: str) -> NgramModTable:
        table = self._tables.get(owner)
        if table is None:
            table = self._tables[owner] = NgramModTable(self.spec.n, self.spec.size, self.counts)
        self._tables.move_to_end(owner)
        while len(self._tables) > self.max_tables:
            self._tables.popitem(last=False)
        return table
