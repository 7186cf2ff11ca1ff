"""What ngram-mod learned, in a file.

Layout: MAGIC, a line of JSON (the header), then for every table its occupied slots (uint32, rising) and their
tokens (int32), little endian, then the SHA-256 of all that. Empty slots, nearly all of them, take no room.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from config.whole_file import remove_unfinished, write_whole
from drafters.base import TableFileError
from drafters.ngram_mod_table import Slots, Tokens

MAGIC = b"reprise ngram-mod\n"
VERSION = 1

_DIGEST_BYTES = hashlib.sha256().digest_size
_PAIR_BYTES = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """What a file must agree on with the memory that reads it.

    vocabulary: fingerprint. scope: "process" or "api-key".
    """

    vocabulary: str
    n: int
    size: int
    scope: str


@dataclass(frozen=True, slots=True)
class Contents:
    """One table. owner: digest of the tenant, or "" for all. slots, tokens: (m,) each, slots rising."""

    owner: str
    slots: Slots
    tokens: Tokens


def write_tables(path: Path, kind: Kind, tables: list[Contents]) -> int:
    """Write the file or leave the old one as it is; returns its bytes.

    Only its owner may read it: it holds what people wrote. What a killed process left of such a file goes.
    Raises TableFileError.
    """
    header = {
        "version": VERSION,
        "vocabulary": kind.vocabulary,
        "n": kind.n,
        "size": kind.size,
        "scope": kind.scope,
        "tables": [{"owner": table.owner, "occupied": len(table.slots)} for table in tables],
    }
    parts = [MAGIC, json.dumps(header).encode(), b"\n"]
    for table in tables:
        parts += [table.slots.astype("<u4").tobytes(), table.tokens.astype("<i4").tobytes()]
    content = b"".join(parts)
    content += hashlib.sha256(content).digest()
    remove_unfinished(path.parent, re.escape(path.name))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    except OSError as error:
        raise TableFileError(f"cannot write {path}: {error.strerror or error}") from error
    return len(content)


def read_tables(path: Path, kind: Kind, max_tables: int) -> list[Contents]:
    """Read a file that this memory wrote, or one like it.

    max_tables: a file with more is not read. Raises TableFileError.
    """
    remove_unfinished(path.parent, re.escape(path.name))
    content = _read(path, len(MAGIC) + 65536 + max_tables * (128 + kind.size * _PAIR_BYTES))
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
        _check_kind(path, header, kind)
        return _tables(header["tables"], arrays, kind.size, max_tables)
    except (ValueError, KeyError, TypeError) as error:
        raise TableFileError(f"cannot load {path}: its contents make no sense ({error})") from error


def _check_kind(path: Path, header: dict[str, Any], kind: Kind) -> None:
    wanted = {"version": VERSION, "vocabulary": kind.vocabulary, "n": kind.n, "size": kind.size}
    wanted["scope"] = kind.scope
    for name, value in wanted.items():
        if header[name] != value:
            raise TableFileError(f"cannot load {path}: its {name} is {header[name]}, here it is {value}")


def _tables(entries: list[dict[str, Any]], arrays: bytes, size: int, max_tables: int) -> list[Contents]:
    if len(entries) > max_tables:
        raise ValueError(f"{len(entries)} tables, {max_tables} at most")
    counts = [int(entry["occupied"]) for entry in entries]
    if min(counts, default=0) < 0 or sum(counts) * _PAIR_BYTES != len(arrays):
        raise ValueError("its length is not what its header says")
    tables, at = [], 0
    for entry, count in zip(entries, counts, strict=True):
        slots = np.frombuffer(arrays, "<u4", count, at).astype(np.int64)
        tokens = np.frombuffer(arrays, "<i4", count, at + 4 * count).astype(np.int32)
        at += count * _PAIR_BYTES
        if count and (slots[-1] >= size or np.any(np.diff(slots) <= 0) or tokens.min() < 0):
            raise ValueError("slots or tokens out of range")
        tables.append(Contents(str(entry["owner"]), slots, tokens))
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
