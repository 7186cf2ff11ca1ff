"""Read a GGUF file, or the parts that one was split into: its fields, and its tensors on disk."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, ReaderTensor
from gguf.constants import GGUFValueType

from reprise.engine.model.convert.options import ConvertError
from reprise.engine.model.convert.sources import is_gguf

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
MAX_ELEMENTS = 2**22
"""Maximum elements of all arrays in a file's fields. Known vocabularies and their merges have 1.3 million."""

MAX_FIELDS = 2**16
"""Maximum number of fields, and of tensors."""

_DIGEST = re.compile("sha256-([0-9a-f]{64})")


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file's fields and tensors.

    fields: metadata by name. tensors: those of all parts, still on disk, with their shapes in reverse order.
    """

    path: Path
    fields: dict[str, Any]
    tensors: Sequence[ReaderTensor]

    @property
    def architecture(self) -> str:
        """The name of the architecture in llama.cpp."""
        return str(self.field("general.architecture"))

    def field(self, name: str) -> Any:
        """Return the value of a field. Raises ConvertError if the file lacks it."""
        if name not in self.fields:
            raise self.refusal(f"has no {name}, so it is no whole text model")
        return self.fields[name]

    def hyper(self, name: str, *default: Any) -> Any:
        """Return an architecture's field, or a default if the file lacks it. Raises ConvertError."""
        full = f"{self.architecture}.{name}"
        value = self.fields.get(full, *default) if default else self.field(full)
        if isinstance(value, list):
            raise self.refusal(f"has another {full} for each layer, which is not converted")
        return value

    def count(self, name: str, *default: Any) -> int:
        """Return an architecture's field that counts something, so 1 or more. Raises ConvertError."""
        value = self.hyper(name, *default)
        if not isinstance(value, int) or value < 1:
            raise self.refusal(f"has {self.architecture}.{name} {value!r}, which must be a number above 0")
        return value

    def token_id(self, name: str) -> int | None:
        """Return the id of a special token; None if the file names none, or one outside its vocabulary."""
        value = self.fields.get(f"tokenizer.ggml.{name}_token_id")
        is_known = isinstance(value, int) and 0 <= value < len(self.field("tokenizer.ggml.tokens"))
        return value if is_known else None

    def refusal(self, reason: str) -> ConvertError:
        """Return the error that this file cannot be converted. reason: a sentence without its subject."""
        return ConvertError(f"{self.path} {reason}; look for the model in MLX's format, as on the hub")


def read_gguf(path: Path) -> GgufFile:
    """Read a file's fields, and find its tensors. Raises ConvertError if a part is damaged or missing."""
    if not is_gguf(path):
        raise ConvertError(f"{path} is not a GGUF file; give one, a model's folder, or a name on the hub")
    check_digest(path, _digest_in_name(path))
    readers = [_open(part) for part in _parts(path)]
    try:
        fields = {name: field.contents() for name, field in readers[0].fields.items()}
    except (ValueError, IndexError, TypeError) as fault:
        raise _damaged(path, fault) from fault
    return GgufFile(path, fields, [tensor for reader in readers for tensor in reader.tensors])


def check_digest(path: Path, sha256: str | None) -> None:
    """Raise ConvertError if a file has another SHA-256 than this one; None to check nothing."""
    if sha256 is None:
        return
    with path.open("rb") as stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != sha256:
            raise ConvertError(f"{path} does not have the checksum {sha256[:12]}...; download it again")


def _digest_in_name(path: Path) -> str | None:
    """Return the digest that Ollama names a file by."""
    named = _DIGEST.fullmatch(path.resolve().name)
    return named[1] if named else None


def _parts(path: Path) -> list[Path]:
    """Return the parts of the model that a file belongs to, in order."""
    named = _PART.fullmatch(path.name)
    if not named:
        return [path]
    count = int(named[3])
    parts = [path.with_name(f"{named[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    for part in parts:
        if not part.is_file():
            raise ConvertError(f"{path.name} is one of {count} parts, and {part} is missing; download it")
    return parts


class _Reader(GGUFReader):
    """Reads a file whose counts may be anything: the library goes through as many elements as are claimed."""

    def __init__(self, path: Path) -> None:
        self._num_elements = 0
        super().__init__(path)

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        end = offset + np.dtype(dtype).itemsize * int(count)
        if end > len(self.data):
            raise ValueError(f"it ends at byte {len(self.data)}, and something is at {end}")
        return super()._get(offset, dtype, count, override_order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == GGUFValueType.ARRAY:
            if self._get(orig_offs, np.uint32)[0] == GGUFValueType.ARRAY:
                raise ValueError("it has an array of arrays")
            self._num_elements += int(self._get(orig_offs + 4, np.uint64)[0])
            if self._num_elements > MAX_ELEMENTS:
                raise ValueError(f"its arrays claim {self._num_elements} elements, more than {MAX_ELEMENTS}")
        return super()._get_field_parts(orig_offs, raw_type)

    def _build_fields(self, offs: int, count: int) -> int:
        _check_number(count, "fields")
        return super()._build_fields(offs, count)

    def _build_tensor_info(self, offs: int, count: int) -> Any:
        _check_number(count, "tensors")
        return super()._build_tensor_info(offs, count)


def _check_number(count: int, what: str) -> None:
    if count > MAX_FIELDS:
        raise ValueError(f"it claims {count} {what}, more than {MAX_FIELDS}")


def _open(path: Path) -> GGUFReader:
    try:
        return _Reader(path)
    # A file that is cut off shows in whatever was being read.
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as fault:
        raise _damaged(path, fault) from fault
    except OSError as fault:
        raise ConvertError(f"cannot read {path}: {fault.strerror}") from fault


def _damaged(path: Path, fault: Exception) -> ConvertError:
    return ConvertError(f"{path} is cut off or damaged ({first_line(fault)}); download it again")


def first_line(fault: Exception) -> str:
    """Return an error's message, cut to one line."""
    return next(iter(str(fault).splitlines()), type(fault).__name__)[:120]
