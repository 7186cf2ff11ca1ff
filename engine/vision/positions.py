"""Find the places that rope gives to the tokens of a prompt with images.

A token of text has the same place on all axes. An image takes as many places as its longer side, however many
tokens it has. So the place of text after it is the text's index plus a *delta*, which is never above 0.
"""

from collections.abc import Callable, Sequence

import numpy as np

from reprise.engine.interface.images import PromptImage

PlacesOf = Callable[[tuple[int, int]], np.ndarray | None]
"""Returns the places of an image's tokens from its first one, by its grid. See Tower.positions()."""


def find_delta(images: Sequence[PromptImage], places_of: PlacesOf) -> int:
    """Return the delta of tokens after all images: their place less their index."""
    return sum(_growth(image, places_of(image.grid)) for image in images)


def find_places(images: Sequence[PromptImage], places_of: PlacesOf, start: int, end: int) -> np.ndarray:
    """Return the places of tokens [start, end) of a prompt: (3, end - start) int32."""
    places = np.tile(np.arange(start, end, dtype=np.int32), (3, 1))
    for image in images:
        if image.start >= end:
            break
        if (own := places_of(image.grid)) is None:
            continue
        low, high = max(start, image.start), min(end, image.end)
        if low < high:
            # All images before it have moved it already.
            delta = places[0, low - start] - low
            places[:, low - start : high - start] = (
                image.start + delta + own[:, low - image.start : high - image.start]
            )
        places[:, max(0, image.end - start) :] += _growth(image, own)
    return places


def _growth(image: PromptImage, own: np.ndarray | None) -> int:
    return 0 if own is None else int(own.max()) + 1 - image.length
