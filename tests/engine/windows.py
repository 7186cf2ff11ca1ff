"""Random WeDLM models, requests for windowed decoding, and the paper's algorithm for one, without caches."""

import functools
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.interface.request import GenerationRequest, WindowSettings
from reprise.engine.model import wedlm
from reprise.engine.model.loading import LoadedModel, describe
from reprise.engine.sampling.sampler import noise_key
from tests import tiny_models
from tests.engine.support import SIZES, VOCAB_SIZE, make_tokenizer, request
from tests.tiny_models import tiny_config

MASK = 4000
LAYERS = {family: layers for layers, family in wedlm.FAMILIES.items()}
SURE = 5.7
"""The random models are less uncertain than this, in nats, at about a third of all masks."""


def _config(family: str) -> dict[str, Any]:
    attention_bias, qk_norm = LAYERS[family]
    config = tiny_config(family, **SIZES) | {"attention_bias": attention_bias, "qk_norm": qk_norm}
    return config | {"model_type": "wedlm", "mask_token_id": MASK, "max_position_embeddings": 1024}


@functools.cache
def make_window_model(family: str = "llama") -> LoadedModel:
    """Make a random WeDLM model with layers of that family."""
    config = _config(family)
    model = tiny_models.make_model(config)
    info = describe(model, config, "wedlm", VOCAB_SIZE, None, 0.0)
    return LoadedModel(model, make_tokenizer(), info)


def write_window_model(folder: Path) -> None:
    """Write a random WeDLM model with the bundled model's tokenizer to an existing folder."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUNDLED_MODEL / name, folder)
    (folder / "config.json").write_text(json.dumps(_config("llama") | {"eos_token_id": 2}))
    weights = dict(tree_flatten(make_window_model().model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights)


def windowed(asked: GenerationRequest, **settings: Any) -> GenerationRequest:
    """Let a request be decoded in windows. settings: fields of WindowSettings."""
    return replace(asked, window_settings=WindowSettings(MASK, **({"entropy_threshold": SURE} | settings)))


def ask_for(prompt: Sequence[int], max_tokens: int = 24, **more: Any) -> GenerationRequest:
    """Make a request that is decoded in windows. more: of request(), and fields of WindowSettings."""
    of_window = {name: more.pop(name) for name in list(more) if name in WindowSettings.__dataclass_fields__}
    return windowed(request(prompt, max_tokens, **more), **of_window)


@dataclass
class Reference:
    """What the paper's algorithm does. filled_in: the indices in the answer, in the order of filling."""

    answer: list[int]
    num_forwards: int = 0
    filled_in: list[int] = field(default_factory=list)
    logprobs: dict[int, float] = field(default_factory=dict)


def reference(loaded: LoadedModel, asked: GenerationRequest) -> Reference:
    """Answer by the paper's algorithm 1, with tokens that change places.

    Every forward pass computes the whole text: what is settled, what is filled, then masks, under a causal
    mask, each token with its own position. It shares only noise_key() with the engine.
    """
    how, sampling = asked.window_settings, asked.sampling
    assert how
    ends = loaded.tokenizer.eos_ids.union(asked.stop_tokens)
    start, text, found = len(asked.prompt), list(asked.prompt), Reference([])
    window: list[int | None] = [None] * how.window_size
    while True:
        filled = [at for at, token in enumerate(window) if token is not None]
        holes = [at for at, token in enumerate(window) if token is None]
        places = [*range(len(text)), *(len(text) + at for at in (*filled, *holes))]
        fed = [*text, *(window[at] for at in filled), *(MASK for _ in holes)]
        logits = logits_at(loaded.model, fed, places)
        found.num_forwards += 1
        drawn, costs = {}, {}
        for at, of_mask in zip(holes, logits[-len(holes) :], strict=True):
            line = logits[len(text) - 1] if how.has_anchor and at == 0 else of_mask
            odds = line - mx.logsumexp(line)
            entropy = -mx.sum(mx.where(mx.isinf(odds), 0.0, mx.exp(odds) * odds)).item()
            costs[at] = entropy + how.pos_penalty_factor * (at - holes[0])
            for token in (*text[start:], *(window[left] for left in filled if left < at)):
                line = line - sampling.frequency_penalty * (mx.arange(VOCAB_SIZE) == token)
            if sampling.temperature:
                key = mx.array(noise_key(sampling.seed, len(text) + at), mx.uint32)
                line = line / sampling.temperature + mx.random.gumbel(line.shape, key=key)
            drawn[at] = mx.argmax(line).item()
            found.logprobs[len(text) + at - start] = odds[drawn[at]].item()
        limit = -1.0 if how.entropy_threshold is None else how.entropy_threshold
        sure = [at for at in holes if costs[at] < limit or (how.has_anchor and at == 0)]
        for at in sure or [min(holes, key=lambda at: costs[at])]:
            window[at] = drawn[at]
            found.filled_in.append(len(text) + at - start)
        while (settled := window[0]) is not None:
            text.append(settled)
            window = [*window[1:], None]
            if settled in ends or len(text) == start + asked.max_tokens:
                found.answer = text[start:]
                return found


def logits_at(model: Any, tokens: Sequence[int], places: Sequence[int]) -> mx.array:
    """Return logits, (tokens, vocabulary), of tokens at these positions under a causal mask."""
    at = mx.array(list(places))

    def move(rope: Any) -> Any:
        # A row for each token, as only rows have positions of their own.
        return lambda x: rope(x.transpose(2, 1, 0, 3), offset=at).transpose(2, 1, 0, 3)

    ropes = [layer.self_attn.rope for layer in model.layers]
    for layer, rope in zip(model.layers, ropes, strict=True):
        layer.self_attn.rope = move(rope)
    try:
        logits: mx.array = model(mx.array([tokens]))[0]
        return logits
    finally:
        for layer, rope in zip(model.layers, ropes, strict=True):
            layer.self_attn.rope = rope
