"""A model whose answers a test chooses, behind the real server: only the logits are made up."""

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx_lm.models.cache import KVCache, RotatingKVCache

from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.repetition import score_in_slices
from reprise.engine.engine import Engine
from reprise.engine.generating.setup import flat_costs
from reprise.engine.model.loading import LoadedModel, make_loader
from reprise.engine.pool.residency import Makers
from reprise.engine.speculative.proposers import DraftSources
from reprise.engine.text.tokenizer import Tokenizer
from reprise.server.app import create_app
from tests.server.served import served

ANSWER_BEGINS = "<|im_start|>assistant\n"
"""With what the bundled model's template ends a prompt."""
MODEL_BEGINS = "<|im_start|>model\n"
"""With what the Gemma-like templates of tests/engine/text/templates end it."""
NO_THOUGHT = "<think>\n\n</think>\n\n"
"""What templates add to it if the model is not to think."""
THOUGHT_BEGINS = "<think>\n"
"""What they may add if it is."""
CERTAIN = 100.0
"""Logit of the next token; all others have 0."""
WINDOW_TOKENS = 64


def recording(folder: Path, **more: Any) -> Settings:
    """Return settings that leave no file but the record of turns in the folder. more: other settings."""
    return Settings(keeps_costs=False, ngram_table_file=None, record=str(folder / "turns"), **more)


Script = Callable[[str], str]
"""Returns the answer to a prompt, which is text as the template rendered it."""


class ScriptedModel(nn.Module):
    """A model that continues every prompt with what a script says, then ends the answer.

    Its one layer keeps the tokens themselves as keys and values, so caches, prefixes and rollbacks are
    as real as with any model. It reads them on the host, so rows do not share a forward pass.

    has_window: add a layer with a sliding window, which must hold the last tokens at every step.
    """

    def __init__(
        self, tokenizer: Tokenizer, vocab_size: int, script: Script, has_window: bool = False
    ) -> None:
        super().__init__()
        self.weight = mx.zeros((16,))
        self._tokenizer, self._vocab_size, self._script = tokenizer, vocab_size, script
        self._has_window = has_window
        self._begins = [
            tokenizer.encode(begin + opened)
            for begin in (ANSWER_BEGINS, MODEL_BEGINS)
            for opened in ("", NO_THOUGHT, THOUGHT_BEGINS)
        ]
        self._end = min(tokenizer.eos_ids)
        self._answers: dict[tuple[int, ...], list[int]] = {}

    @property
    def layers(self) -> list[None]:
        return [None] * len(self.make_cache())

    def make_cache(self) -> list[Any]:
        return [KVCache(), *([RotatingKVCache(WINDOW_TOKENS)] if self._has_window else [])]

    def __call__(self, tokens: mx.array, cache: list[Any] | None = None) -> mx.array:
        rows, width = tokens.shape
        if rows > 1:
            raise ValueError("the tokens of one row are read at a time")
        keys = tokens.astype(mx.float32).reshape(1, 1, width, 1)
        new_keys = keys
        if cache:
            keys, _ = cache[0].update_and_fetch(keys, keys)
        if cache and self._has_window:
            window, _ = cache[1].update_and_fetch(new_keys, new_keys)
            seen = min(keys.shape[2], WINDOW_TOKENS)
            if not mx.array_equal(window[:, :, -seen:], keys[:, :, -seen:]).item():
                raise ValueError("the window does not hold the last tokens")
        held = np.array(keys[0, 0, :, 0]).astype(int).tolist()
        ids = mx.array(self._following(held, width))[None, :, None]
        return (mx.arange(self._vocab_size) == ids).astype(mx.float32) * CERTAIN

    def _following(self, held: list[int], width: int) -> list[int]:
        """Return the token after each of the last width tokens; the end where they leave the script."""
        starts = sorted(at for begins in self._begins for at in _ends_of(begins, held))
        following = []
        for end in range(len(held) - width + 1, len(held) + 1):
            start = starts[at - 1] if (at := bisect_right(starts, end)) else None
            answer = [] if start is None else self._answer(tuple(held[:start]))
            said = held[start:end]
            follows = len(said) < len(answer) and said == answer[: len(said)]
            following.append(answer[len(said)] if follows else self._end)
        return following

    def _answer(self, prompt: tuple[int, ...]) -> list[int]:
        if prompt not in self._answers:
            text = self._script(self._tokenizer.decode(prompt))
            self._answers[prompt] = [*self._tokenizer.encode(text), self._end]
        return self._answers[prompt]


def _ends_of(sought: list[int], held: list[int]) -> list[int]:
    """Return the positions after each occurrence of the sought tokens."""
    ends = np.flatnonzero(np.array(held) == sought[-1]) + 1
    return [end for end in ends.tolist() if held[max(0, end - len(sought)) : end] == sought]


@contextmanager
def serving_script(
    script: Script, settings: Settings, tokenizer: Tokenizer | None = None, has_window: bool = False
) -> Iterator[str]:
    """Serve a scripted model on a real port, by default with the bundled model's tokenizer and template."""

    def load(progress: Any) -> LoadedModel:
        loaded = make_loader(settings)(progress)
        used = tokenizer or loaded.tokenizer
        model = ScriptedModel(used, used.vocab_size, script, has_window)
        info = replace(loaded.info, num_layers=len(model.layers), vocab_size=used.vocab_size)
        return replace(loaded, model=model, tokenizer=used, info=info)

    def make_sources(vocabulary: str) -> DraftSources:
        return DraftSources(make_drafters(settings, vocabulary), score_in_slices)

    engine = Engine(settings, Makers(load, make_sources, costs=flat_costs(), waits_for_trials=True))
    engine.start()
    try:
        with served(create_app(engine, settings)) as url:
            yield url
    finally:
        engine.stop(drain_s=0)


def write_json(name: str, arguments: Mapping[str, Any]) -> str:
    """Write a call as the bundled model's template does, and as the generic format has it."""
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def count_shared(tokenizer: Tokenizer, lines: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return how many leading tokens each prompt shares with an earlier prompt and its answer.

    lines: what --record wrote.
    """
    texts = [line["prompt"] + line["output"] for line in lines]
    counts = []
    for number, line in enumerate(lines):
        shared = max((_num_shared(line["prompt"], text) for text in texts[:number]), default=0)
        counts.append(len(tokenizer.encode(line["prompt"][:shared])))
    return counts


def _num_shared(one: str, other: str) -> int:
    """Count the leading characters that both texts share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
