"""Read a model's files, which are untrusted, within limits.

Only regular files are opened: reading a pipe could wait forever. File sizes and the depth of JSON are limited
before anything is parsed. Whatever exceeds a limit raises ModelError.
"""

import json
import os
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

from reprise.engine.interface.errors import ModelError

MAX_JSON_BYTES = 16 * 2**20
"""Maximum size of a configuration. Those with an entry for each weight have less than one MiB."""

MAX_INDEX_BYTES = 32 * 2**20
"""Maximum size of an index of shards: three times that of DeepSeek V3, with 92,000 arrays."""

MAX_TOKENIZER_BYTES = 128 * 2**20
"""Maximum size of each file of a tokenizer. The largest known have 35 MiB."""

MAX_DEPTH = 64
"""Maximum nesting of JSON. Python's parser takes some hundreds; configurations have fewer than ten."""

_TOKENIZER_FILES = (
    "tokenizer*", "vocab*", "merges.txt", "added_tokens.json", "special_tokens_map.json", "chat_template*",
    "*.jinja", "*.tiktoken",
)  # fmt: skip
"""Files at the top of a folder that transformers and tokenizers read whole."""

_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes({*range(256)} - {*b'[]{}"'})


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file to read its bytes. Raises ModelError for anything else, and OSError."""
    # Without O_NONBLOCK, a pipe that nobody writes to is waited for.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(path)
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, max_bytes: int = MAX_JSON_BYTES) -> bytes:
    """Return the content of a regular file of at most max_bytes. Raises ModelError and OSError."""
    with open_regular(path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ModelError(f"{path} has more than {max_bytes:,} bytes, the most that is read of it")
    return content


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Any:
    """Return the value in a JSON file. Raises ModelError for what breaks a limit, OSError and ValueError."""
    return parse_json(read_bytes(path, max_bytes), path)


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no such file, or none. Raises ModelError."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def parse_json(content: bytes, path: Path) -> Any:
    """Parse JSON from a file. Raises ModelError if it is nested too deeply or cannot be encoded again."""
    if (depth := _depth(content)) > MAX_DEPTH:
        raise ModelError(f"{path} has JSON nested {depth:,} deep; at most {MAX_DEPTH} levels are read")
    value = json.loads(content.decode("utf-8"))
    if b"\\ud" in content.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ModelError(f"{path} has half a surrogate pair, which is no character") from None
    return value


def check_files(folder: Path) -> None:
    """Raise ModelError for files on which other readers would hang or run out of memory.

    Hidden folders, such as .git, are skipped.
    """
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = Path(place, name)
            try:
                found = path.stat()
            # A link to nowhere is missing, not odd.
            except OSError:
                continue
            if not stat.S_ISREG(found.st_mode):
                raise _not_regular(path)
            is_whole = path.parent == folder and any(map(path.match, _TOKENIZER_FILES))
            if is_whole and found.st_size > MAX_TOKENIZER_BYTES:
                raise ModelError(f"{path} has more than {MAX_TOKENIZER_BYTES:,} bytes")


def find_files(folder: Path) -> dict[Path, os.stat_result]:
    """Return all regular files of a folder; those that vanish meanwhile or cannot be read are left out."""
    found: dict[Path, os.stat_result] = {}
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with suppress(OSError):
                if stat.S_ISREG((one := path.stat()).st_mode):
                    found[path] = one
    return found


def _not_regular(path: Path) -> ModelError:
    return ModelError(f"{path} is no regular file; remove it")


def _depth(content: bytes) -> int:
    """Return the nesting of JSON, at most MAX_DEPTH + 1; for unclosed text an upper bound."""
    unescaped = content.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets = b"".join(unescaped.translate(_BRACKETS, _OTHERS).split(b'"')[::2])
    depth = 0
    while b"[]" in brackets and depth <= MAX_DEPTH:
        # The innermost pairs go.
        brackets = brackets.replace(b"[]", b"")
        depth += 1
    return depth + brackets.count(b"[")


@dataclass(frozen=True)
class ArrayHeader:
    """An array of a file. dtype: such as BF16."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


@dataclass(frozen=True)
class SafetensorsFile:
    """A file's arrays by name, and its metadata."""

    path: Path
    arrays: Mapping[str, ArrayHeader]
    metadata: Mapping[str, str]

    @property
    def num_bytes(self) -> int:
        """The bytes of all arrays."""
        return sum(array.num_bytes for array in self.arrays.values())


def read_header(path: Path) -> SafetensorsFile:
    """Read a file's header. Raises ModelError if it is no safetensors file, or ends within an array."""
    try:
        with open_regular(path) as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
            if not 2 <= length <= MAX_INDEX_BYTES:
                raise ModelError(f"{path} is no safetensors file, or is truncated; download it again")
            entries = parse_json(file.read(length), path)
        metadata = entries.pop("__metadata__", None) or {}
        arrays, end = {}, 0
        for name, entry in entries.items():
            first, last = entry["data_offsets"]
            arrays[name] = ArrayHeader(entry["dtype"], tuple(entry["shape"]), last - first)
            end = max(end, last)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as fault:
        raise ModelError(f"cannot read the header of {path}: {fault!r}; download it again") from fault
    held = path.stat().st_size - 8 - length
    if held < end:
        raise ModelError(f"{path} is truncated: it has {held} of {end} bytes of arrays; download it again")
    return SafetensorsFile(path, arrays, metadata)
