"""The options of a conversion, its progress callback, and its errors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from reprise.config.errors import RepriseError

DType = Literal["float16", "bfloat16", "float32"]

Report = Callable[[int, int], None]
"""Called with the bytes that have been read, and with those of the whole model."""


class ConvertError(RepriseError):
    """A model cannot be converted; the message is one sentence that names the reason and the way out."""


class Sizes(NamedTuple):
    """Bytes of a model's weights, before and after it was converted."""

    before: int
    after: int


@dataclass(frozen=True)
class Options:
    """How weights are written. By default with about the bits that they have.

    bits: quantise to 4 or 8 bits, in groups of group_size; None to quantise only what a GGUF file has
        quantised in a way that MLX does not know, to the next number of bits above its own. Quantised weights
        of such a file that MLX can hold as they are stay so, unless they have more bits.
    whole_bytes: dequantise a GGUF file's weights to bfloat16 where drafts gain only so (on a device that
        gains nothing from steps of several tokens with quantised weights), if they then take at most so many
        bytes, and the disk holds them. 0: never.
    dequantize: write no quantised weights at all.
    dtype: the type of all weights that are not quantised, and of scales; None for the source's.
    adapter: folder of a LoRA adapter in mlx-lm's format to fuse with the model.
    sampling: settings to recommend in generation_config.json of a GGUF file's model, by their names there.
    """

    bits: int | None = None
    group_size: int = 64
    dtype: DType | None = None
    whole_bytes: int = 0
    dequantize: bool = False
    adapter: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
