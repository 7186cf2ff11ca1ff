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
from itertools import product
from statistics import median
from typing import Any

import mlx.core as mx
import numpy as np

from reprise.bench import document, options, outputs
from reprise.bench.options import Flag
from reprise.bench.tables import Column, Row
from reprise.engine.interface.request import Sampling
from reprise.engine.sampling.logits import measure as measure_likelihoods
from reprise.engine.sampling.sampler import Draw, RowSampling, Sampler

REPEATS = 9
GREEDY: dict[str, Any] = {"temperature": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "temperature": {},
    "top_p": {"top_p": 0.9},
    "top_p in one row": {"top_p": 0.9},
    "top_k": {"top_k": 40},
    "min_p": {"min_p": 0.05},
    "all filters": {"top_k": 40, "top_p": 0.9, "min_p": 0.05},
    "penalties": GREEDY | {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "logit bias of 16 ids": GREEDY | {"logit_bias": tuple((7 * at, 1.5) for at in range(16))},
    "grammar mask": GREEDY,
    "top_logprobs 5": GREEDY,
}
"""Fields of Sampling, by name; what else three of them ask for is in make_step()."""

FLAGS = (
    Flag("--settings", options.names, "A,B", tuple(SETTINGS), "Settings. Default: all."),
    Flag("--vocabularies", options.levels, "N,M", (4_096, 32_000, 151_936), "Numbers of tokens."),
    Flag("--rows", options.levels, "N,M", (1, 8, 32), "Numbers of rows."),
    Flag("--memory", None, None, None,
         "Measure MiB per step besides the logits: where MLX may run ahead of the device, and not."),
    *options.shared(json=None, csv=None),
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Measure, print the figures, write the files, and return the exit status."""
    options.check_names("--settings", arguments.settings, tuple(SETTINGS))
    measure = measure_memory if arguments.memory else time_step
    cases, rows = [*product(arguments.vocabularies, arguments.settings)], list[Row]()
    result = document.new_document(arguments, sampling={"rows": rows})
    with outputs.Work({"": len(cases)}) as work:
        for size, name in cases:
            work.begin(f"{size}, {name}")
            taken = {f"rows_{number}": measure(name, number, size) for number in arguments.rows}
            rows.append({"vocab_size": size, "settings": name, **taken})
            work.advance()
    note = "MiB per step, running ahead / not" if arguments.memory else "microseconds per row and step"
    table = outputs.Table(columns(arguments.rows), notes=[note], width=100)
    outputs.report(arguments, result, rows, table)
    return 0


def columns(nums_rows: Sequence[int]) -> list[Column]:
    """Return the columns of the table: settings, vocabulary, and the figures at each number of rows."""
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
    others = "temperature" if name == "top_p in one row" else name
    asked = [Sampling(0, **SETTINGS[one]) for one in (name, *[others] * (num_rows - 1))]
    sampler = Sampler([RowSampling(one, vocab_size, prompt, prompt[:50]) for one in asked], vocab_size)
    mask = rng.integers(0, 2, vocab_size).astype(np.bool_) if name == "grammar mask" else None
    top_logprobs = 5 if name == "top_logprobs 5" else None

    def step() -> None:
        draws = [Draw(row, mask=mask) for row in range(num_rows)]
        tokens = sampler.sample(logits, [100] * num_rows, draws)
        likelihoods = measure_likelihoods(logits, tokens, [top_logprobs] * num_rows)
        mx.eval(tokens, *(likelihoods.arrays if likelihoods else ()))
        if likelihoods:
            likelihoods.fetch()

    return step


def time_step(name: str, num_rows: int, vocab_size: int) -> float:
    """Return the median time of a step in microseconds per row; a first step is not counted."""
    clock = time.process_time if mx.default_device() == mx.Device(mx.cpu) else time.perf_counter
    step = make_step(name, num_rows, vocab_size)
    _, *seconds = timeit.repeat(step, timer=clock, number=1, repeat=1 + REPEATS)
    return 1e6 * median(seconds) / num_rows


def measure_memory(name: str, num_rows: int, vocab_size: int) -> list[float]:
    """Return two peaks of a step's memory in MiB: where MLX may run ahead of the device, and where not."""
    step, peaks = make_step(name, num_rows, vocab_size), []
    usual = mx.set_memory_limit(0)
    for limit in (usual, 0):
        mx.set_memory_limit(limit)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        step()
        peaks.append((mx.get_peak_memory() - before) / 2**20)
    mx.set_memory_limit(usual)
    return peaks
