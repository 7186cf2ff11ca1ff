"""A prompt's images: the vision tower encodes them in slices, and the language model gets the features.

Features are kept until they are fed. Language models may also need positions, states for deeper layers, and
attention over whole images.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from reprise.engine.interface.bounded_cache import BoundedCache
from reprise.engine.interface.images import PromptImage
from reprise.engine.kv_cache.per_row import Caches, leaves
from reprise.engine.vision.families import TOWERS, tower_type
from reprise.engine.vision.keys import chunk_end
from reprise.engine.vision.layers import Portion
from reprise.engine.vision.tower import Config, Features, Slices, Tower
from reprise.engine.vision.weights import read_weights

_ADDED = "_features_to_add"


@contextmanager
def features_behind(layers: Sequence[Any], at: mx.array, deep: Sequence[mx.array]) -> Iterator[None]:
    """Add features to the first layers' outputs inside the block.

    at: (n,) indices of the fed tokens that get features. deep: (n, hidden) for each of the first layers.
    """
    changed: list[tuple[Any, type]] = [(layer, type(layer)) for layer, _ in zip(layers, deep, strict=False)]
    try:
        for (layer, kind), features in zip(changed, deep, strict=True):
            layer.__dict__[_ADDED] = at, features
            layer.__class__ = _adding(kind)
        yield
    finally:
        for layer, kind in changed:
            layer.__class__ = kind
            layer.__dict__.pop(_ADDED, None)


@cache
def _adding(kind: type) -> type:
    """Return a subclass of a layer that adds features to its output."""

    def call(self: Any, *args: Any, **kwargs: Any) -> mx.array:
        states: mx.array = kind.__call__(self, *args, **kwargs)
        at, features = self.__dict__[_ADDED]
        return states.at[:, at].add(features.astype(states.dtype)[None])

    return type(kind.__name__, (kind,), {"__call__": call})


Axes = np.ndarray
"""(n,) of each pair of numbers that rope turns, the axis whose place it is turned by: 0, 1 or 2."""


def find_axes(text_config: Mapping[str, Any]) -> Axes | None:
    """Return the axis (0 to 2) by which rope rotates each pair; None if the model has one axis."""
    rope = text_config.get("rope_parameters") or text_config.get("rope_scaling") or {}
    if (sections := rope.get("mrope_section")) is None:
        return None
    if not rope.get("mrope_interleaved"):
        return np.repeat([0, 1, 2], sections)
    axes = np.zeros(sum(sections), np.int64)
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes


@contextmanager
def rope_at(places: np.ndarray, axes: Axes) -> Iterator[None]:
    """Make rope use these positions inside the block, in a forward pass of one row.

    places: (3, n) positions of the fed tokens. axes: see find_axes(). For the thread that owns MLX.
    """
    fused: Callable[..., mx.array] = mx.fast.rope
    is_text = (places == places[:1, :1] + np.arange(places.shape[1])).all()
    by_axis = [mx.array(one) for one in places]
    of_number = mx.array(np.tile(axes, 2))

    def rope(x: mx.array, dims: int, *, offset: Any, **options: Any) -> mx.array:
        del offset
        if is_text:
            return fused(x, dims, offset=int(places[0, 0]), **options)
        # The tokens stand where rows do, as only rows have places of their own.
        tokens = x.swapaxes(0, 2)
        turned = [fused(tokens, dims, offset=each, **options) for each in by_axis]
        pad = x.shape[-1] - 2 * len(axes)
        chosen = mx.pad(of_number, (0, pad)) if pad else of_number
        found = mx.where(chosen == 2, turned[2], mx.where(chosen == 1, turned[1], turned[0]))
        return found.swapaxes(0, 2)

    try:
        mx.fast.rope = rope  # type: ignore[assignment]
        yield
    finally:
        mx.fast.rope = fused


@contextmanager
def images_seen_whole(caches: Caches, numbers: np.ndarray, in_windows_only: bool = False) -> Iterator[None]:
    """Let an image's tokens see its later tokens too, inside the block and with one row's caches.

    numbers: (n,) each fed token's image number; negative if it belongs to none.
    in_windows_only: change only sliding layers, not those that keep all tokens.
    """
    same = mx.array((numbers[:, None] == numbers) & (numbers >= 0))

    def seeing(make_mask: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def make(N: int, return_array: bool = False, window_size: int | None = None) -> mx.array:
            if in_windows_only and window_size is None:
                return make_mask(N, return_array=return_array, window_size=window_size)
            mask = make_mask(N, return_array=True, window_size=window_size)
            return mask | mx.pad(same, [(0, 0), (mask.shape[-1] - N, 0)])

        return make

    held: list[Any] = list(leaves(caches))
    try:
        for cache in held:
            cache.make_mask = seeing(cache.make_mask)
        yield
    finally:
        for cache in held:
            cache.__dict__.pop("make_mask", None)


PlacesOf = Callable[[tuple[int, int]], np.ndarray | None]
"""Returns the places of an image's tokens from its first one, by its grid. See Tower.positions()."""


def find_delta(images: Sequence[PromptImage], places_of: PlacesOf) -> int:
    """Return the delta of tokens after all images: position minus index."""
    return sum(_growth(image, places_of(image.grid)) for image in images)


def find_places(images: Sequence[PromptImage], places_of: PlacesOf, start: int, end: int) -> np.ndarray:
    """Return the positions of a prompt's tokens [start, end): (3, end - start) int32."""
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


SCALED = ("gemma3", "gemma3n", "gemma4")
"""Model types that multiply all that they are fed by the rounded root of the hidden size, features too."""


class Sight:
    """A vision model: its tower, its language model, and computed features.

    kept: cached features, for prompts that restart or have the same image.
    num_looked: images that were encoded.
    """

    def __init__(self, model: Any, tower: Tower) -> None:
        self.tower = tower
        self.kept: BoundedCache[Features] = BoundedCache(_num_bytes)
        self.num_looked = 0
        self._model = model
        body = model.language_model.model
        self._embed, self._layers = body.embed_tokens, body.layers
        is_scaled = model.model_type in SCALED
        self._root = model.args.text_config["hidden_size"] ** 0.5 if is_scaled else None
        self._axes = find_axes(model.args.text_config)
        # Gemma 4 reads ids in every layer, that of padding for an image, and only its windows see one whole.
        self._is_gemma4 = model.model_type == "gemma4"

    @property
    def has_axes(self) -> bool:
        """Whether positions have three axes, with a delta for text after images."""
        return self._axes is not None

    def delta(self, images: Sequence[PromptImage]) -> int:
        """Return the delta of tokens after all images: position minus index, never above 0."""
        return find_delta(images, self.tower.positions) if self.has_axes else 0

    def feed(
        self,
        tokens: Sequence[int],
        span: tuple[int, int],
        images: Sequence[PromptImage],
        features: Features | None,
        caches: Caches,
    ) -> mx.array:
        """Feed tokens[start:end] of a prompt; return their logits, (1, end - start, vocabulary).

        span: (start, end); the caches hold all tokens before start. features: those of the only image in the
            span; None without one.
        """
        start, end = span
        part = np.array(tokens[start:end])
        numbers = np.full(len(part), -1)
        for number, image in enumerate(images):
            numbers[max(0, image.start - start) : max(0, image.end - start)] = number
        at = np.flatnonzero((numbers >= 0) & (part == self.tower.placeholder_id))
        fed, given = mx.array(part)[None], {}
        with ExitStack() as changed:
            if self._axes is not None:
                places = find_places(images, self.tower.positions, start, end)
                changed.enter_context(rope_at(places, self._axes))
            if len(at):
                assert features is not None
                before = tokens[images[numbers[at[0]]].start : start]
                first = before.count(self.tower.placeholder_id)
                some, places_of = slice(first, first + len(at)), mx.array(at)
                given["input_embeddings"] = self._merge(fed, places_of, features.states[some])
                if self._is_gemma4:
                    fed[0, places_of] = int(self._model.args.text_config.get("pad_token_id") or 0)
                deep = [one[some] for one in features.deep]
                changed.enter_context(features_behind(self._layers, places_of, deep))
                if self.tower.sees_whole_image:
                    changed.enter_context(images_seen_whole(caches, numbers, self._is_gemma4))
            logits: mx.array = self._model(fed, cache=caches, **given)
        return logits

    def _merge(self, fed: mx.array, at: mx.array, states: mx.array) -> mx.array:
        """Return tokens' embeddings, with features for placeholders. The caller may change the array."""
        embeddings: mx.array = self._embed(fed)
        if self._root:
            # In float32 Gemma 4's root is exact; Gemma 3's is always rounded.
            rounded = mx.array(self._root, embeddings.dtype if self._is_gemma4 else mx.bfloat16)
            states = states / rounded.astype(mx.float32)
        embeddings[0, at] = states.astype(embeddings.dtype)
        return embeddings

    def working_bytes(self, images: Sequence[PromptImage], num_computed: int) -> int:
        """Return an upper bound of the bytes that encoding a prompt's remaining images needs at once."""
        left = (image.grid for image in images if image.end > num_computed)
        return max(map(self.tower.forecast_bytes, left), default=0)


class Looking:
    """The images of one prompt, each encoded when prefill reaches it.

    stages_left: the stages of image encoding before the prompt's next token can be fed: their kinds and
        remaining units of work.
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
        """The delta of tokens after all images: position minus index."""
        return self._sight.delta(self._images)

    @property
    def num_left(self) -> int:
        """Units of work in stages_left."""
        return sum(units for _, units in self.stages_left)

    @property
    def least_units(self) -> int:
        """The minimum units of work of the next slice; 0 if none is left."""
        if not self.stages_left:
            return 0
        return min(self._least_units[-len(self.stages_left)], self.stages_left[0][1])

    def look_at(self, num_computed: int) -> None:
        """Begin to encode the image of the token after num_computed, if it belongs to one."""
        image = next((one for one in self._images if one.start <= num_computed < one.end), None)
        if image is None or image is self._image:
            return
        self._image, self._features = image, self._sight.kept.take(image.key)
        if self._features is None:
            self._slices = self._sight.tower.slices(image, self._portion)
            self.stages_left = self._stages_of(image)
            self._least_units = [one.least_units for one in self._sight.tower.stages(image.grid)]

    def left(self, num_computed: int) -> Iterator[tuple[str, int]]:
        """Yield the remaining stages of all images not yet fed in full. See stages_left."""
        for image in self._images:
            if image is self._image:
                yield from self.stages_left
            elif image.end > num_computed and image.key not in self._sight.kept:
                yield from self._stages_of(image)

    def _stages_of(self, image: PromptImage) -> list[tuple[str, int]]:
        return [(one.kind, one.num_units) for one in self._sight.tower.stages(image.grid)]

    def advance(self, most: int) -> tuple[str, int, Sequence[mx.array]]:
        """Do the next slice of encoding, of up to `most` units but at least one row.

        Returns its kind, its units, and its lazy arrays.
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
        """Return the end of a chunk [start, end): see chunk_end(). It stops before images not yet encoded."""
        if self._sight.tower.sees_whole_image:
            end = chunk_end(self._images, start, end)
        unseen = (one.start for one in self._images if one.start >= start and one is not self._image)
        return min([end, *unseen])

    def feed(self, tokens: Sequence[int], start: int, end: int, caches: Caches) -> mx.array:
        """Feed tokens[start:end]; return their logits, (1, end - start, vocabulary)."""
        image = self._image
        logits = self._sight.feed(tokens, (start, end), self._images, self._features, caches)
        if image and self._features and image.end <= end:
            self._sight.kept.put(image.key, self._features)
            self._features = None
        return logits


def _num_bytes(features: Features) -> int:
    return sum(array.nbytes for array in (features.states, *features.deep))


def _finish(slices: Slices) -> Features:
    """Return the features from a tower's last slice."""
    try:
        next(slices)
    except StopIteration as end:
        features: Features = end.value
        return features
    raise RuntimeError("a tower has more slices than it says")


log = logging.getLogger("reprise.engine")


def find_tower(config: Config, folder: Path, processor: Config) -> Tower | None:
    """Return a model's tower, weights not read yet; None if the model takes no images here.

    processor: the image processor's settings in its folder; empty if there are none.
    A vision model that lacks a part of its tower is served as a text model, which is logged.
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
