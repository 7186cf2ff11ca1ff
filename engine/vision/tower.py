"""Define what the engine needs of a tower, the part of a model that turns an image into features."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx
import numpy as np

from engine.interface.images import PromptImage


@dataclass(frozen=True, slots=True)
class Features:
    """What a tower made of an image with n placeholders.

    states: (n, hidden), in place of the placeholders' embeddings.
    deep: (n, hidden) each, added to what the language model's first layers return, a layer each.
    """

    states: mx.array
    deep: tuple[mx.array, ...] = ()


Slices = Generator[Sequence[mx.array], None, Features]
"""The work on an image. It yields arrays to be computed before it goes on, and returns the features."""


class Tower(Protocol):
    """The part of a model that turns images into features.

    placeholder_id: the token id that stands for a piece of an image.
    sees_whole_image: whether the tokens of an image attend to each other, also to later ones.
    num_slices: how often slices() yields. nbytes: of its weights.
    """

    placeholder_id: int
    sees_whole_image: bool
    num_slices: int
    nbytes: int

    def positions(self, grid: tuple[int, int]) -> np.ndarray | None:
        """Return (3, n) int32: places of an image's tokens on three axes, from its first; None for one axis.

        The text after it goes on at the largest of them, plus 1.
        """

    def forecast_bytes(self, grid: tuple[int, int]) -> int:
        """Return an upper bound of the memory that slices() takes at once, the features included."""

    def slices(self, image: PromptImage) -> Slices:
        """Compute an image's features in slices. After the last yield they are computed."""

    def arrays(self) -> list[mx.array]:
        """Return its weights."""
