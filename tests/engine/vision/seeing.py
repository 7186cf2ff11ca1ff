"""Tiny random models that see, with towers of random features, and the plain loop that the engine must equal.

The plain loop keeps no caches and shares nothing with the engine: it computes the whole text again for every
token, with rope, masks and features written out as transformers has them.
"""

import functools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np

from reprise.engine.interface.images import PromptImage, VisionInfo, image_key
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.model.loading import LoadedModel, describe
from reprise.engine.sampling.sampler import noise_key
from reprise.engine.vision.image_features import Sight
from reprise.engine.vision.layers import WORK, Portion, Stage
from reprise.engine.vision.tower import Features
from tests import tiny_models
from tests.engine.support import FINDINGS, SIZES, VOCAB_SIZE, make_tokenizer, request
from tests.tiny_models import tiny_config

PLACEHOLDER, BREAK, MERGE = 4000, 4001, 2

INTERLEAVED = {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True}
PARTIAL = {
    "type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25,
    "mrope_section": [2, 1, 1], "mrope_interleaved": True,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3_vl": {"num_hidden_layers": 3, "rope_scaling": INTERLEAVED},
    "qwen3_5": {"num_hidden_layers": 3, "rope_parameters": PARTIAL},
    "gemma3": {"num_hidden_layers": 3},
    "mistral3": {},
    "pixtral": {},
    "lfm2_vl": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]},
    "qwen3_vl_moe": {"num_hidden_layers": 3, "rope_scaling": INTERLEAVED},
    "qwen3_5_moe": {"num_hidden_layers": 3, "rope_parameters": PARTIAL},
}
NUM_DEEP = {"qwen3_vl": 2, "qwen3_vl_moe": 2}


@dataclass(frozen=True)
class Picture:
    """A picture of random pixels. seed: another one gives another picture. rows, columns: of tokens."""

    seed: int
    rows: int = 2
    columns: int = 3

    @property
    def grid(self) -> tuple[int, int]:
        return self.rows * MERGE, self.columns * MERGE

    def image(self, start: int, length: int) -> PromptImage:
        pixels = np.random.default_rng(self.seed).bytes(self.rows * self.columns)
        shape = self.rows * self.columns, 1
        return PromptImage(
            start, length, self.grid, pixels, shape, image_key(pixels, shape, self.grid, "random")
        )


@dataclass(frozen=True)
class Twin(Picture):
    """One of two small pictures, seeds of TWINS, that have the same key; found by a birthday search."""

    rows: int = 1
    columns: int = 1

    def image(self, start: int, length: int) -> PromptImage:
        pixels, shape = self.seed.to_bytes(4, "little"), (1, 1, 4)
        return PromptImage(
            start, length, self.grid, pixels, shape, image_key(pixels, shape, self.grid, "random")
        )


TWINS = Twin(40625), Twin(97052)


def looked_at(
    *parts: Sequence[int] | Picture, name: str = "r", breaks: bool = False, **options: Any
) -> GenerationRequest:
    """Make a request of runs of tokens and pictures. breaks: whether rows of a picture end with a token."""
    prompt: list[int] = []
    images: list[PromptImage] = []
    for part in parts:
        if isinstance(part, Picture):
            between = [BREAK] if breaks else []
            row = [PLACEHOLDER] * part.columns
            tokens = [*row, *(token for _ in range(part.rows - 1) for token in (*between, *row))]
            images.append(part.image(len(prompt), len(tokens)))
            prompt += tokens
        else:
            prompt += part
    return replace(request(prompt, name=name, **options), images=tuple(images))


class RandomTower:
    """A tower whose features are random numbers, other ones for every picture.

    num_slices: rows of its work, each a unit unless `work` is changed. num_deep: features for so many layers.
    """

    placeholder_id, nbytes = PLACEHOLDER, 0

    def __init__(
        self, hidden: int, num_deep: int = 0, *, has_axes: bool = False, sees_whole_image: bool = False
    ) -> None:
        self.hidden, self.num_deep, self.has_axes = hidden, num_deep, has_axes
        self.sees_whole_image = sees_whole_image
        self.num_slices, self.work = 3, WORK
        self.num_done = 0

    def positions(self, grid: tuple[int, int]) -> np.ndarray | None:
        if not self.has_axes:
            return None
        rows, columns = grid[0] // MERGE, grid[1] // MERGE
        each = np.indices((rows, columns), np.int32).reshape(2, -1)
        return np.concatenate([np.zeros((1, rows * columns), np.int32), each])

    def forecast_bytes(self, grid: tuple[int, int]) -> int:
        return 8 * grid[0] * grid[1] * self.hidden * (1 + self.num_deep)

    def features(self, image: PromptImage) -> Features:
        """The features, at once."""
        num_tokens = image.grid[0] * image.grid[1] // MERGE**2
        drawn = mx.random.normal(
            (1 + self.num_deep, num_tokens, self.hidden),
            key=mx.random.key(int.from_bytes(image.key[:7], "little")),
        )
        # Large, as states are after a layer.
        return Features(drawn[0], tuple(50 * drawn[1:]))

    def stages(self, grid: tuple[int, int]) -> list[Stage]:
        del grid
        return [Stage("look", self.num_slices, self.work)]

    def slices(
        self, image: PromptImage, portion: Portion | None = None
    ) -> Generator[Sequence[mx.array], None, Features]:
        features = self.features(image)

        def compute(start: int, end: int) -> Sequence[mx.array]:
            self.num_done += end - start
            return (features.states, *features.deep)

        (stage,) = self.stages(image.grid)
        yield from stage.run(portion or Portion(), compute)
        return features

    def arrays(self) -> list[mx.array]:
        return []


def make_seeing(name: str, **changes: Any) -> LoadedModel:
    """Make a random model that sees, with the bundled tokenizer."""
    config = tiny_config(name, **(SIZES | CONFIGS[name] | changes))
    model = tiny_models.make_model(config)
    tower = RandomTower(
        config["text_config"]["hidden_size"],
        NUM_DEEP.get(name, 0),
        has_axes=name.startswith("qwen"),
        sees_whole_image=name == "gemma3",
    )
    vision = VisionInfo(name, PLACEHOLDER, 1, MERGE, 1, 64, 6)
    info = describe(model, config | {"max_position_embeddings": 1024}, name, VOCAB_SIZE, None, 0.0)
    return LoadedModel(
        model, make_tokenizer(), replace(info, vision=vision), FINDINGS[name], sight=Sight(model, tower)
    )


@functools.cache
def seeing(name: str) -> LoadedModel:
    """Return such a model, made once for all tests. What is changed in a copy of it stays there."""
    return make_seeing(name)


@functools.cache
def expected(name: str, asked: GenerationRequest) -> list[int]:
    """Return the answer's tokens by the plain loop, computed once."""
    return plain(seeing(name), asked)


class Turned:
    """Rope by places on three axes, written out with cosines and sines."""

    def __init__(self, places: np.ndarray, rope: Any, axes: Sequence[int] | None) -> None:
        dims, base = rope.dims, rope.base
        frequencies = base ** (-np.arange(0, dims, 2, dtype=np.float32) / dims)
        by_axis = places[:, :, None] * frequencies
        chosen = by_axis[0] if axes is None else np.stack([by_axis[a][:, j] for j, a in enumerate(axes)], 1)
        self.dims = dims
        self.cos, self.sin = mx.array(np.cos(chosen)), mx.array(np.sin(chosen))

    def __call__(self, x: mx.array, offset: int = 0) -> mx.array:
        assert offset == 0
        turned, rest = x[..., : self.dims], x[..., self.dims :]
        one, other = mx.split(turned, 2, axis=-1)
        cos, sin = self.cos, self.sin
        return mx.concatenate([one * cos - other * sin, other * cos + one * sin, rest], axis=-1)


AXES = {6: [0, 1, 2] * 5 + [0], 2: [0, 1, 2, 0]}
"""The axis of each frequency by the first section, written out."""


def three_axes(asked: GenerationRequest, num_tokens: int) -> np.ndarray:
    """Place text one by one, and an image's tokens by row and column: (3, num_tokens)."""
    places, at, now = np.zeros((3, num_tokens), np.int64), 0, 0
    starts = {image.start: image for image in asked.images}
    while at < num_tokens:
        if (image := starts.get(at)) is None:
            places[:, at] = now
            at, now = at + 1, now + 1
            continue
        rows, columns = image.grid[0] // MERGE, image.grid[1] // MERGE
        for row in range(rows):
            for column in range(columns):
                places[:, at] = now, now + row, now + column
                at += 1
        now += max(rows, columns)
    return places


def plain(loaded: LoadedModel, asked: GenerationRequest) -> list[int]:
    """Return the answer's tokens by the plain loop, which computes everything again for each."""
    tokens, sampling = list(asked.prompt), asked.sampling
    while len(tokens) - len(asked.prompt) < asked.max_tokens:
        logits = plain_logits(loaded, asked, tokens)
        if sampling.temperature > 0:
            key = mx.array(noise_key(sampling.seed, len(tokens)), mx.uint32)
            logits = logits / sampling.temperature + mx.random.gumbel(logits.shape, key=key)
        tokens.append(int(mx.argmax(logits).item()))
        if tokens[-1] in loaded.tokenizer.eos_ids:
            break
    return tokens[len(asked.prompt) :]


def plain_logits(loaded: LoadedModel, asked: GenerationRequest, tokens: list[int]) -> mx.array:
    """Compute the logits after all tokens, without caches."""
    assert loaded.sight is not None
    tower: Any = loaded.sight.tower
    language = loaded.model.language_model
    body, hidden = language.model, tower.hidden
    numbers = np.full(len(tokens), -1)
    states = body.embed_tokens(mx.array(tokens)[None])
    is_gemma = loaded.model.model_type == "gemma3"
    if is_gemma:
        states = states * mx.array(hidden**0.5, mx.bfloat16).astype(states.dtype)
    deep = [mx.zeros_like(states) for _ in range(tower.num_deep)]
    for number, image in enumerate(asked.images):
        features = tower.features(image)
        numbers[image.start : image.end] = number
        at = [i for i in range(image.start, image.end) if tokens[i] == PLACEHOLDER]
        states[0, mx.array(at)] = features.states
        for added, each in zip(deep, features.deep, strict=True):
            added[0, mx.array(at)] = each
    if not (tower.has_axes or is_gemma):
        logits: mx.array = loaded.model(mx.array(tokens)[None], input_embeddings=states)
        return logits[0, -1].astype(mx.float32)
    order = np.arange(len(tokens))
    causal = order[:, None] >= order
    same = (numbers[:, None] == numbers) & (numbers >= 0)
    attentions = [layer.self_attn for layer in body.layers if "self_attn" in layer]
    ropes = [attention.rope for attention in attentions]
    if tower.has_axes:
        text = loaded.model.args.text_config
        sections = (text.get("rope_parameters") or text["rope_scaling"])["mrope_section"]
        places = three_axes(asked, len(tokens))
        for attention in attentions:
            attention.rope = Turned(places, attention.rope, AXES[sections[0]])
    try:
        for number, layer in enumerate(body.layers):
            mask = mx.array(causal)
            if is_gemma:
                window = body.window_size
                is_global = number % body.sliding_window_pattern == body.sliding_window_pattern - 1
                seen = causal if is_global else causal & (order[:, None] - order < window)
                mask = mx.array(seen | same)
            states = layer(states, None if getattr(layer, "is_linear", False) else mask, None)
            if number < len(deep):
                states = states + deep[number]
    finally:
        for attention, rope in zip(attentions, ropes, strict=True):
            attention.rope = rope
    states = body.norm(states)[0, -1:]
    if getattr(language, "tie_word_embeddings", False) or "lm_head" not in language:
        return body.embed_tokens.as_linear(states)[0].astype(mx.float32)
    return language.lm_head(states)[0].astype(mx.float32)
