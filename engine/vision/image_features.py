"""Look at a prompt's images with the tower, in slices, and keep their features until they were fed."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from reprise.engine.interface.bounded_cache import BoundedCache
from reprise.engine.interface.images import PromptImage
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.vision.families import (
    Gemma3Tower,
    Gemma4Tower,
    Lfm2Tower,
    PixtralTower,
    Qwen3Tower,
    Qwen25Tower,
)
from reprise.engine.vision.keys import chunk_end
from reprise.engine.vision.language import Language
from reprise.engine.vision.layers import Portion
from reprise.engine.vision.tower import Config, Features, Slices, Tower
from reprise.engine.vision.weights import read_weights


class Sight:
    """The tower of a model that sees images, its language model, and features that were computed.

    kept: features that no prompt needs now, for prompts that restart or have the same image.
    num_looked: images that the tower has looked at.
    """

    def __init__(self, model: Any, tower: Tower) -> None:
        self.tower = tower
        self.language = Language(model, tower)
        self.kept: BoundedCache[Features] = BoundedCache(_num_bytes)
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
        # Of each stage of that image; see Stage.
        self._least_units: list[int] = []
        self._portion = Portion()

    @property
    def delta(self) -> int:
        """The delta of tokens after all images: their place less their index."""
        return self._sight.language.delta(self._images)

    @property
    def num_left(self) -> int:
        """Units of work in stages_left."""
        return sum(units for _, units in self.stages_left)

    @property
    def least_units(self) -> int:
        """Units of work that the next slice takes at least; 0 if none is left."""
        if not self.stages_left:
            return 0
        return min(self._least_units[-len(self.stages_left)], self.stages_left[0][1])

    def look_at(self, num_computed: int) -> None:
        """Begin to look at the image of the token after num_computed, if that token belongs to one."""
        image = next((one for one in self._images if one.start <= num_computed < one.end), None)
        if image is None or image is self._image:
            return
        self._image, self._features = image, self._sight.kept.take(image.key)
        if self._features is None:
            self._slices = self._sight.tower.slices(image, self._portion)
            self.stages_left = self._stages_of(image)
            self._least_units = [one.least_units for one in self._sight.tower.stages(image.grid)]

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


log = logging.getLogger("reprise.engine")

TOWERS: dict[str, type[Tower]] = {
    "qwen3_vl": Qwen3Tower,
    "qwen3_vl_moe": Qwen3Tower,
    "qwen3_5": Qwen3Tower,
    "qwen3_5_moe": Qwen3Tower,
    "qwen2_5_vl": Qwen25Tower,
    "gemma3": Gemma3Tower,
    "gemma4": Gemma4Tower,
    "mistral3": PixtralTower,
    "pixtral": PixtralTower,
    "lfm2_vl": Lfm2Tower,
    "lfm2-vl": Lfm2Tower,
}
"""Towers by the model_type of config.json."""


def tower_type(config: Config) -> str:
    """Return the model type that names a model's tower: that of its vision part for a llava."""
    model_type = str(config.get("model_type"))
    # What Pixtral was published as; others of the name have towers of their own.
    return str((config.get("vision_config") or {}).get("model_type")) if model_type == "llava" else model_type


def find_tower(config: Config, folder: Path, processor: Config) -> Tower | None:
    """Return the tower of a model, its weights not read yet; None if the model sees no images here.

    processor: how its images are prepared, by its folder; empty if the folder does not say.
    If a model that was made to see lacks a part of its tower, that is logged: it is served as a text model.
    """
    vision = config.get("vision_config")
    if not vision:
        return None
    model_type = tower_type(config)
    if model_type not in TOWERS:
        log.warning("this model sees no images here: the tower of %s is not known", model_type)
        return None
    if not processor:
        log.warning("this model sees no images: its folder has no preprocessor_config.json")
        return None
    weights = read_weights(folder)
    if not weights.arrays:
        log.warning("this model sees no images: its folder has no weights of a tower")
        return None
    try:
        tower = TOWERS[model_type](config, processor, weights)
        # Builds the graph of a small image, which needs every array, in its shape, and computes nothing.
        for _ in tower.slices(tower.blank((tower.merge_size, tower.merge_size))):
            pass
    # Shapes that do not fit raise whatever MLX chooses.
    except Exception as fault:
        log.warning("this model sees no images: its tower is not as expected: %s", fault)
        return None
    return tower
