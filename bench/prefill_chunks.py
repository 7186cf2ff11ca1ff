"""Measure prefill by chunk size: tokens per second, and how long a decoding row waits for a chunk.

    python -m bench.prefill_chunks [--model DIR] [--prompt-tokens N] [--chunks N ...]

A prompt of random tokens is computed in chunks of one size after another, each waited for. mlx-lm uses 2,048.
Of several rounds the fastest counts. The context that the model was made for does not limit the prompt.
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import mlx.core as mx
from rich.console import Console
from rich.table import Table

from bench import options
from bench.machine import describe_machine
from config.settings import BUNDLED_MODEL
from engine.kv_cache.rows import evaluate, make_caches
from engine.model.loading import load_model

CHUNKS = (64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Prefill:
    """One prefill of a prompt. seconds: of each chunk."""

    num_tokens: int
    seconds: Sequence[float]

    @property
    def tokens_per_s(self) -> float:
        """Throughput over the whole prompt."""
        return self.num_tokens / sum(self.seconds)


def measure(model: Any, prompt: Sequence[int], chunk: int) -> Prefill:
    """Compute a prompt in chunks of one size; the last may be shorter."""
    caches = make_caches(model)
    seconds = []
    for start in range(0, len(prompt), chunk):
        before = perf_counter()
        model(mx.array(list(prompt[start : start + chunk]))[None], cache=caches)
        evaluate(caches)
        seconds.append(perf_counter() - before)
    mx.clear_cache()
    return Prefill(len(prompt), seconds)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.prefill_chunks", description=__doc__)
    add = parser.add_argument
    add("--model", type=options.model_folder, default=BUNDLED_MODEL, help="model folder")
    add("--prompt-tokens", type=options.count, default=16_000, help="length of the prompt")
    add("--chunks", type=options.count, nargs="+", default=CHUNKS, help="sizes, in tokens")
    add("--rounds", type=options.count, default=2, help="rounds over all sizes")
    given = parser.parse_args(arguments)
    loaded = load_model(str(given.model), given.model.name, None)
    rng = random.Random(1)
    prompt = [rng.randrange(loaded.info.vocab_size) for _ in range(given.prompt_tokens)]
    best: dict[int, Prefill] = {}
    for _ in range(given.rounds):
        for chunk in given.chunks:
            found = measure(loaded.model, prompt, chunk)
            if chunk not in best or found.tokens_per_s > best[chunk].tokens_per_s:
                best[chunk] = found
    table = Table(title=f"{given.prompt_tokens} prompt tokens, {given.model.name}")
    for heading in ("chunk", "tokens/s", "first chunk, ms", "longest, ms"):
        table.add_column(heading, justify="right")
    for chunk, found in best.items():
        milliseconds = [f"{seconds * 1000:.0f}" for seconds in (found.seconds[0], max(found.seconds))]
        table.add_row(str(chunk), f"{found.tokens_per_s:.0f}", *milliseconds)
    machine = describe_machine()
    console = Console()
    console.print(table)
    system, cores, load = machine["system"], machine["cores"], machine["load_at_start"]
    console.print(f"{system}, {cores} cores, load {load}, mlx {machine['mlx']}", style="dim")


if __name__ == "__main__":
    main()
