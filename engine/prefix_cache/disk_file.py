"""One stretch of a prompt or answer in a file: its tokens, their strip, and the state behind them.

The format is safetensors. What stands before the stretch is in another file, which this one names.
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

from config.whole_file import write_whole
from engine.kv_cache.slices import KVSlice, State

FORMAT = "reprise prefix 1"
SUFFIX = ".prefix"
NAME_PATTERN = rf"[0-9a-f]{{40}}{re.escape(SUFFIX)}"
"""Every such file's, as a regular expression."""

Array = np.ndarray[Any, np.dtype[Any]]
Stored = tuple[str, Array]
"""An array's MLX type and its numbers, of a type that numpy knows, in memory that MLX does not own."""


class PrefixFileError(Exception):
    """A file is not what it should be; the message says in which way."""


@dataclass(frozen=True, slots=True)
class Header:
    """What is known of a file without reading its arrays.

    fingerprint: names the model and all else that must agree. parent: name of the file with what stands
    before, "" if nothing does. start: tokens that stand before. tokens: (n,) int32, the file's own.
    """

    fingerprint: str
    parent: str
    start: int
    tokens: Array
    has_state: bool


@dataclass(frozen=True, slots=True)
class Contents:
    """A file's arrays. state has None where the model keeps nothing."""

    kv_slice: list[Stored]
    state: list[Stored | None]


def to_stored(array: mx.array) -> Stored:
    """A copy that any thread may use. The array is evaluated."""
    kind = str(array.dtype).rpartition(".")[2]
    # numpy has no bfloat16.
    return kind, np.array(array.view(mx.uint16) if kind == "bfloat16" else array)


def from_stored(one: Stored) -> mx.array:
    """The array that stored() was given."""
    kind, numbers = one
    array = mx.array(numbers)
    return array.view(mx.bfloat16) if kind == "bfloat16" else array


def copy_contents(kv_slice: KVSlice, state: State) -> Contents:
    """Copies of arrays, which are evaluated."""
    mx.eval(kv_slice, state)
    return Contents([to_stored(a) for a in kv_slice], [None if a is None else to_stored(a) for a in state])


def write(path: Path, header: Header, contents: Contents) -> int:
    """Write the file whole or not at all, also if the power fails; returns its bytes. Raises OSError.

    Only its owner may read it: it holds what people wrote.
    """
    arrays = {f"strip {i}": one for i, one in enumerate(contents.kv_slice)}
    arrays |= {f"state {i}": one for i, one in enumerate(contents.state) if one is not None}
    numbers = {name: np.ascontiguousarray(array) for name, (_, array) in arrays.items()}
    numbers["tokens"] = header.tokens
    metadata = {
        "format": FORMAT,
        "fingerprint": header.fingerprint,
        "parent": header.parent,
        "start": str(header.start),
        "num_strips": str(len(contents.kv_slice)),
        "num_states": str(len(contents.state)),
        "kinds": ",".join(f"{name}={kind}" for name, (kind, _) in arrays.items()),
        "checksum": str(_checksum(numbers)),
    }
    data = save(numbers, metadata)
    write_whole(path, data)
    return len(data)


def read_header(path: Path) -> Header:
    """Raises PrefixFileError if it is no such file, or cannot be read."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = _metadata(file, path.name)
            return Header(
                metadata["fingerprint"], metadata["parent"], int(metadata["start"]),
                file.get_tensor("tokens").astype(np.int32).reshape(-1), int(metadata["num_states"]) > 0,
            )  # fmt: skip
    except (OSError, SafetensorError, KeyError, ValueError) as fault:
        raise PrefixFileError(f"{path.name} cannot be read: {fault}") from fault


def read(path: Path) -> Contents:
    """All arrays of a file. Raises PrefixFileError if it cannot be read or is damaged."""
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


def _checksum(numbers: dict[str, Array]) -> int:
    value = 0
    for name in sorted(numbers):
        value = zlib.crc32(np.ascontiguousarray(numbers[name]).view(np.uint8).data, value)
    return value
