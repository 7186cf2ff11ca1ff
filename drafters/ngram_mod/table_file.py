"""Read and write the file of the n-gram tables.

Arrays: for every table its occupied slots (uint32, ascending) and their tokens (int32), little endian. Empty
slots are not stored.
"""

from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from reprise.drafters import checked_file
from reprise.drafters.base import TableFileError
from reprise.drafters.ngram_mod.table import Slots, Tokens

MAGIC = b"reprise ngram-mod\n"
VERSION = 1

_PAIR_BYTES = 8


@dataclass(frozen=True, slots=True)
class TableSpec:
    """The properties in which a file and the tables that load it must agree.

    vocabulary: fingerprint. scope: "process" or "api-key".
    """

    vocabulary: str
    n: int
    size: int
    scope: str


@dataclass(frozen=True, slots=True)
class SavedTable:
    """The contents of one table.

    owner: digest of the tenant, or "" for a table of all tenants.
    slots, tokens: (m,) each; slots in ascending order.
    """

    owner: str
    slots: Slots
    tokens: Tokens


def write_tables(path: Path, spec: TableSpec, tables: list[SavedTable]) -> int:
    """Write the file atomically and return its size in bytes.

    Raises TableFileError; the old file is then unchanged.
    """
    entries = [{"owner": table.owner, "occupied": len(table.slots)} for table in tables]
    header = {**_wanted(spec), "tables": entries}
    arrays = chain.from_iterable(
        (table.slots.astype("<u4").tobytes(), table.tokens.astype("<i4").tobytes()) for table in tables
    )
    return checked_file.write(path, MAGIC, header, arrays)


def read_tables(path: Path, spec: TableSpec, max_tables: int) -> list[SavedTable]:
    """Read a file of tables.

    max_tables: a file with more tables is refused.
    Raises TableFileError if the file is missing, damaged, too large or does not agree with spec.
    """
    header, arrays = checked_file.read(
        path, MAGIC, "an ngram-mod file", max_tables * (128 + spec.size * _PAIR_BYTES)
    )
    try:
        checked_file.check_header(path, header, _wanted(spec))
        return _parse_tables(header["tables"], arrays, spec.size, max_tables)
    except (ValueError, KeyError, TypeError) as error:
        raise TableFileError(f"cannot load {path}: its contents are invalid ({error})") from error


def _wanted(spec: TableSpec) -> dict[str, Any]:
    return {"version": VERSION, **asdict(spec)}


def _parse_tables(
    entries: list[dict[str, Any]], arrays: bytes, size: int, max_tables: int
) -> list[SavedTable]:
    """Split the binary part of a file into its tables. Raises ValueError if it does not fit the header."""
    if len(entries) > max_tables:
        raise ValueError(f"it has {len(entries)} tables, the maximum is {max_tables}")
    counts = [int(entry["occupied"]) for entry in entries]
    if min(counts, default=0) < 0 or sum(counts) * _PAIR_BYTES != len(arrays):
        raise ValueError("its length does not agree with its header")
    tables, at = [], 0
    for entry, count in zip(entries, counts, strict=True):
        slots = np.frombuffer(arrays, "<u4", count, at).astype(np.int64)
        tokens = np.frombuffer(arrays, "<i4", count, at + 4 * count).astype(np.int32)
        at += count * _PAIR_BYTES
        if count and (slots[-1] >= size or np.any(np.diff(slots) <= 0) or tokens.min() < 0):
            raise ValueError("slots or tokens out of range")
        tables.append(SavedTable(str(entry["owner"]), slots, tokens))
    return tables
