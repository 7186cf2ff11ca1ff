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
    """Return the size to which an image is resized, in pixels.

    detail: low, high or auto. budget: the most tokens of an image, unless the smallest possible one has more.
    Raises ValueError, in words for the client, if the model takes no such image.
    """
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ValueError(f"is more than {MAX_ASPECT} times as long as wide")
    if detail == "low":
        budget = min(budget, LOW_TOKENS)
    side = settings["patch"] * settings["merge"]
    match settings["cut"]:
        case "qwen":
            return _fit_pixels(height, width, side, settings["least"], settings["most"], budget)
        case "pixtral":
            return _fit_edge(height, width, side, settings["most"], budget)
        case "gemma4":
            return _fit_patches(height, width, settings, detail, budget)
        case _:
            return settings["most"], settings["most"]


def grid_of(settings: Settings, size: Size) -> Size:
    """Return the rows and columns of patches of an image of that size."""
    return size[0] // settings["patch"], size[1] // settings["patch"]


def num_tokens(settings: Settings, grid: Size) -> int:
    """Return the number of an image's placeholders, without the tokens that end its rows."""
    return int(grid[0] * grid[1] // settings["merge"] ** 2)


def _fit_pixels(height: int, width: int, side: int, least: int, most: int, budget: int) -> Size:
    """Return multiples of a side with a limited number of pixels, near the image's own shape."""
    most = max(side * side, min(most, budget * side * side))
    least = min(least, most)
    rows, columns = round(height / side), round(width / side)
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
