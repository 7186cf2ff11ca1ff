"""A tower: from the pixels of one image to the states of the tokens that stand for it, in slices.

    pixels -> normalised patches -> embedding and positions -> layers -> merger -> states

Slices are lazy arrays. The caller evaluates them, as many at once as the time allows; which slices are
evaluated together changes no bit.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import mlx.core as mx
import numpy as np

from reprise.engine.interface.images import PromptImage
from reprise.engine.vision.layers import QUERIES, TASKS, Layers, is_fused
from reprise.engine.vision.weights import CHANNELS, Weights

Config = dict[str, Any]
"""What a JSON file of the model folder says."""

Grid = tuple[int, int]
"""Rows and columns of patches."""


@dataclass(frozen=True)
class Features:
    """The input of a language model for one image.

    states: (tokens, hidden), which replace the placeholders' embeddings. deep: arrays of the same shape, to
        add to the states after the first, second ... layer of the language model.
    """

    states: mx.array
    deep: tuple[mx.array, ...] = ()


HALVES = ((0.5,) * CHANNELS, (0.5,) * CHANNELS)
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""Means and deviations of channels by which many towers were trained."""

Slices = Generator[Sequence[mx.array], None, Features]
"""Yields arrays to evaluate, num_slices times, and returns the features."""


@dataclass(frozen=True)
class Normalization:
    """How the bytes of an image become numbers: (byte * scale - mean) / deviation, by channel."""

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
    """The tower of one model. Families differ in how they embed patches and merge states.

    family: its name. placeholder_id: token that stands for a part of an image. patch_size: pixels of a
    patch's side. merge_size: patches of a token's side. sees_whole_image: whether an image's tokens also
    attend to its later tokens.
    """

    family: str
    layers: Layers
    sees_whole_image = False

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

    @property
    def num_slices(self) -> int:
        """The number of slices of one image."""
        return self.layers.count + 2

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
        """Return an upper bound of the bytes that slices() takes at once, the weights not counted."""
        patches = self.num_patches(grid)
        pixels = CHANNELS * 2 * self.patch_size**2
        # Each of the tasks in flight holds the widest states that there are, some in float32.
        states = TASKS * 4 * patches * max(self._widest(), pixels)
        if is_fused(self.layers.width):
            return states
        return states + TASKS * 4 * self.layers.heads * min(patches, QUERIES) * patches

    def _widest(self) -> int:
        return max(array.shape[0] for array in self.weights.arrays.values() if array.ndim == 2)

    def slices(self, image: PromptImage) -> Slices:
        """Compute an image's features.

        A slice is the embedding, a layer, or the merger. Raises ValueError if pixels and grid disagree.
        """
        pixels = np.frombuffer(image.pixels, np.uint8).reshape(image.shape)
        x = self.embed(pixels, image.grid)
        yield (x,)
        plan = self.plan(image.grid)
        deep: list[mx.array] = []
        for index in range(self.layers.count):
            x = self.layer(index, x, plan)
            deep += self.look_deep(index, x)
            yield (x, *deep)
        states = self.merge(x, image.grid)
        yield (states, *deep)
        return Features(states, tuple(deep))

    def shape_of(self, grid: Grid) -> tuple[int, ...]:
        """Return the shape of an image's pixels: (channels, height, width), not cut into patches yet."""
        return CHANNELS, grid[0] * self.patch_size, grid[1] * self.patch_size

    def check(self, patches: np.ndarray, grid: Grid) -> None:
        """Raise ValueError if an image of a grid has other patches (patches, ...), or no whole tokens."""
        if len(patches) != self.num_patches(grid) or any(side % self.merge_size for side in grid):
            raise ValueError(f"{len(patches)} patches are no image of {grid[1]}x{grid[0]}")

    def blank(self, grid: Grid) -> PromptImage:
        """Return a black image of a grid."""
        shape = self.shape_of(grid)
        return PromptImage(0, self.num_tokens(grid), grid, bytes(prod(shape)), shape, b"")

    @abstractmethod
    def embed(self, pixels: np.ndarray, grid: Grid) -> mx.array:
        """Return the states (1, patches, width) before the first layer. Raises ValueError."""

    @abstractmethod
    def plan(self, grid: Grid) -> Any:
        """Compute from an image's grid the argument `plan` of layer(), such as the patches' rotation."""

    def layer(self, index: int, x: mx.array, plan: Any) -> mx.array:
        """Return the states after a layer."""
        return self.layers.apply(self.weights, index, x, plan)

    def look_deep(self, index: int, x: mx.array) -> list[mx.array]:  # noqa: ARG002
        """Return arrays for Features.deep from the states after a layer; none by default."""
        return []

    @abstractmethod
    def merge(self, x: mx.array, grid: Grid) -> mx.array:
        """Return the tokens' states (tokens, hidden) from the last layer's x (1, patches, width)."""


def cut_patches(pixels: np.ndarray, grid: Grid) -> np.ndarray:
    """Cut an image (channels, height, width) into patches (rows * columns, channels, side * side).

    Raises ValueError if the grid does not divide it.
    """
    channels, height, width = pixels.shape[-3:]
    rows, columns = grid
    if height % rows or width % columns:
        raise ValueError(f"an image of {width}x{height} pixels has no {columns}x{rows} patches")
    cut = pixels.reshape(channels, rows, height // rows, columns, width // columns)
    return cut.transpose(1, 3, 0, 2, 4).reshape(rows * columns, channels, -1)


def in_blocks(x: mx.array, grid: Grid, side: int) -> mx.array:
    """Group patches (1, patches, width) into blocks: (tokens, side, side, width)."""
    rows, columns = (length // side for length in grid)
    return x.reshape(rows, side, columns, side, -1).swapaxes(1, 2).flatten(0, 1)


def mean_of_blocks(x: mx.array, grid: Grid, side: int) -> mx.array:
    """Return the means (tokens, width), in float32, of blocks of side * side patches (1, patches, width)."""
    return in_blocks(x.astype(mx.float32), grid, side).mean(axis=(1, 2))
