"""Read a GGUF file, or the parts that one was split into: its fields, and its tensors on disk."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGUFReader, ReaderTensor

from reprise.engine.model.convert.options import ConvertError
from reprise.engine.model.convert.sources import is_gguf

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
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
    except (ValueError, IndexError) as fault:
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


def _open(path: Path) -> GGUFReader:
    try:
        return GGUFReader(path)
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
