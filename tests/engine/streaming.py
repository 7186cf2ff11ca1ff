"""Random WeDLM models, requests that stream, and the paper's algorithm for one of them without caches."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from bench.architectures import tiny_models
from bench.architectures.tiny_models import tiny_config
from engine.model import wedlm
from engine.model.loading import LoadedModel, describe
from engine.request import GenerationRequest, Streaming
from engine.sampling.sampler import noise_key
from tests.engine.support import SIZES, VOCAB_SIZE, make_tokenizer, request

MASK = 4000
FAMILIES = {family: layers for layers, family in wedlm.FAMILIES.items()}


@functools.cache
def make_streaming_model(family: str = "llama") -> LoadedModel:
    """Make a random WeDLM model with layers of that family."""
    attention_bias, qk_norm = FAMILIES[family]
    config = tiny_config(family, **SIZES) | {"attention_bias": attention_bias, "qk_norm": qk_norm}
    config |= {"model_type": "wedlm", "mask_token_id": MASK}
    model = tiny_models.make_model(config)
    info = describe(model, config, "wedlm", VOCAB_SIZE, None, 0.0)
    return LoadedModel(model, make_tokenizer(), info)


def streamed(asked: GenerationRequest, **settings: Any) -> GenerationRequest:
    """Let a request stream."""
    return replace(asked, streaming=Streaming(MASK, **settings))


def ask_for(prompt: Sequence[int], max_tokens: int = 24, **more: Any) -> GenerationRequest:
    """Make a request that streams. more: of request(), and fields of Streaming."""
    of_window = {name: more.pop(name) for name in list(more) if name in Streaming.__dataclass_fields__}
    return streamed(request(prompt, max_tokens, **more), **of_window)


def reference(loaded: LoadedModel, asked: GenerationRequest) -> tuple[list[int], int]:
    """Return the answer by the paper's algorithm 1, with tokens moved, and the number of forward passes.

    Every forward pass computes the whole text: what is settled, what is filled, then masks, under a causal
    mask, each token with its own position. It shares only noise_key() with the engine.
    """
    how, sampling, ends = asked.streaming, asked.sampling, loaded.tokenizer.eos_ids
    assert how
    text, window, num_forwards = list(asked.prompt), [None] * how.window_size, 0
    while True:
        filled = [at for at, token in enumerate(window) if token is not None]
        holes = [at for at, token in enumerate(window) if token is None]
        places = [*range(len(text)), *(len(text) + at for at in (*filled, *holes))]
        fed = [*text, *(window[at] for at in filled), *(MASK for _ in holes)]
        logits, num_forwards = at_places(loaded.model, fed, places), num_forwards + 1
        drawn = {}
        for at, line in zip(holes, logits[len(text) + len(filled) :], strict=True):
            if how.has_anchor and at == 0:
                line = logits[len(text) - 1]
            odds = mx.softmax(line)
            entropy = -mx.sum(mx.where(odds > 0, odds * mx.log(odds), 0.0)).item()
            if sampling.temperature:
                key = mx.array(noise_key(sampling.seed, len(text) + at), mx.uint32)
                line = line / sampling.temperature + mx.random.gumbel(line.shape, key=key)
            drawn[at] = entropy + how.pos_penalty_factor * (at - holes[0]), mx.argmax(line).item()
        limit = -1.0 if how.entropy_threshold is None else how.entropy_threshold
        sure = [at for at in holes if drawn[at][0] < limit or (how.has_anchor and at == 0)]
        for at in sure or [min(holes, key=lambda at: drawn[at][0])]:
            window[at] = drawn[at][1]
        while window[0] is not None:
            text.append(window.pop(0))
            window.append(None)
            if text[-1] in ends or len(text) == len(asked.prompt) + asked.max_tokens:
                return text[len(asked.prompt) :], num_forwards


def at_places(model: Any, tokens: Sequence[int], places: Sequence[int]) -> mx.array:
    """Return logits (tokens, vocabulary) of a text whose tokens are at these positions, in a causal forward."""
    at = mx.array(list(places))
    ropes = [layer.self_attn.rope for layer in model.layers]
    for layer, rope in zip(model.layers, ropes, strict=True):
        # One row for each token: only rows have positions of their own.
        layer.self_attn.rope = lambda x, rope=rope: rope(x.transpose(2, 1, 0, 3), offset=at).transpose(2, 1, 0, 3)
    try:
        return model(mx.array([tokens]))[0]
    finally:
        for layer, rope in zip(model.layers, ropes, strict=True):
            layer.self_attn.rope = rope
