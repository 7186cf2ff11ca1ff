"""`reprise bench sampling`: measure what sampling adds to a step.

Draw one token per row from random logits and wait for it, without the model's forward pass: microseconds per
row and step. All rows have the same settings, except in 'top_p in one row', where the others have a
temperature only. On a processor times are processor time, which other work disturbs least; on a GPU they are
elapsed time.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np

from bench import document, options, outputs
from bench.options import Flag
from bench.tables import Column, Row, print_rows
from engine.request import Sampling
from engine.sampling.logprobs import measure as measure_likelihoods
from engine.sampling.sampler import Draw, RowSampling, Sampler

MIN_REPEATS, MAX_REPEATS = 3, 50
REPEAT_S = 0.3
"""Repeat a step until it has run this long in total, within the limits above."""

GREEDY, RANDOM = Sampling(seed=0, temperature=0.0), Sampling(seed=0)
TOP_P = Sampling(seed=0, top_p=0.9)
PENALTIES = Sampling(
    seed=0, temperature=0.0, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1
)
BIAS = Sampling(seed=0, temperature=0.0, logit_bias=tuple((7 * at, 1.5) for at in range(16)))
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"first": GREEDY},
    "temperature": {"first": RANDOM},
    "top_p": {"first": TOP_P},
    "top_p in one row": {"first": TOP_P, "others": RANDOM},
    "top_k": {"first": Sampling(seed=0, top_k=40)},
    "min_p": {"first": Sampling(seed=0, min_p=0.05)},
    "all filters": {"first": Sampling(seed=0, top_k=40, top_p=0.9, min_p=0.05)},
    "penalties": {"first": PENALTIES},
    "logit bias of 16 ids": {"first": BIAS},
    "grammar mask": {"first": GREEDY, "is_masked": True},
    "top_logprobs 5": {"first": GREEDY, "top_logprobs": 5},
}
"""Arguments of make_step() by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench sampling` to the parser."""
    options.declare(
        parser,
        Flag("--settings", options.names, "A,B", tuple(SETTINGS), "Settings. Default: all."),
        Flag("--vocabularies", options.levels, "N,M", (4_096, 32_000, 151_936), "Numbers of tokens."),
        Flag("--rows", options.levels, "N,M", (1, 8, 32), "Numbers of rows."),
        Flag("--memory", None, None, None,
             "Measure MiB per step instead, besides the logits: where MLX may run ahead of the device, and "
             "where it may not (a memory limit of 0), which is what engine/sampling/pieces.py counts."),
    )  # fmt: skip
    options.add(parser, json=None, csv=None)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the files, and return the exit status."""
    options.check_names("--settings", arguments.settings, tuple(SETTINGS))
    record = document.new_document(arguments, sampling={})
    rows: list[dict[str, Any]] = []
    with outputs.Work(len(arguments.vocabularies) * len(arguments.settings)) as work:
        for vocab_size, name in product(arguments.vocabularies, arguments.settings):
            work.begin(f"{name}, {vocab_size} tokens")
            row = {"settings": name, "vocab_size": vocab_size}
            for num_rows in arguments.rows:
                step = make_step(num_rows, vocab_size, **SETTINGS[name])
                row[f"rows_{num_rows}"] = (
                    measure_memory(step) if arguments.memory else 1e6 * time_step(step) / num_rows
                )
            rows.append(row)
            work.advance()
    record["sampling"] = {"unit": "MiB" if arguments.memory else "us", "rows": rows}
    console = outputs.make_console(100)
    print_rows(console, rows, columns(arguments.rows), group="vocab_size")
    unit = "MiB per step, running ahead / not" if arguments.memory else "microseconds per row and step"
    console.print(unit, style="dim")
    outputs.finish(console, arguments, record, rows)
    return 0


def columns(nums_rows: tuple[int, ...]) -> list[Column]:
    """Return the columns of the table."""
    return [Column("settings", "settings"), Column("vocab_size", "vocabulary", "0")] + [
        Column(f"rows_{number}", f"{number} row{'s' if number > 1 else ''}", cell) for number in nums_rows
    ]


def cell(value: Any) -> str:
    """Return microseconds, or two figures of memory, as text."""
    return " / ".join(f"{one:.1f}" for one in value) if isinstance(value, list) else f"{value:,.0f}"


def by_size(rows: list[Row], num_rows: int = 8) -> list[Row]:
    """Return a row per settings: the largest vocabulary's figures, and those of the others for some rows."""
    largest = max(row["vocab_size"] for row in rows)
    others = {(row["settings"], row["vocab_size"]): row.get(f"rows_{num_rows}") for row in rows}
    sizes = {row["vocab_size"] for row in rows} - {largest}
    return [
        {**row, **{f"vocab_{size}": others[row["settings"], size] for size in sizes}}
        for row in rows
        if row["vocab_size"] == largest
    ]


def make_step(
    num_rows: int,
    vocab_size: int,
    first: Sampling,
    others: Sampling | None = None,
    is_masked: bool = False,
    top_logprobs: int | None = None,
) -> Callable[[], None]:
    """Return a function that draws one token per row from random logits and waits for it.

    first, others: settings of the first row and of all others, if they differ.
    is_masked: whether a grammar allows half of the tokens.
    """
    rng = np.random.default_rng(0)
    logits = mx.array(rng.normal(0, 3, (num_rows, vocab_size)).astype(np.float32))
    mx.eval(logits)
    prompt = rng.integers(0, vocab_size, 200).tolist()
    asked = [first] + [others or first] * (num_rows - 1)
    sampler = Sampler([RowSampling(one, vocab_size, prompt, prompt[:50]) for one in asked], vocab_size)
    mask = rng.integers(0, 2, vocab_size).astype(np.bool_) if is_masked else None

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
    is_on_processor = mx.default_device() == mx.Device(mx.cpu)
    clock = time.process_time if is_on_processor else time.perf_counter
    step()
    times: list[float] = []
    while len(times) < MIN_REPEATS or (sum(times) < REPEAT_S and len(times) < MAX_REPEATS):
        start = clock()
        step()
        times.append(clock() - start)
    return statistics.median(times)


def measure_memory(step: Callable[[], None]) -> list[float]:
    """Return the peak of MLX's memory in MiB, where it may run ahead of the device and where it may not."""
    peaks = []
    for limit in (None, 0):
        before = mx.get_active_memory()
        usual = mx.set_memory_limit(limit) if limit is not None else None
        mx.reset_peak_memory()
        step()
        if usual is not None:
            mx.set_memory_limit(usual)
        peaks.append((mx.get_peak_memory() - before) / 2**20)
    return peaks
