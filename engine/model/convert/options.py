"""The options of a conversion, its progress callback, and its errors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

DType = Literal["float16", "bfloat16", "float32"]

Report = Callable[[int, int], None]
"""Called with the bytes that have been read, and with those of the whole model."""


class ConvertError(Exception):
    """A model cannot be converted; the message is one sentence that names the reason and the way out."""


@dataclass(frozen=True)
class Options:
    """How weights are written.

    bits: quantise to 4 or 8 bits, in groups of group_size; None to quantise nothing. Quantised weights of a
        GGUF file that MLX can hold as they are stay so, unless they have more bits.
    compact: quantise to 8 bits the weights that a GGUF file has quantised in a way that MLX does not know. On
        a device that gains nothing from steps of several tokens with quantised weights, dequantise all to
        bfloat16 instead, if they take whole_bytes at most and the disk holds them.
    dequantize: write no quantised weights at all.
    dtype: the type of all weights that are not quantised, and of scales; None for the source's.
    adapter: folder of a LoRA adapter in mlx-lm's format to fuse with the model.
    """

    bits: int | None = None
    group_size: int = 64
    dtype: DType | None = None
    compact: bool = False
    whole_bytes: int = 0
    dequantize: bool = False
    adapter: str | None = None
