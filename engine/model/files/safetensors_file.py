"""Read the header of a safetensors file, which describes its arrays, without the arrays.

The file begins with 8 bytes, the length of a JSON object, and that object: by the name of each array its
type, shape and place, and under __metadata__ texts of whoever wrote the file. Source: the safetensors format.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from reprise.engine.interface.errors import ModelError
from reprise.engine.model.files.folder_reader import MAX_INDEX_BYTES, open_regular, parse_json


@dataclass(frozen=True)
class ArrayHeader:
    """An array of a file. dtype: the type's name in the format, such as BF16."""

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
