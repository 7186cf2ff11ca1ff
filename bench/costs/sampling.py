"""`reprise bench sampling`: measure what sampling adds to a step.

Draw one token per row from random logits and wait for it, without the model's forward pass: microseconds per
row and step. All rows have the same settings, except in 'top_p in one row', where the others have a
temperature only. On a processor times are processor time, which other work disturbs least; on a GPU they are
elapsed time.
"""

import argparse
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np

from bench import options
from bench.costs import measure_all
from bench.options import Flag
from bench.tables import Column
from engine.request import Sampling
from engine.sampling.logprobs import measure as measure_likelihoods
from engine.sampling.sampler import Draw, RowSampling, Sampler

REPEATS = 9
GREEDY, RANDOM = Sampling(seed=0, temperature=0.0), Sampling(seed=0)
TOP_P_IN_ONE, MASK, LOGPROBS = "top_p in one row", "grammar mask", "top_logprobs 5"
SETTINGS = {
    "greedy": GREEDY,
    "temperature": RANDOM,
    "top_p": replace(RANDOM, top_p=0.9),
    TOP_P_IN_ONE: replace(RANDOM, top_p=0.9),
    "top_k": replace(RANDOM, top_k=40),
    "min_p": replace(RANDOM, min_p=0.05),
    "all filters": replace(RANDOM, top_k=40, top_p=0.9, min_p=0.05),
    "penalties": replace(GREEDY, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1),
    "logit bias of 16 ids": replace(GREEDY, logit_bias=tuple((7 * at, 1.5) for at in range(16))),
    MASK: GREEDY,
    LOGPROBS: GREEDY,
}
"""By name; what else three of them ask for is in make_step()."""


FLAGS = (
    Flag("--settings", options.names, "A,B", tuple(SETTINGS), "Settings. Default: all."),
    Flag("--vocabularies", options.levels, "N,M", (4_096, 32_000, 151_936), "Numbers of tokens."),
    Flag("--rows", options.levels, "N,M", (1, 8, 32), "Numbers of rows."),
    Flag("--memory", None, None, None,
         "Measure MiB per step besides the logits: where MLX may run ahead of the device, and not."),
    *options.shared(json=None, csv=None),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the files, and return the exit status."""
    options.check_names("--settings", arguments.settings, tuple(SETTINGS))

    def measure(vocab_size: int, settings: str) -> dict[str, Any]:
        figures: dict[str, Any] = {}
        for number in arguments.rows:
            step = make_step(settings, number, vocab_size)
            measured = measure_memory(step) if arguments.memory else 1e6 * time_step(step) / number
            figures[f"rows_{number}"] = measured
        return figures

    sizes = product(arguments.vocabularies, arguments.settings)
    cases = [{"vocab_size": vocab_size, "settings": name} for vocab_size, name in sizes]
    note = "MiB per step, running ahead / not" if arguments.memory else "microseconds per row and step"
    return measure_all(arguments, "sampling", cases, measure, columns(arguments.rows), [note])


def columns(nums_rows: Sequence[int]) -> list[Column]:
    """Return the columns of the table."""
    return [Column("settings", "settings"), Column("vocab_size", "vocabulary", "0")] + [
        Column(f"rows_{number}", f"{number} row{'s' * (number > 1)}", _cell) for number in nums_rows
    ]


def _cell(value: Any) -> str:
    """Return microseconds, or two figures of memory, as text."""
    return " / ".join(f"{one:.1f}" for one in value) if isinstance(value, list) else f"{value:,.0f}"


def make_step(name: str, num_rows: int, vocab_size: int) -> Callable[[], None]:
    """Return a function that draws one token per row from random logits and waits for it."""
    rng = np.random.default_rng(0)
    logits = mx.array(rng.normal(0, 3, (num_rows, vocab_size)).astype(np.float32))
    prompt = rng.integers(0, vocab_size, 200).tolist()
    asked = [SETTINGS[name]] + [RANDOM if name == TOP_P_IN_ONE else SETTINGS[name]] * (num_rows - 1)
    sampler = Sampler([RowSampling(one, vocab_size, prompt, prompt[:50]) for one in asked], vocab_size)
    mask = rng.integers(0, 2, vocab_size).astype(np.bool_) if name == MASK else None
    top_logprobs = 5 if name == LOGPROBS else None

    def step() -> None:
        draws = [Draw(row, mask=mask) for row in range(num_rows)]
        tokens = sampler.sample(logits, [100] * num_rows, draws)
        likelihoods = measure_likelihoods(logits, tokens, [top_logprobs] * num_rows)
        mx.eval(tokens, *(likelihoods.arrays if likelihoods else ()))
        if likelihoods:
            likelihoods.read()

    return step


def time_step(step: Callable[[], None]) -> float:
    """Return the median of several times in seconds, after one run that is not counted."""
    clock = time.process_time if mx.default_device() == mx.Device(mx.cpu) else time.perf_counter
    step()
    return median(timeit.repeat(step, timer=clock, number=1, repeat=REPEATS))


def measure_memory(step: Callable[[], None]) -> list[float]:
    """Return the peak of MLX's memory in MiB, where it may run ahead of the device and where it may not."""
    peaks = []
    usual = mx.set_memory_limit(0)
    for limit in (usual, 0):
        mx.set_memory_limit(limit)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        step()
        peaks.append((mx.get_peak_memory() - before) / 2**20)
    mx.set_memory_limit(usual)
    return peaks
