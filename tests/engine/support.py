"""Tiny random models that run mlx-lm's own code, and the plain loop that the engine must equal."""

import functools
import hashlib
import queue
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_tokenizer

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.engine import Engine
from reprise.engine.interface.events import Delta, Event, Failed, Finished
from reprise.engine.interface.request import GenerationRequest, Sampling
from reprise.engine.model.capabilities import Findings
from reprise.engine.model.loading import LoadedModel, describe
from reprise.engine.sampling.sampler import noise_key
from reprise.engine.text.tokenizer import Tokenizer
from tests import tiny_models
from tests.tiny_models import tiny_config

VOCAB_SIZE = 4096
NAMES = (
    "llama",
    "qwen3",
    "gemma3_text",
    "mamba2",
    # Sliding windows with attention sinks, and a mixture of experts.
    "gpt_oss",
    # Recurrent layers (gated delta rule), full attention, and a mixture of experts.
    "qwen3_next",
    # Short convolutions and full attention.
    "lfm2",
    # Mamba 2 and full attention in a list of caches per layer.
    "falcon_h1",
    # Latent attention (MLA), whose keys are values too, and a mixture of experts.
    "deepseek_v3",
    # The same, and an index that chooses the tokens to attend to, in a list of caches per layer.
    "deepseek_v32",
    # Latent attention and gated linear attention.
    "bailing_hybrid",
    # Chunked attention, and full attention in every fourth layer.
    "llama4",
    # Recurrent state with a sliding window, and with full attention, in a list of caches per layer.
    "baichuan_m1",
)
SIZES = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCAB_SIZE),
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def config_of(name: str) -> dict[str, Any]:
    """Return the configuration of a tiny random model."""
    return tiny_config(name, **SIZES) | {"max_position_embeddings": 1024}


CONFIGS = {name: config_of(name) for name in NAMES}
FINDINGS: dict[str, Findings] = defaultdict(Findings)
"""What engines of these tests have found out about each random model, so that it is tried once."""


def make_model(name: str, dtype: mx.Dtype = mx.float32, **changes: Any) -> Any:
    """Make a tiny random model.

    name: the architecture. changes: entries of its configuration to replace.
    """
    return tiny_models.make_model(tiny_config(name, **(SIZES | changes)), dtype)


@functools.cache
def make_tokenizer() -> Tokenizer:
    """Load the bundled model's tokenizer."""
    return Tokenizer(load_tokenizer(Path(BUNDLED_MODEL)), VOCAB_SIZE)


def make_loaded(name: str, wrap: Callable[[Any], Any] | None = None) -> LoadedModel:
    """Make a random model with the bundled tokenizer. wrap: may replace the model by a wrapper."""
    model = make_model(name)
    info = describe(model, config_of(name), name, VOCAB_SIZE, None, 0.0)
    if wrap:
        return LoadedModel(wrap(model), make_tokenizer(), info)
    return LoadedModel(model, make_tokenizer(), info, FINDINGS[name])


class Answer:
    """A sink that collects one sequence's events, from any thread, and can wait for the terminal one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._last: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.on_delta: Callable[[], None] = lambda: None

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        if event.is_terminal:
            self._last.put(event)
        else:
            self.on_delta()

    def end(self) -> Event:
        """Wait for the terminal event. Fails if there was more than one, or any event after it."""
        last = self._last.get(timeout=180)
        assert [e.is_terminal for e in self.events].count(True) == 1
        assert self.events[-1] is last
        return last

    def finished(self) -> Finished:
        """Wait for the terminal event, which must be Finished."""
        last = self.end()
        assert isinstance(last, Finished), last
        return last

    def failed(self) -> Failed:
        """Wait for the terminal event, which must be Failed."""
        last = self.end()
        assert isinstance(last, Failed), last
        return last

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(e.text for e in self.events if isinstance(e, Delta))


def ask(engine: Engine, request: GenerationRequest) -> Answer:
    """Submit a request; return the Answer that collects its events."""
    answer = Answer()
    engine.submit(request, answer)
    return answer


def request(
    prompt: Sequence[int], max_tokens: int = 24, stop: tuple[str, ...] = (), name: str = "r", **sampling: Any
) -> GenerationRequest:
    """Make a request, greedy unless sampling says otherwise. name: its id."""
    settings = {"seed": 1, "temperature": 0.0} | sampling
    return GenerationRequest(name, tuple(prompt), max_tokens, Sampling(**settings), stop)


def oracle(loaded: LoadedModel, asked: GenerationRequest) -> list[int]:
    """Return the answer's tokens by the plain, unbatched, unpipelined loop that the engine must equal.

    It shares only noise_key() with the engine, and has no filters, penalties or stop strings. The same
    question to the same weights is answered once, unless the model is a test's own.
    """
    args = getattr(loaded.model, "args", None)
    if args is None or not type(loaded.model).__module__.startswith("mlx_lm."):
        return _answer(loaded, asked)
    weights = hashlib.sha256()
    for name, array in tree_flatten(loaded.model.parameters()):
        weights.update(f"{name} {array.shape} {array.dtype}".encode())
        weights.update(np.ascontiguousarray(np.array(array.view(mx.uint8))))
    model = type(loaded.model), repr(args), weights.digest(), loaded.tokenizer.eos_ids
    question = *model, asked.prompt, asked.max_tokens, asked.sampling, asked.stop_tokens
    if question not in ANSWERS:
        ANSWERS[question] = _answer(loaded, asked)
    return list(ANSWERS[question])


ANSWERS: dict[Any, list[int]] = {}
"""What oracle() has answered in this process."""


def _answer(loaded: LoadedModel, asked: GenerationRequest) -> list[int]:
    sampling, eos_ids = asked.sampling, loaded.tokenizer.eos_ids
    tokens, caches = list(asked.prompt), make_prompt_cache(loaded.model)
    fed = tokens
    while len(tokens) - len(asked.prompt) < asked.max_tokens:
        logits = loaded.model(mx.array(fed)[None], cache=caches)[0, -1].astype(mx.float32)
        for token, bias in sampling.logit_bias:
            logits[token] += bias
        is_early = len(tokens) - len(asked.prompt) < sampling.min_tokens
        for token in range(len(logits)) if sampling.allowed else (*eos_ids, *asked.stop_tokens):
            is_end = token in asked.stop_tokens or token in eos_ids
            never = token in eos_ids and sampling.ignores_eos
            if never or (is_early and is_end) or (sampling.allowed and token not in sampling.allowed):
                logits[token] = -mx.inf
        if sampling.temperature > 0:
            key = mx.array(noise_key(sampling.seed, len(tokens)), mx.uint32)
            logits = logits / sampling.temperature + mx.random.gumbel(logits.shape, key=key)
        fed = [int(mx.argmax(logits).item())]
        tokens += fed
        if fed[0] in eos_ids or fed[0] in asked.stop_tokens:
            break
    return tokens[len(asked.prompt) :]


def wait_until(condition: Callable[[], bool], within_s: float = 240) -> None:
    """Wait until a condition is true. Fails after within_s seconds."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not become true within {within_s} s"
        time.sleep(0.02)


def prompt_of(length: int, start: int = 0) -> list[int]:
    """Make a prompt of that length; another start gives other token ids."""
    return [5 + (start * 7919 + i * i * 31 + i * 17) % (VOCAB_SIZE - 5) for i in range(length)]
