"""Look at a prompt's images with the tower, in slices, and keep their features until they were fed."""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from reprise.engine.interface.images import PromptImage
from reprise.engine.interface.kept import Kept
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.vision.keys import chunk_end
from reprise.engine.vision.language.reading import Language
from reprise.engine.vision.stages import Portion
from reprise.engine.vision.tower import Features, Slices, Tower


class Sight:
    """The tower of a model that sees images, its language model, and features that were computed.

    kept: features that no prompt needs now, for prompts that restart or have the same image.
    num_looked: images that the tower has looked at.
    """

    def __init__(self, model: Any, tower: Tower) -> None:
        self.tower = tower
        self.language = Language(model, tower)
        self.kept: Kept[Features] = Kept(_num_bytes)
        self.num_looked = 0

    def working_bytes(self, images: Sequence[PromptImage], num_computed: int) -> int:
        """Return an upper bound of the bytes that looking at a prompt's remaining images takes at once."""
        left = (image.grid for image in images if image.end > num_computed)
        return max(map(self.tower.forecast_bytes, left), default=0)


class Looking:
    """The images of one prompt, each of which is looked at when the prefill reaches it.

    stages_left: the stages of the tower's work before the prompt's next token can be fed: their kinds, and
        the units of work that each still takes.
    """

    def __init__(self, sight: Sight, images: Sequence[PromptImage]) -> None:
        self.stages_left: list[tuple[str, int]] = []
        self._sight, self._images = sight, images
        # The image that was looked at last; its features until all of it was fed.
        self._image: PromptImage | None = None
        self._features: Features | None = None
        self._slices: Slices | None = None
        self._portion = Portion()

    @property
    def delta(self) -> int:
        """The delta of tokens after all images: their place less their index."""
        return self._sight.language.delta(self._images)

    @property
    def num_left(self) -> int:
        """Units of work in stages_left."""
        return sum(units for _, units in self.stages_left)

    def look_at(self, num_computed: int) -> None:
        """Begin to look at the image of the token after num_computed, if that token belongs to one."""
        image = next((one for one in self._images if one.start <= num_computed < one.end), None)
        if image is None or image is self._image:
            return
        self._image, self._features = image, self._sight.kept.take(image.key)
        if self._features is None:
            self._slices = self._sight.tower.slices(image, self._portion)
            self.stages_left = self._stages_of(image)

    def left(self, num_computed: int) -> Iterator[tuple[str, int]]:
        """Yield the stages that all images not fed in full still take. See stages_left."""
        for image in self._images:
            if image is self._image:
                yield from self.stages_left
            elif image.end > num_computed and image.key not in self._sight.kept:
                yield from self._stages_of(image)

    def _stages_of(self, image: PromptImage) -> list[tuple[str, int]]:
        return [(one.kind, one.num_units) for one in self._sight.tower.stages(image.grid)]

    def advance(self, most: int) -> tuple[str, int, Sequence[mx.array]]:
        """Do the next slice of the tower's work, of up to `most` units, if a row takes no more.

        Returns its kind, its units, and its arrays, which are not computed yet.
        """
        assert self._slices is not None
        self._portion.most = most
        arrays = next(self._slices)
        (kind, units), *later = self.stages_left
        left = units - self._portion.done
        self.stages_left = [(kind, left), *later] if left else later
        if not self.stages_left:
            self._features, self._slices = _finish(self._slices), None
            self._sight.num_looked += 1
        return kind, self._portion.done, arrays

    def end_of(self, start: int, end: int) -> int:
        """Return the end of a chunk [start, end) by chunk_end(), and before images not looked at yet."""
        if self._sight.tower.sees_whole_image:
            end = chunk_end(self._images, start, end)
        unseen = (one.start for one in self._images if one.start >= start and one is not self._image)
        return min([end, *unseen])

    def feed(self, tokens: Sequence[int], start: int, end: int, caches: Caches) -> mx.array:
        """Feed tokens[start:end]; return their logits, (1, end - start, vocabulary)."""
        language, image = self._sight.language, self._image
        logits = language.feed(tokens, (start, end), self._images, self._features, caches)
        if image and self._features and image.end <= end:
            self._sight.kept.put(image.key, self._features)
            self._features = None
        return logits


def _num_bytes(features: Features) -> int:
    return sum(array.nbytes for array in (features.states, *features.deep))


def _finish(slices: Slices) -> Features:
    """Return the features that a tower made in its last slice."""
    try:
        next(slices)
    except StopIteration as end:
        features: Features = end.value
        return features
    raise RuntimeError("a tower has more slices than it says")
