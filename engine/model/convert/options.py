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

    bits: quantise to so many, 4 or 8, in groups of group_size. Quantised weights of a GGUF file that MLX can
        hold as they are stay so, unless they have more bits. None: quantise nothing.
    compact: quantise to 8 bits what a GGUF file has quantised in a way that MLX does not know.
    dequantize: write no quantised weights at all.
    dtype: of all weights that are not quantised, and of scales; by default as the source has them.
    adapter: folder of a LoRA adapter in mlx-lm's format that is fused with the model.
    """

    bits: int | None = None
    group_size: int = 64
    dtype: DType | None = None
    compact: bool = False
    dequantize: bool = False
    adapter: str | None = None
