"""Compute what size a model's own processor would give an image, and how many tokens that takes.

Imports nothing of Reprise: the process that decodes images imports it too.

Source: smart_resize() and its likes in transformers' image_processing_pil_*.py, with which tests compare.
"""

import math
from collections.abc import Mapping
from typing import Any

Size = tuple[int, int]
"""Height and width, in pixels or in patches."""
Settings = Mapping[str, Any]
"""The fields of an ImageProcessor."""

LOW_TOKENS = 256
"""The most tokens of an image whose detail is low, where the model takes so few."""
MAX_ASPECT = 200
"""How many times as long as wide an image may be: models have seen nothing beyond."""
GEMMA4_TOKENS = (70, 140, 280, 560, 1120)


def find_size(settings: Settings, height: int, width: int, detail: str, budget: int) -> Size:
    """Return the height and width, in pixels, to which an image is resized.

    detail: low, high or auto. budget: the most tokens of an image, unless its smallest size has more.
    Raises ValueError, in words for the client, if the model takes no such image.
    """
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ValueError(f"is more than {MAX_ASPECT} times as long as wide")
    budget = _limited(detail, budget)
    side = settings["patch"] * settings["merge"]
    match settings["cut"]:
        case "qwen" | "lfm2":
            return _fit_pixels(height, width, side, settings, budget)
        case "pixtral":
            return _fit_edge(height, width, side, settings["most"], budget)
        case "gemma4":
            return _fit_patches(height, width, settings, detail, budget)
        case _:
            return settings["most"], settings["most"]


def find_tiles(settings: Settings, height: int, width: int, detail: str, budget: int) -> Size:
    """Return the rows and columns of tiles into which an image is cut; (1, 1) if it is shown as a whole.

    detail, budget: see find_size(). The tiles and the whole image shown beside them share the budget.
    """
    tiles, side = settings["tiles"], settings["patch"] * settings["merge"]
    if tiles is None:
        return 1, 1
    rounded = [max(settings["patch"], round(pixels / side) * side) for pixels in (height, width)]
    if math.prod(rounded) <= settings["most"] * tiles["tolerance"]:
        return 1, 1
    left = _limited(detail, budget)
    if tiles["whole_start"] is not None:
        left -= num_tokens(settings, grid_of(settings, find_size(settings, height, width, detail, budget)))
    most = min(tiles["most"], left // num_tile_tokens(settings))
    return _nearest_shape(height, width, tiles, most)


def num_tile_tokens(settings: Settings) -> int:
    """Return the number of placeholders that stand for a tile in a prompt."""
    return num_tokens(settings, grid_of(settings, (settings["tiles"]["side"],) * 2))


def grid_of(settings: Settings, size: Size) -> Size:
    """Return the rows and columns of patches in an image. size: its height and width in pixels."""
    return size[0] // settings["patch"], size[1] // settings["patch"]


def num_tokens(settings: Settings, grid: Size) -> int:
    """Return the number of placeholders for a grid of patches, without the tokens that end its rows."""
    return int(grid[0] * grid[1] // settings["merge"] ** 2)


def _limited(detail: str, budget: int) -> int:
    return min(budget, LOW_TOKENS) if detail == "low" else budget


def _nearest_shape(height: int, width: int, tiles: Settings, most: int) -> Size:
    """Return the rows and columns of at most so many tiles that are nearest to an image's own shape."""
    sides = range(1, most + 1)
    shapes = [
        (rows, columns) for rows in sides for columns in sides if tiles["least"] <= rows * columns <= most
    ]
    best, nearest = (1, 1), math.inf
    for rows, columns in sorted(shapes, key=math.prod):
        distance = abs(width / height - columns / rows)
        is_large = height * width > tiles["side"] ** 2 * rows * columns / 2
        if distance < nearest or (distance == nearest and is_large):
            best, nearest = (rows, columns), distance
    return best


def _fit_pixels(height: int, width: int, side: int, settings: Settings, budget: int) -> Size:
    """Return multiples of a side with a limited number of pixels, near the image's own shape."""
    most = max(side * side, min(settings["most"], budget * side * side))
    least = min(settings["least"], most)
    # Qwen's narrow images have none at first.
    fewest = 1 if settings["cut"] == "lfm2" else 0
    rows, columns = (max(fewest, round(pixels / side)) for pixels in (height, width))
    if rows * columns * side * side > most:
        scale = math.sqrt((height * width) / most)
        rows, columns = (max(1, math.floor(pixels / scale / side)) for pixels in (height, width))
    elif rows * columns * side * side < least:
        scale = math.sqrt(least / (height * width))
        rows, columns = (math.ceil(pixels * scale / side) for pixels in (height, width))
    return rows * side, columns * side


def _fit_edge(height: int, width: int, side: int, edge: int, budget: int) -> Size:
    """Return multiples of a side, the longer edge limited, so that tokens with those between fit a budget."""
    while True:
        ratio = max(height / edge, width / edge, 1)
        shrunk = (math.floor(height / ratio), math.floor(width / ratio)) if ratio > 1 else (height, width)
        rows, columns = ((pixels - 1) // side + 1 for pixels in shrunk)
        if rows * (columns + 1) <= budget or edge <= side:
            return rows * side, columns * side
        edge -= side


def _fit_patches(height: int, width: int, settings: Settings, detail: str, budget: int) -> Size:
    """Return multiples of a side, as large as so many tokens allow, in the image's own shape."""
    usual = GEMMA4_TOKENS[-1] if detail == "high" else settings["most"]
    allowed = [one for one in GEMMA4_TOKENS if one <= min(usual, budget)]
    most = max(allowed, default=GEMMA4_TOKENS[0])
    side = settings["patch"] * settings["merge"]
    scale = math.sqrt(most * side * side / (height * width))
    rows, columns = (math.floor(scale * pixels / side) for pixels in (height, width))
    if rows == 0:
        rows, columns = 1, min(width // height, most)
    elif columns == 0:
        rows, columns = min(height // width, most), 1
    return rows * side, columns * side
