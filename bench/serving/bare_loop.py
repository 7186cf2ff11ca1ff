"""mlx_lm's own `stream_generate` as a peer, to compare with one stream of a server."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import mlx.core as mx
from mlx_lm import load, stream_generate

from reprise.bench.serving.servers import exit_on_sigterm
from reprise.bench.serving.traffic import Answer, Ask, by_read
from reprise.bench.workloads import Turn
from reprise.bench.workloads.chats import render_turn
from reprise.engine.text.tokenizer import Tokenizer

_loaded: dict[str, Any] = {}
"""The model that load_model() loaded in this process: arguments of stream_generate()."""


def start_loop(children: ExitStack, tokenizer: Tokenizer, max_tokens: int, *model: Any) -> Ask:
    """Start a process with mlx_lm's loop; return a function that answers turns greedily, one by one.

    children: the stack with which the process ends. model: arguments of load_model().
    The function raises BrokenProcessPool if the process has ended.
    """
    exit_on_sigterm()
    process = children.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
    process.submit(load_model, *model).result()

    def ask(turns: Sequence[Turn], streams: int = 1) -> list[Answer]:  # noqa: ARG001
        prompts = [render_turn(tokenizer, turn) for turn in turns]
        began = perf_counter()
        answers = []
        for prompt in prompts:
            started_s = perf_counter() - began
            ids, times = process.submit(generate, prompt, max_tokens).result()
            text = tokenizer.decode(ids[:-1] if ids[-1] in tokenizer.eos_ids else ids)
            arrivals = by_read(times, [1.0] * len(ids))
            answers.append(Answer(started_s, times[-1], len(ids), arrivals, text, len(prompt)))
        return answers

    return ask


def load_model(model: str, may_end: bool = True, draft_model: str | None = None) -> None:
    """Load a model, and a draft model for speculative generation. may_end: whether end tokens end answers."""
    _loaded.clear()
    _loaded["model"], _loaded["tokenizer"] = load(model)[:2]
    if draft_model:
        _loaded["draft_model"] = load(draft_model)[0]
    if not may_end:
        # Cheaper than a logits processor, which takes a concatenation and a scatter in every step.
        _loaded["tokenizer"].eos_token_ids = set()


def generate(prompt: Sequence[int], max_tokens: int) -> tuple[list[int], list[float]]:
    """Answer a prompt; return the answer's token ids, and the seconds from the call to each token."""
    start = perf_counter()
    responses = stream_generate(prompt=list(prompt), max_tokens=max_tokens, **_loaded)
    found = [(response.token, perf_counter() - start) for response in responses]
    # The loop leaves a step in flight; it must not count towards the next round.
    mx.synchronize()
    return [token for token, _ in found], [at for _, at in found]
