"""Write and read the files of drafters: a magic line, a line of JSON (the header), arrays, and a checksum.

The checksum is the SHA-256 of all bytes before it. These files hold what people wrote: only the user of this
process may read them, and tenants are in them as digests.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from reprise.config.atomic_files import remove_unfinished, write_in_folder
from reprise.drafters.base import TableFileError

MAX_HEADER_BYTES = 65536

_DIGEST_BYTES = hashlib.sha256().digest_size
_OWNER_BYTES = 16


def owner_of(tenant: str) -> str:
    """Return the digest that stands for a tenant in files."""
    return hashlib.blake2b(tenant.encode(), digest_size=_OWNER_BYTES).hexdigest()


def write(path: Path, magic: bytes, header: dict[str, Any], arrays: Iterable[bytes]) -> int:
    """Write the file atomically and return its size in bytes.

    Unfinished files that a killed process left behind are removed. Raises TableFileError; the old file is
    then unchanged.
    """
    content = b"".join([magic, json.dumps(header).encode(), b"\n", *arrays])
    content += hashlib.sha256(content).digest()
    try:
        write_in_folder(path, content)
    except OSError as error:
        raise TableFileError(f"cannot write {path}: {error.strerror or error}") from error
    return len(content)


def read(path: Path, magic: bytes, kind: str, max_array_bytes: int) -> tuple[dict[str, Any], bytes]:
    """Return the header of a file, and its arrays as bytes.

    kind: the kind of file, for messages. max_array_bytes: a file with larger arrays is refused.
    Raises TableFileError if the file is missing, damaged, too large, or of another kind.
    """
    remove_unfinished(path.parent, re.escape(path.name))
    content = _read(path, len(magic) + MAX_HEADER_BYTES + max_array_bytes + _DIGEST_BYTES)
    if not content.startswith(magic):
        raise TableFileError(f"cannot load {path}: it is not {kind}")
    if len(content) < len(magic) + _DIGEST_BYTES:
        raise TableFileError(f"cannot load {path}: it is truncated")
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise TableFileError(f"cannot load {path}: it is damaged or truncated (its checksum is wrong)")
    line, _, arrays = body[len(magic) :].partition(b"\n")
    try:
        header = json.loads(line)
    except ValueError as error:
        raise TableFileError(f"cannot load {path}: its contents are invalid ({error})") from error
    return header, arrays


def check_header(path: Path, header: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise TableFileError if a wanted field has another value in the header."""
    for name, value in wanted.items():
        if header[name] != value:
            raise TableFileError(f"cannot load {path}: its {name} is {header[name]}, but {value} is expected")


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise TableFileError(f"cannot load {path}: {error.strerror or error}") from error
    if len(content) > max_bytes:
        raise TableFileError(f"cannot load {path}: it is larger than {max_bytes} bytes")
    return content
