"""`reprise bench prefill`: measure prefill by chunk size.

Compute a prompt of random tokens in chunks of one size after another, each waited for; of several rounds the
fastest counts. mlx-lm uses chunks of 2,048. The prompt may be longer than the model's context.
"""

import argparse
from random import Random
from time import perf_counter
from typing import Any

import mlx.core as mx

from bench import options
from bench.costs import measure_all
from bench.options import Flag
from bench.tables import Column
from config.model_settings import BUNDLED_MODEL
from engine.kv_cache.rows import evaluate, make_caches
from engine.model.loading import load_model

COLUMNS = [
    Column("chunk", "chunk"), Column("tokens_per_s", "tokens/s", "0"),
    Column("longest_ms", "longest, ms", "0"),
]  # fmt: skip
FLAGS = (
    *options.shared(model=BUNDLED_MODEL, rounds=2, json=None, csv=None),
    Flag("--prompt-tokens", options.count, "N", 16_000, "Length of the prompt."),
    Flag("--chunks", options.levels, "N,M", (64, 128, 256, 512, 1024, 2048, 4096), "Sizes, in tokens."),
)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the files, and return the exit status."""
    loaded = load_model(str(arguments.model), arguments.model.name, None)
    prompt = Random(1).choices(range(loaded.info.vocab_size), k=arguments.prompt_tokens)

    def measure(chunk: int) -> dict[str, float]:
        seconds = min((time_chunks(loaded.model, prompt, chunk) for _ in range(arguments.rounds)), key=sum)
        return {"tokens_per_s": len(prompt) / sum(seconds), "longest_ms": 1000 * max(seconds)}

    notes = [f"a prompt of {len(prompt)} tokens, {arguments.model.name}"]
    return measure_all(arguments, "prefill", measure, COLUMNS, notes, loaded.info, chunk=arguments.chunks)


def time_chunks(model: Any, prompt: list[int], chunk: int) -> list[float]:
    """Compute a prompt in chunks of one size, the last perhaps shorter; return the seconds of each."""
    caches = make_caches(model)
    seconds = []
    for start in range(0, len(prompt), chunk):
        before = perf_counter()
        model(mx.array(prompt[start : start + chunk])[None], cache=caches)
        evaluate(caches)
        seconds.append(perf_counter() - before)
    mx.clear_cache()
    return seconds
