"""Decode images in processes of their own, which can be killed: decoders are C code, and files are hostile.

There are two: one for most images, and one for those that take long, so that a large one, or one made to take
long, delays no other client's.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

from reprise.engine.interface.images import ImageProcessor, image_key
from reprise.engine.sandbox.child_process import ChildError, ChildProcess, Limits

Detail = Literal["low", "high", "auto"]
SMALL_PIXELS = 6_000_000
"""The most pixels of an image that the process for most of them decodes: it takes 0.2 seconds."""
MEMORY_LIMIT_BYTES = 512 * 2**20
SMALL_LIMITS = Limits(2.0, 10.0, MEMORY_LIMIT_BYTES)
LARGE_LIMITS = Limits(10.0, 30.0, MEMORY_LIMIT_BYTES)
_NO_LIMIT = 2**62


class ImageError(ValueError):
    """An image cannot be shown; the message is a phrase that follows the image's name."""


@dataclass(frozen=True, slots=True)
class Part:
    """A tile of a decoded image, or the whole; see PromptImage. before: token ids that precede the part."""

    grid: tuple[int, int]
    shape: tuple[int, ...]
    pixels: bytes
    key: bytes
    before: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded image. size: height and width in pixels, as it is shown."""

    size: tuple[int, int]
    parts: tuple[Part, ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of the pixels of all parts."""
        return sum(len(part.pixels) for part in self.parts)


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image as a client sent it. data: base64. detail, budget: see find_size()."""

    data: str
    detail: Detail = "auto"
    budget: int = _NO_LIMIT


class ImageDecoder:
    """Decodes images. Safe on any thread; each of its processes decodes one at a time."""

    def __init__(self, small: Limits = SMALL_LIMITS, large: Limits = LARGE_LIMITS) -> None:
        self._small, self._large = ChildProcess("images", small), ChildProcess("images", large)

    def start(self) -> None:
        """Start the process for most images; return without waiting for it."""
        self._small.start()

    def decode_small(self, processor: ImageProcessor, file: ImageFile) -> Picture | None:
        """Decode an image of up to SMALL_PIXELS; return None for a larger one. Blocks. Raises ImageError."""
        return self._decode(self._small, processor, file, SMALL_PIXELS)

    def decode_large(self, processor: ImageProcessor, file: ImageFile) -> Picture:
        """Decode an image of any size. Blocks. Raises ImageError."""
        picture = self._decode(self._large, processor, file, _NO_LIMIT)
        assert picture is not None
        return picture

    def stop(self) -> None:
        """Kill the processes."""
        self._small.stop()
        self._large.stop()

    @staticmethod
    def _decode(
        process: ChildProcess, processor: ImageProcessor, file: ImageFile, max_pixels: int
    ) -> Picture | None:
        try:
            reply = process.call(
                processor=asdict(processor),
                detail=file.detail,
                budget=file.budget,
                max_pixels=max_pixels,
                attached=file.data.encode("ascii", "replace"),
            )
        except ChildError as fault:
            raise ImageError(f"cannot be decoded: {fault}") from fault
        if "complaint" in reply:
            raise ImageError(reply["complaint"])
        if "is_large" in reply:
            return None
        return Picture(tuple(reply["size"]), tuple(_parts(processor, reply)))


def _parts(processor: ImageProcessor, reply: dict[str, Any]) -> Iterator[Part]:
    settings, start = repr(processor), 0
    starts = _starts(processor, *reply["tiles"])
    for before, (grid, shape) in zip(starts, reply["parts"], strict=True):
        pixels = reply["attached"][start : (start := start + prod(shape))]
        grid, shape = tuple(grid), tuple(shape)
        yield Part(grid, shape, pixels, image_key(pixels, shape, grid, settings), before)


def _starts(processor: ImageProcessor, rows: int, columns: int) -> list[tuple[int, ...]]:
    """Return the tokens before each of an image's tiles, and before the whole."""
    if (tiles := processor.tiles) is None or rows * columns == 1:
        return [()]
    starts: list[tuple[int, ...]] = [(one,) for row in tiles.starts[:rows] for one in row[:columns]]
    return starts if tiles.whole_start is None else [*starts, (tiles.whole_start,)]


def placeholders(processor: ImageProcessor, grid: tuple[int, int]) -> list[int]:
    """Return the tokens that stand for a part of an image: placeholders, and the tokens that end its rows."""
    rows, columns = grid[0] // processor.merge, grid[1] // processor.merge
    if processor.row_end is None:
        return [processor.placeholder] * (rows * columns)
    tokens = ([processor.placeholder] * columns + [processor.row_end]) * rows
    return tokens[:-1]
