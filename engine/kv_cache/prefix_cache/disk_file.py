"""Read and write one prefix file: a run of tokens, their KV slice, and the state after the last of them.

The format is safetensors. The tokens before the run are in another file, the parent, which the header names.
"""

import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from reprise.config.whole_file import write_whole
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.kv_cache.slices import KVSlice, State

FORMAT = "reprise prefix 1"
SUFFIX = ".prefix"
NAME_PATTERN = rf"[0-9a-f]{{40}}{re.escape(SUFFIX)}"
"""A regular expression for the names of prefix files."""

Array = np.ndarray[Any, np.dtype[Any]]
Stored = tuple[str, Array]
"""The name of an array's MLX dtype, and its numbers in a dtype that numpy has, in memory not owned by MLX."""


class PrefixFileError(Exception):
    """A file is not a usable prefix file; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a prefix file: the facts known without reading its KV slice and state.

    fingerprint: identifies the model and everything else that the file's arrays depend on.
    parent: name of the file with the tokens before this one's; "" if there are none.
    start: number of tokens before this file's own.
    tokens: the file's own tokens.
    has_state: whether the file has state after its last token.
    """

    fingerprint: str
    parent: str
    start: int
    tokens: TextKey
    has_state: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """The arrays of a prefix file. state: with None in place of each array that the caches had not set."""

    kv_slice: list[Stored]
    state: list[Stored | None]


def to_stored(array: mx.array) -> Stored:
    """Evaluate an array and copy it for use on any thread."""
    kind = str(array.dtype).rpartition(".")[2]
    # numpy has no bfloat16.
    return kind, np.array(array.view(mx.uint16) if kind == "bfloat16" else array)


def from_stored(one: Stored) -> mx.array:
    """Make an array equal to the one that to_stored() copied."""
    kind, numbers = one
    array = mx.array(numbers)
    return array.view(mx.bfloat16) if kind == "bfloat16" else array


def copy_contents(kv_slice: KVSlice, state: State) -> Contents:
    """Evaluate the arrays of a KV slice and a state, one after the other, and copy them for any thread."""
    return Contents([to_stored(a) for a in kv_slice], [None if a is None else to_stored(a) for a in state])


def write(path: Path, header: Header, contents: Contents) -> int:
    """Write a whole file or none, even if the power fails; return its number of bytes. Raises OSError.

    Only the owner can read the file, because it holds what users wrote.
    """
    # Format 1 calls the arrays of the KV slice "strip".
    arrays = {f"strip {i}": one for i, one in enumerate(contents.kv_slice)}
    arrays |= {f"state {i}": one for i, one in enumerate(contents.state) if one is not None}
    numbers = {name: np.ascontiguousarray(array) for name, (_, array) in arrays.items()}
    numbers["tokens"] = header.tokens.ids
    metadata = {
        "format": FORMAT,
        "fingerprint": header.fingerprint,
        "parent": header.parent,
        "start": str(header.start),
        "num_strips": str(len(contents.kv_slice)),
        "num_states": str(len(contents.state)),
        "kinds": ",".join(f"{name}={kind}" for name, (kind, _) in arrays.items()),
        "checksum": str(_checksum(numbers)),
        "pictures": ",".join(f"{at}={digest.hex()}" for at, digest in header.tokens.pictures),
    }
    data = save(numbers, metadata)
    write_whole(path, data)
    return len(data)


def read_header(path: Path) -> Header:
    """Read a file's header. Raises PrefixFileError if it cannot be read or is not a prefix file."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = _metadata(file, path.name)
            return Header(
                metadata["fingerprint"], metadata["parent"], int(metadata["start"]),
                _read_tokens(file, metadata), int(metadata["num_states"]) > 0,
            )  # fmt: skip
    except (OSError, SafetensorError, KeyError, ValueError) as fault:
        raise PrefixFileError(f"{path.name} cannot be read: {fault}") from fault


def read(path: Path) -> Contents:
    """Read all arrays of a file. Raises PrefixFileError if it cannot be read or is damaged."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = _metadata(file, path.name)
            numbers = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no dict
        if _checksum(numbers) != int(metadata["checksum"]):
            raise PrefixFileError(f"{path.name} is damaged: its checksum is wrong")
        kinds = dict(pair.split("=") for pair in metadata["kinds"].split(",") if pair)
        found = {name: (kind, numbers[name]) for name, kind in kinds.items()}
        kv_slice = [found[f"strip {i}"] for i in range(int(metadata["num_strips"]))]
        return Contents(kv_slice, [found.get(f"state {i}") for i in range(int(metadata["num_states"]))])
    except (OSError, SafetensorError, KeyError, ValueError) as fault:
        raise PrefixFileError(f"{path.name} cannot be read: {fault}") from fault


def _metadata(file: Any, name: str) -> dict[str, str]:
    metadata: dict[str, str] = file.metadata() or {}
    if metadata.get("format") != FORMAT:
        raise PrefixFileError(f"{name} is not a prefix file of this version of Reprise")
    return metadata


def _read_tokens(file: Any, metadata: dict[str, str]) -> TextKey:
    ids = file.get_tensor("tokens").astype(np.int32).reshape(-1)
    # Older files have none, and so match no text beyond its first picture.
    pairs = (pair.split("=") for pair in metadata.get("pictures", "").split(",") if pair)
    return TextKey(ids, tuple((int(at), bytes.fromhex(digest)) for at, digest in pairs))


def _checksum(numbers: dict[str, Array]) -> int:
    value = 0
    for name in sorted(numbers):
        value = zlib.crc32(np.ascontiguousarray(numbers[name]).view(np.uint8).data, value)
    return value
