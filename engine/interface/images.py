"""Images in a prompt: the data that server and engine exchange, and how images are sized.

Imports nothing of Reprise: the process that decodes images imports it too.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import shake_256
from typing import Any, Literal

MAX_IMAGE_TOKENS = 2560
"""Maximum tokens of an image, as far as the model takes so few; larger ones are made smaller. An image then
takes little longer than 2,048 tokens of text, the longest chunk by default."""

OPEN, _CLOSE = "\ufdd2", "\ufdd3"
"""Around an image's number. Unicode keeps both from ever being characters."""
MARK = re.compile(f"{OPEN}([0-9]+){_CLOSE}")
_MARKS = str.maketrans("", "", OPEN + _CLOSE)


def mark(number: int) -> str:
    """Return the text mark for the image with this number."""
    return f"{OPEN}{number}{_CLOSE}"


def without_marks(value: Any) -> Any:
    """Return a JSON value without the delimiters of marks in any of its strings."""
    match value:
        case str():
            return value.translate(_MARKS)
        case dict():
            return {without_marks(name): without_marks(one) for name, one in value.items()}
        case list() | tuple():
            return [without_marks(one) for one in value]
    return value


def before_images(text: str) -> str:
    """Return the part of a text before its first image mark."""
    return text.partition(OPEN)[0]


def numbers_in(messages: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the numbers of all image marks in the messages, in order."""
    texts = (one["content"] for one in messages if isinstance(one.get("content"), str))
    return [int(number) for text in texts for number in MARK.findall(text)]


KEY_BYTES = 16
Cut = Literal["qwen", "gemma3", "pixtral", "gemma4", "lfm2"]
"""How a family's processor cuts an image; see find_size()."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How large images are cut into tiles. The tower sees each tile, and then the whole image scaled down.

    side: pixels of a tile's side. least, most: limits of an image's number of tiles.
    tolerance: an image of up to this many times ImageProcessor.most pixels is not cut.
    starts: token ids that precede the tiles, by row and column. whole_start: the token id that precedes the
        whole image; None if the whole is not shown.
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
    least, most: limits of an image's size, in the cut's unit: pixels, pixels of a side, or tokens.
    filter: Pillow's number of the filter with which an image is resized. tiles: None if no image is cut.
    placeholder: the id of the token that stands for a part of an image. row_end, last_end: ids of the tokens
        after each row of placeholders and after the last row; None if the family has none.
    digest: a hash of the processor's whole file, which also holds settings that have no field here, such as
        how the tower normalises pixels.
    written: the chat template's text for an image. shown: what replaces it in the prompt, with one
        placeholder for all. alone: an image's text if the template takes only text.
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

    family: the tower's name. placeholder, patch_size, merge_size: see ImageProcessor.
    min_tokens, max_tokens: limits of one image's tokens. example_tokens: those of 1024x768 pixels.
    processor: None only in tests without images.
    part_tokens: the most that the tower encodes at once, if that is less than a whole image.
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
        """Describe what an image costs, for `reprise info` and the banner."""
        return f"sees images, {self.example_tokens:,} tokens for 1024x768"


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image in a prompt, or a tile of one, as cut for the model.

    start: index in the prompt of the image's first placeholder. length: tokens from the first placeholder to
        the last, with those between, such as the tokens that end rows.
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
    """Return an image's key: KEY_BYTES of a hash of all arguments. settings: the tower's."""
    digest = shake_256(repr((shape, grid, settings)).encode())
    digest.update(pixels)
    return digest.digest(KEY_BYTES)


Size = tuple[int, int]
"""Height and width, in pixels or in patches."""

LOW_TOKENS = 256
"""The most tokens of an image whose detail is low, where the model takes so few."""
MAX_ASPECT = 200
"""Maximum aspect ratio: models were trained on nothing beyond."""
GEMMA4_TOKENS = (70, 140, 280, 560, 1120)


def find_size(processor: ImageProcessor, height: int, width: int, detail: str, budget: int) -> Size:
    """Return the height and width, in pixels, to which an image is resized.

    detail: low, high or auto. budget: maximum tokens, unless the smallest size has more.
    Raises ValueError, in words for the client, if the model takes no such image.
    """
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ValueError(f"is more than {MAX_ASPECT} times as long as wide")
    budget = _limited(detail, budget)
    match processor.cut:
        case "qwen" | "lfm2":
            return _fit_pixels(height, width, processor, budget)
        case "pixtral":
            return _fit_edge(height, width, processor, budget)
        case "gemma4":
            return _fit_patches(height, width, processor, detail, budget)
        case _:
            return processor.most, processor.most


def find_tiles(processor: ImageProcessor, height: int, width: int, detail: str, budget: int) -> Size:
    """Return the rows and columns of tiles into which an image is cut; (1, 1) if it is shown as a whole.

    detail, budget: see find_size(). The tiles and the whole image shown beside them share the budget.
    """
    tiles, side = processor.tiles, processor.patch * processor.merge
    if tiles is None:
        return 1, 1
    rounded = [max(processor.patch, round(pixels / side) * side) for pixels in (height, width)]
    if math.prod(rounded) <= processor.most * tiles.tolerance:
        return 1, 1
    left = _limited(detail, budget)
    if tiles.whole_start is not None:
        left -= num_tokens(processor, grid_of(processor, find_size(processor, height, width, detail, budget)))
    return _nearest_shape(height, width, tiles, min(tiles.most, left // num_tile_tokens(processor, tiles)))


def num_tile_tokens(processor: ImageProcessor, tiles: Tiles) -> int:
    """Return the number of placeholders that stand for a tile in a prompt."""
    return num_tokens(processor, grid_of(processor, (tiles.side, tiles.side)))


def grid_of(processor: ImageProcessor, size: Size) -> Size:
    """Return the rows and columns of patches in an image. size: its height and width in pixels."""
    return size[0] // processor.patch, size[1] // processor.patch


def num_tokens(processor: ImageProcessor, grid: Size) -> int:
    """Return the number of placeholders for a grid of patches. Tokens that end rows are not counted."""
    return int(grid[0] * grid[1] // processor.merge**2)


def placeholders(processor: ImageProcessor, grid: tuple[int, int]) -> list[int]:
    """Return an image part's tokens: placeholders, and the tokens that end its rows."""
    rows, columns = grid[0] // processor.merge, grid[1] // processor.merge
    if processor.row_end is None:
        return [processor.placeholder] * (rows * columns)
    return (([processor.placeholder] * columns + [processor.row_end]) * rows)[:-1]


def _limited(detail: str, budget: int) -> int:
    return min(budget, LOW_TOKENS) if detail == "low" else budget


def _nearest_shape(height: int, width: int, tiles: Tiles, most: int) -> Size:
    """Return the rows and columns of tiles, within a limit, that are nearest to an image's aspect ratio."""
    sides = range(1, most + 1)
    shapes = [(rows, columns) for rows in sides for columns in sides if tiles.least <= rows * columns <= most]
    best, nearest = (1, 1), math.inf
    for rows, columns in sorted(shapes, key=math.prod):
        distance = abs(width / height - columns / rows)
        is_large = height * width > tiles.side**2 * rows * columns / 2
        if distance < nearest or (distance == nearest and is_large):
            best, nearest = (rows, columns), distance
    return best


def _fit_pixels(height: int, width: int, processor: ImageProcessor, budget: int) -> Size:
    """Return a size in multiples of a token's side, with limited pixels and nearly the aspect ratio."""
    side = processor.patch * processor.merge
    most = max(side * side, min(processor.most, budget * side * side))
    least = min(processor.least, most)
    # Qwen's narrow images have none at first.
    fewest = 1 if processor.cut == "lfm2" else 0
    rows, columns = (max(fewest, round(pixels / side)) for pixels in (height, width))
    if rows * columns * side * side > most:
        scale = math.sqrt((height * width) / most)
        rows, columns = (max(1, math.floor(pixels / scale / side)) for pixels in (height, width))
    elif rows * columns * side * side < least:
        scale = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(pixels * scale / side) for pixels in (height, width))
    return rows * side, columns * side


def _fit_edge(height: int, width: int, processor: ImageProcessor, budget: int) -> Size:
    """Return a size in multiples of a side, its longer edge limited, whose tokens fit the budget."""
    side, edge = processor.patch * processor.merge, processor.most
    while True:
        ratio = max(height / edge, width / edge, 1)
        shrunk = (math.floor(height / ratio), math.floor(width / ratio)) if ratio > 1 else (height, width)
        rows, columns = ((pixels - 1) // side + 1 for pixels in shrunk)
        if rows * (columns + 1) <= budget or edge <= side:
            return rows * side, columns * side
        edge -= side


def _fit_patches(height: int, width: int, processor: ImageProcessor, detail: str, budget: int) -> Size:
    """Return the largest size in multiples of a side that the tokens allow, in the image's aspect ratio."""
    usual = GEMMA4_TOKENS[-1] if detail == "high" else processor.most
    most = max((one for one in GEMMA4_TOKENS if one <= min(usual, budget)), default=GEMMA4_TOKENS[0])
    side = processor.patch * processor.merge
    scale = math.sqrt(most * side * side / (height * width))
    rows, columns = (math.floor(scale * pixels / side) for pixels in (height, width))
    if rows == 0:
        rows, columns = 1, min(width // height, most)
    elif columns == 0:
        rows, columns = min(height // width, most), 1
    return rows * side, columns * side
