"""Feed a language model of mlx-lm the tokens of a prompt, with features where its images are."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import mlx.core as mx
import numpy as np

from reprise.engine.interface.images import PromptImage
from reprise.engine.kv_cache.per_row import Caches
from reprise.engine.vision.language.deepstack import features_behind
from reprise.engine.vision.language.mrope import find_axes, rope_at
from reprise.engine.vision.language.whole_images import images_seen_whole
from reprise.engine.vision.positions import find_delta, find_places
from reprise.engine.vision.tower import Features, Tower

SCALED = ("gemma3", "gemma3n", "gemma4")
"""Model types that multiply all that they are fed by the rounded root of the hidden size, features too."""


class Language:
    """The language model of a model that sees images. tower: the same model's."""

    def __init__(self, model: Any, tower: Tower) -> None:
        self._model, self._tower = model, tower
        body = model.language_model.model
        self._embed, self._layers = body.embed_tokens, body.layers
        is_scaled = model.model_type in SCALED
        self._root = model.args.text_config["hidden_size"] ** 0.5 if is_scaled else None
        self._axes = find_axes(model.args.text_config)
        # Gemma 4 reads ids in every layer, that of padding for an image, and only its windows see one whole.
        self._is_gemma4 = model.model_type == "gemma4"

    @property
    def has_axes(self) -> bool:
        """Whether places have three axes, and text after images a delta."""
        return self._axes is not None

    def delta(self, images: Sequence[PromptImage]) -> int:
        """Return the delta of tokens after all images: their place less their index, never above 0."""
        return find_delta(images, self._tower.positions) if self.has_axes else 0

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
        at = np.flatnonzero((numbers >= 0) & (part == self._tower.placeholder_id))
        fed, given = mx.array(part)[None], {}
        with ExitStack() as changed:
            if self._axes is not None:
                places = find_places(images, self._tower.positions, start, end)
                changed.enter_context(rope_at(places, self._axes))
            if len(at):
                assert features is not None
                before = tokens[images[numbers[at[0]]].start : start]
                first = before.count(self._tower.placeholder_id)
                some, places_of = slice(first, first + len(at)), mx.array(at)
                given["input_embeddings"] = self._merge(fed, places_of, features.states[some])
                if self._is_gemma4:
                    fed[0, places_of] = int(self._model.args.text_config.get("pad_token_id") or 0)
                deep = [one[some] for one in features.deep]
                changed.enter_context(features_behind(self._layers, places_of, deep))
                if self._tower.sees_whole_image:
                    changed.enter_context(images_seen_whole(caches, numbers, self._is_gemma4))
            logits: mx.array = self._model(fed, cache=caches, **given)
        return logits

    def _merge(self, fed: mx.array, at: mx.array, states: mx.array) -> mx.array:
        """Return the embeddings of tokens, features in place of placeholders'. The caller may change it."""
        embeddings: mx.array = self._embed(fed)
        if self._root:
            # In float32 Gemma 4's root is exact; Gemma 3's is always rounded.
            rounded = mx.array(self._root, embeddings.dtype if self._is_gemma4 else mx.bfloat16)
            states = states / rounded.astype(mx.float32)
        embeddings[0, at] = states.astype(embeddings.dtype)
        return embeddings
