"""Read and write the file of the n-gram tables.

Layout: MAGIC, a line of JSON (the header), then for every table its occupied slots (uint32, ascending) and
their tokens (int32), little endian, then the SHA-256 of all that. Empty slots are not stored.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from config.whole_file import remove_unfinished, write_in_folder
from drafters.base import TableFileError
from drafters.ngram_mod.table import Slots, Tokens

MAGIC = b"reprise ngram-mod\n"
VERSION = 1

_DIGEST_BYTES = hashlib.sha256().digest_size
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

    The file holds what people wrote, so only its owner may read it. Unfinished files that a killed process
    left behind are removed. Raises TableFileError; the old file is then unchanged.
    """
    header = {
        "version": VERSION,
        "vocabulary": spec.vocabulary,
        "n": spec.n,
        "size": spec.size,
        "scope": spec.scope,
        "tables": [{"owner": table.owner, "occupied": len(table.slots)} for table in tables],
    }
    parts = [MAGIC, json.dumps(header).encode(), b"\n"]
    for table in tables:
        parts += [table.slots.astype("<u4").tobytes(), table.tokens.astype("<i4").tobytes()]
    content = b"".join(parts)
    content += hashlib.sha256(content).digest()
    try:
        write_in_folder(path, content)
    except OSError as error:
        raise TableFileError(f"cannot write {path}: {error.strerror or error}") from error
    return len(content)


def read_tables(path: Path, spec: TableSpec, max_tables: int) -> list[SavedTable]:
    """Read a file of tables.

    max_tables: a file with more tables is refused.
    Raises TableFileError if the file is missing, damaged, too large or does not agree with spec.
    """
    remove_unfinished(path.parent, re.escape(path.name))
    content = _read(path, len(MAGIC) + 65536 + max_tables * (128 + spec.size * _PAIR_BYTES))
    if not content.startswith(MAGIC):
        raise TableFileError(f"cannot load {path}: it is not an ngram-mod file")
    if len(content) < len(MAGIC) + _DIGEST_BYTES:
        raise TableFileError(f"cannot load {path}: it is truncated")
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise TableFileError(f"cannot load {path}: it is damaged or truncated (its checksum is wrong)")
    line, _, arrays = body[len(MAGIC) :].partition(b"\n")
    try:
        header = json.loads(line)
        _check_header(path, header, spec)
        return _parse_tables(header["tables"], arrays, spec.size, max_tables)
    except (ValueError, KeyError, TypeError) as error:
        raise TableFileError(f"cannot load {path}: its contents are invalid ({error})") from error


def _check_header(path: Path, header: dict[str, Any], spec: TableSpec) -> None:
    """Raise TableFileError if the header does not agree with spec."""
    wanted = {"version": VERSION, "vocabulary": spec.vocabulary, "n": spec.n, "size": spec.size}
    wanted["scope"] = spec.scope
    for name, value in wanted.items():
        if header[name] != value:
            raise TableFileError(f"cannot load {path}: its {name} is {header[name]}, but {value} is expected")


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


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise TableFileError(f"cannot load {path}: {error.strerror or error}") from error
    if len(content) > max_bytes:
        raise TableFileError(f"cannot load {path}: it is larger than {max_bytes} bytes")
    return content
