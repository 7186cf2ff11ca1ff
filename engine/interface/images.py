"""What the server and the engine exchange about images in a prompt."""

from dataclasses import dataclass
from hashlib import shake_256
from typing import Literal

KEY_BYTES = 16
Cut = Literal["qwen", "gemma3", "pixtral", "gemma4", "lfm2"]
"""How a family's processor cuts an image: engine/foreign/image_sizes.py says what each does."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How large images are cut into tiles, which the tower sees one by one, and then the whole, made small.

    side: of a tile, in pixels. least, most: tiles of an image. tolerance: how many times the pixels of the
        largest whole image one may have that is not cut.
    starts: tokens before the tiles, by row and column. whole_start: that before the whole; None if it is not
        shown beside its tiles.
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

    patch: pixels of a patch's side. merge: patches of a token's side.
    least, most: limits of an image, in the unit of its cut: pixels, pixels of a side, or tokens.
    filter: Pillow's number of the filter with which an image is resized.
    tiles: None if no image is cut into tiles.
    placeholder, row_end, last_end: token ids; None for what the family has not.
    digest: of the processor's whole file, which also says what no field here has, such as how the tower
        normalises pixels.
    written: what its chat template writes for an image. shown: what stands there in the prompt, with one
        placeholder for all. alone: what to write where the template takes text alone.
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
    patch_size: pixels of a patch's side. merge_size: patches of a token's side.
    min_tokens, max_tokens: of one image. example_tokens: of one of 1024x768 pixels.
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
        """Return it in words, as `reprise info` and the banner have them."""
        return f"sees images, {self.example_tokens:,} tokens for 1024x768"


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image in a prompt, or a tile of one, as the model's own processor cut it.

    start: index in the prompt of its first placeholder. length: tokens from the first to the last placeholder
        and what stands between them, such as the tokens that end its rows.
    grid: (rows, columns) of patches. pixels: uint8 values in the order in which the tower reads them.
    shape: of pixels. key: see image_key().
    """

    start: int
    length: int
    grid: tuple[int, int]
    pixels: bytes
    shape: tuple[int, ...]
    key: bytes

    @property
    def num_patches(self) -> int:
        """Number of its patches."""
        return self.grid[0] * self.grid[1]

    @property
    def end(self) -> int:
        """Index in the prompt after its last placeholder."""
        return self.start + self.length


def image_key(pixels: bytes, shape: tuple[int, ...], grid: tuple[int, int], settings: str) -> bytes:
    """Return an image's key, which no other image has: KEY_BYTES of a hash. settings: of the tower."""
    digest = shake_256(repr((shape, grid, settings)).encode())
    digest.update(pixels)
    return digest.digest(KEY_BYTES)
