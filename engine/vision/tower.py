"""A tower: from the pixels of one image to the states of the tokens that stand for it, in slices.

    pixels -> normalised patches -> embedding and positions -> layers -> merger -> states

A slice is some rows of a stage (layers.py), as lazy arrays. The caller limits its work and evaluates it.
Where slices end changes no bit of the result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from reprise.engine.interface.images import PromptImage
from reprise.engine.vision.layers import QUERIES, TASKS, Layers, Portion, Stage, is_fused
from reprise.engine.vision.weights import CHANNELS, Weights

Config = dict[str, Any]
"""The content of a JSON file in the model folder."""

Grid = tuple[int, int]
"""Rows and columns of patches."""


@dataclass(frozen=True)
class Features:
    """The input of a language model for one image.

    states: (tokens, hidden), which replace the placeholders' embeddings. deep: arrays of the same shape to
        add after the language model's first, second ... layer.
    """

    states: mx.array
    deep: tuple[mx.array, ...] = ()


HALVES = ((0.5,) * CHANNELS, (0.5,) * CHANNELS)
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""Means and deviations of channels by which many towers were trained."""

Slices = Generator[Sequence[mx.array], None, Features]
"""Yields the arrays of each slice, to be evaluated, and returns the features."""


@dataclass(frozen=True)
class Normalization:
    """Normalises an image's bytes by channel: (byte * scale - mean) / deviation."""

    scale: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, processor: Config, mean: tuple[float, ...], deviation: tuple[float, ...]) -> "Normalization":
        """Make it from an image processor's configuration. mean, deviation: defaults for missing entries."""
        if processor.get("do_normalize") is False:
            mean, deviation = (0.0,) * CHANNELS, (1.0,) * CHANNELS
        else:
            mean = tuple(processor.get("image_mean") or mean)
            deviation = tuple(processor.get("image_std") or deviation)
        scale = processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1.0
        return cls(scale, mean, deviation)

    def apply(self, pixels: np.ndarray) -> mx.array:
        """Return normalised pixels (patches, channels, ...), in float32."""
        shape = (CHANNELS, *[1] * (pixels.ndim - 2))
        mean, deviation = (mx.array(values).reshape(shape) for values in (self.mean, self.deviation))
        return (mx.array(pixels).astype(mx.float32) * self.scale - mean) / deviation

    def apply_behind(self, pixels: np.ndarray) -> mx.array:
        """Return normalised pixels (patches, side * side * channels), in float32."""
        by_channel = pixels.reshape(len(pixels), -1, CHANNELS).swapaxes(1, 2)
        return self.apply(by_channel).swapaxes(1, 2).flatten(1)


class Tower(ABC):
    """The vision tower of one model. Families differ in how they embed patches and merge states.

    family: its name. placeholder_id: token that stands for a part of an image. patch_size: pixels of a
    patch's side. merge_size: patches of a token's side. sees_whole_image: whether an image's tokens also
    attend to its later tokens. takes_patches: whether images come cut into patches.
    """

    family: str
    layers: Layers
    sees_whole_image = False
    takes_patches = False

    def __init__(self, config: Config, processor: Config, weights: Weights) -> None:
        vision = config["vision_config"]
        self.weights = weights
        self.placeholder_id = int(config.get("image_token_id") or config["image_token_index"])
        self.patch_size = int(vision.get("patch_size") or vision["spatial_patch_size"])
        self.merge_size = int(vision.get("spatial_merge_size", 1))
        self.normalization = Normalization.of(processor, *self.default_normalization)

    default_normalization = HALVES
    """Mean and deviation where the folder names none."""

    def arrays(self) -> list[mx.array]:
        """Return all weights, to be evaluated once."""
        return list(self.weights.arrays.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all weights."""
        return sum(array.nbytes for array in self.arrays())

    def stages(self, grid: Grid) -> list[Stage]:
        """Return the stages of encoding an image, in order."""
        patches = self.num_patches(grid)
        width = self.weights[f"{self.layers.prefix}0.{self.layers.out}.weight"].shape[0]
        merged = Stage("merge", patches, width * self._widest(), self._rows_together(grid))
        pixels = CHANNELS * 2 * self.patch_size**2
        found = [Stage("embed", patches, width * pixels, merged.together)]
        for index in range(self.layers.count):
            found += self._layer_stages(index, grid)
            found += [merged] if self._looks_deep(index) else []
        return [*found, merged]

    def _rows_together(self, grid: Grid) -> int:
        """Return the number of consecutive patches that form whole tokens: those of a row of tokens."""
        return self.merge_size * grid[1]

    def num_patches(self, grid: Grid) -> int:
        """Return the number of an image's patches."""
        return grid[0] * grid[1]

    def num_tokens(self, grid: Grid) -> int:
        """Return the number of an image's placeholders."""
        return (grid[0] // self.merge_size) * (grid[1] // self.merge_size)

    def positions(self, grid: Grid) -> np.ndarray | None:  # noqa: ARG002
        """Return time, row and column of an image's tokens, from 0 on: (3, tokens) int32.

        None if the tokens have one axis only, as text has.
        """
        return None

    def forecast_bytes(self, grid: Grid) -> int:
        """Return an upper bound of the bytes that slices() needs at once, besides weights."""
        patches = self.num_patches(grid)
        pixels = CHANNELS * 2 * self.patch_size**2
        # Each of the tasks in flight holds the widest states that there are, some in float32.
        states = TASKS * 4 * patches * max(self._widest(), pixels)
        if is_fused(self.layers.width):
            return states
        return states + TASKS * 4 * self.layers.heads * min(patches, QUERIES) * patches

    def _widest(self) -> int:
        return max(array.shape[0] for array in self.weights.arrays.values() if array.ndim == 2)

    def slices(self, image: PromptImage, portion: Portion | None = None) -> Slices:
        """Compute an image's features in slices. portion: limits each slice's work; None for whole stages.

        Raises ValueError if pixels and grid disagree.
        """
        grid, portion = image.grid, portion or Portion()
        (first, *_, last) = self.stages(grid)
        pixels = np.frombuffer(image.pixels, np.uint8).reshape(image.shape)
        self.check(pixels, grid)

        def embedded(start: int, end: int) -> Sequence[mx.array]:
            if pixels.ndim == 2:
                return (self._embed(pixels[start:end]),)
            rows = pixels.shape[-2] // grid[0]
            some = pixels[..., start // grid[1] * rows : end // grid[1] * rows, :]
            cut = cut_patches(some, ((end - start) // grid[1], grid[1]))
            return (self._embed(cut),)

        (x,) = yield from first.run(portion, embedded)
        x, plan, deep = self._place(x, grid), self._plan(grid), list[mx.array]()
        for index in range(self.layers.count):
            x = yield from self._layer(index, x, plan, portion)
            if self._looks_deep(index):
                of_index = partial(self._look_deep, index)
                deep += yield from last.run(portion, partial(_of_part, of_index, x, grid), axis=0)
        (states,) = yield from last.run(portion, partial(_of_part, self._merge, x, grid), axis=0)
        return Features(states, tuple(deep))

    def shape_of(self, grid: Grid) -> tuple[int, ...]:
        """Return the shape of an image's pixels: (channels, height, width), or (patches, pixels)."""
        if self.takes_patches:
            return self.num_patches(grid), CHANNELS * self.patch_size**2
        return CHANNELS, grid[0] * self.patch_size, grid[1] * self.patch_size

    def check(self, pixels: np.ndarray, grid: Grid) -> None:
        """Raise ValueError if pixels do not fit the grid or whole tokens.

        pixels: (channels, height, width), or already cut: (patches, ...).
        """
        if pixels.ndim > 2 and any(side % parts for side, parts in zip(pixels.shape[-2:], grid, strict=True)):
            *_, height, width = pixels.shape
            raise ValueError(f"an image of {width}x{height} pixels has no {grid[1]}x{grid[0]} patches")
        is_other = pixels.ndim == 2 and len(pixels) != self.num_patches(grid)
        if is_other or any(side % self.merge_size for side in grid):
            raise ValueError(f"{len(pixels)} patches are no image of {grid[1]}x{grid[0]}")

    def blank(self, grid: Grid) -> PromptImage:
        """Make a black image, grid-sized."""
        shape = self.shape_of(grid)
        return PromptImage(0, self.num_tokens(grid), grid, bytes(prod(shape)), shape, b"")

    @abstractmethod
    def _embed(self, patches: np.ndarray) -> mx.array:
        """Return the states (1, some, width) of some of an image's patches, without their positions.

        patches: (some, ...) as the image has them, or (some, channels, side * side) if it is not cut.
        """

    def _place(self, x: mx.array, grid: Grid) -> mx.array:  # noqa: ARG002
        """Add positions to the states of all patches (1, patches, width); by default there are none."""
        return x

    def _plan(self, grid: Grid) -> Any:  # noqa: ARG002
        """Compute _layer()'s argument `plan` from an image's grid: by default no rotary positions."""
        return None

    def _layer_stages(self, index: int, grid: Grid) -> Sequence[Stage]:  # noqa: ARG002
        """Return the three stages of a layer."""
        return self.layers.stages(self.weights, 1, self.num_patches(grid))

    def _layer(
        self, index: int, x: mx.array, plan: Any, portion: Portion
    ) -> Generator[Sequence[mx.array], None, mx.array]:
        """Compute a layer in slices, and return the states after it. See Layers.run()."""
        return self.layers.run(self.weights, index, x, plan, portion)

    def _looks_deep(self, index: int) -> bool:  # noqa: ARG002
        """Whether _look_deep() makes an array for Features.deep after this layer; by default no."""
        return False

    def _look_deep(self, index: int, x: mx.array, grid: Grid) -> mx.array:
        """Return tokens' states (tokens, hidden) for Features.deep, from the states after a layer.

        x, grid: see _merge().
        """
        raise NotImplementedError

    @abstractmethod
    def _merge(self, x: mx.array, grid: Grid) -> mx.array:
        """Return the tokens' states (tokens, hidden) from the last layer's x (1, patches, width).

        x: of whole tokens. grid: that of the image, or of these tokens.
        """


def _of_part(
    compute: Callable[[mx.array, Grid], mx.array], x: mx.array, grid: Grid, start: int, end: int
) -> tuple[mx.array]:
    """Compute a function of patches [start, end), which are whole tokens, and their rows of the grid."""
    return (compute(x[:, start:end], ((end - start) // grid[1], grid[1])),)


def cut_patches(pixels: np.ndarray, grid: Grid) -> np.ndarray:
    """Cut an image (channels, height, width) into patches (rows * columns, channels, side * side)."""
    channels, height, width = pixels.shape[-3:]
    rows, columns = grid
    cut = pixels.reshape(channels, rows, height // rows, columns, width // columns)
    return cut.transpose(1, 3, 0, 2, 4).reshape(rows * columns, channels, -1)


def in_blocks(x: mx.array, grid: Grid, side: int) -> mx.array:
    """Group patches (1, patches, width) into blocks: (tokens, side, side, width)."""
    rows, columns = (length // side for length in grid)
    return x.reshape(rows, side, columns, side, -1).swapaxes(1, 2).flatten(0, 1)


def mean_of_blocks(x: mx.array, grid: Grid, side: int) -> mx.array:
    """Return the means (tokens, width), in float32, of blocks of side * side patches (1, patches, width)."""
    return in_blocks(x.astype(mx.float32), grid, side).mean(axis=(1, 2))
