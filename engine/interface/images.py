"""What the server and the engine exchange about images in a prompt."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import shake_256
from typing import Any, Literal

OPEN, _CLOSE = "\ufdd2", "\ufdd3"
"""Around an image's number. Unicode keeps both from ever being characters."""
MARK = re.compile(f"{OPEN}([0-9]+){_CLOSE}")
_MARKS = str.maketrans("", "", OPEN + _CLOSE)


def mark(number: int) -> str:
    """Return the mark of the image with this number."""
    return f"{OPEN}{number}{_CLOSE}"


def without_marks(text: str) -> str:
    """Remove from a text the two characters that enclose the number in a mark, so that no mark is left."""
    return text.translate(_MARKS)


def before_images(text: str) -> str:
    """Return the part of a text before its first image mark."""
    return text.partition(OPEN)[0]


def numbers_in(messages: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of all image marks in the messages, in order."""
    texts = (one["content"] for one in messages if isinstance(one.get("content"), str))
    return [int(number) for text in texts for number in MARK.findall(text)]


KEY_BYTES = 16
Cut = Literal["qwen", "gemma3", "pixtral", "gemma4", "lfm2"]
"""How a family's processor cuts an image: engine/sandbox/image_sizes.py says what each does."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How large images are cut into tiles. The tower sees each tile, and then the whole image scaled down.

    side: pixels of a tile's side. least, most: limits of an image's number of tiles.
    tolerance: an image of up to this many times ImageProcessor.most pixels is not cut.
    starts: token ids that precede the tiles, by row and column. whole_start: the token id that precedes the
        whole image; None if the whole is not shown beside its tiles.
    """

    side: int
    least: int
    most: int
    tolerance: float
    starts: tuple[tuple[int, ...], ...]
    whole_start: int | None


@dataclass(frozen=True, slots=True)
class ImageProcessor:
    """How a model's images are cut, and how its prompts show them.

    patch: side of a patch, in pixels. merge: side of the square of patches that make one token, in patches.
    least, most: limits of an image's size, in the unit of the cut: pixels, pixels of a side, or tokens.
    filter: Pillow's number of the filter with which an image is resized.
    tiles: how large images are cut into tiles; None if no image is.
    placeholder: the id of the token that stands for a part of an image. row_end, last_end: ids of the tokens
        after each row of placeholders and after the last row; None if the family has none.
    digest: a hash of the processor's whole file, which also holds settings that have no field here, such as
        how the tower normalises pixels.
    written: the text that the chat template writes for an image. shown: the text that replaces it in the
        prompt, with one placeholder for all. alone: the text for an image if the template takes only text.
    """

    cut: Cut
    patch: int
    merge: int
    least: int
    most: int
    placeholder: int
    written: str
    shown: str
    alone: str
    filter: int = 3
    row_end: int | None = None
    last_end: int | None = None
    digest: str = ""
    tiles: Tiles | None = None


@dataclass(frozen=True, slots=True)
class VisionInfo:
    """How a model sees images.

    family: the tower's name. placeholder: the token id that stands for a part of an image.
    patch_size: side of a patch, in pixels. merge_size: side of a token's square of patches, in patches.
    min_tokens, max_tokens: limits of one image's tokens. example_tokens: those of 1024x768 pixels.
    processor: how its images are cut; None only in tests without images.
    part_tokens: the most that the tower sees at once, if that is less than a whole image.
    """

    family: str
    placeholder: int
    patch_size: int
    merge_size: int
    min_tokens: int
    max_tokens: int
    example_tokens: int
    processor: ImageProcessor | None = None
    part_tokens: int | None = None

    def describe(self) -> str:
        """Say in words what an image costs, for `reprise info` and the banner."""
        return f"sees images, {self.example_tokens:,} tokens for 1024x768"


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image in a prompt, or a tile of one, as the model's own processor cut it.

    start: index in the prompt of the image's first placeholder. length: tokens from the first placeholder to
        the last, those between them included, such as the tokens that end its rows.
    grid: (rows, columns) of patches. pixels: uint8 values in the order in which the tower reads them.
    shape: the shape of the array of pixels. key: see image_key().
    """

    start: int
    length: int
    grid: tuple[int, int]
    pixels: bytes
    shape: tuple[int, ...]
    key: bytes

    @property
    def num_patches(self) -> int:
        """The number of patches of this image or tile."""
        return self.grid[0] * self.grid[1]

    @property
    def end(self) -> int:
        """The index in the prompt after the image's last placeholder."""
        return self.start + self.length


def image_key(pixels: bytes, shape: tuple[int, ...], grid: tuple[int, int], settings: str) -> bytes:
    """Return the key of an image, KEY_BYTES of a hash of all arguments. settings: those of the tower."""
    digest = shake_256(repr((shape, grid, settings)).encode())
    digest.update(pixels)
    return digest.digest(KEY_BYTES)
