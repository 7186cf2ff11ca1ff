"""Measure what sampling adds to a step: microseconds per row, by settings, vocabulary and number of rows.

    python -m bench.step_overhead [--memory] [name ...]

One step draws one token per row from random logits and waits for it, without the model's forward pass. All
rows have the same settings, except in *top_p in one row*, where the others have a temperature only. Its
figure less that of *temperature*, times the rows, is what that row's top_p costs. With MLX on the processor,
times are processor time, which other processes disturb least; on a GPU they are elapsed time.

With --memory it measures MiB per step instead, the logits not counted: where MLX may run ahead of the device,
and where it may not (a memory limit of 0). The latter is what engine/sampling/pieces.py counts.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from rich.console import Console
from rich.table import Table

from bench.machine import describe_machine
from engine.request import Sampling
from engine.sampling.logprobs import measure as measure_likelihoods
from engine.sampling.sampler import Draw, RowSampling, Sampler

VOCABULARIES = (4_096, 32_000, 151_936)
ROWS = (1, 8, 32)
MIN_REPEATS = 3
MAX_REPEATS = 50
REPEAT_S = 0.3
"""Repeat a step until it has run this long in total, within the limits above."""

GREEDY = Sampling(seed=0, temperature=0.0)
RANDOM = Sampling(seed=0)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the rows of a step ask for.

    first: settings of the first row. others: settings of all other rows.
    is_masked: whether a grammar allows half of the tokens. top_logprobs: None for no log probabilities.
    """

    first: Sampling
    others: Sampling
    is_masked: bool = False
    top_logprobs: int | None = None


def _same(sampling: Sampling, *, is_masked: bool = False, top_logprobs: int | None = None) -> Settings:
    return Settings(sampling, sampling, is_masked, top_logprobs)


SETTINGS: Mapping[str, Settings] = {
    "greedy": _same(GREEDY),
    "temperature": _same(RANDOM),
    "top_p": _same(Sampling(seed=0, top_p=0.9)),
    "top_p in one row": Settings(Sampling(seed=0, top_p=0.9), RANDOM),
    "top_k": _same(Sampling(seed=0, top_k=40)),
    "min_p": _same(Sampling(seed=0, min_p=0.05)),
    "all filters": _same(Sampling(seed=0, top_k=40, top_p=0.9, min_p=0.05)),
    "penalties": _same(
        Sampling(seed=0, temperature=0.0, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1)
    ),
    "logit bias, 16 ids": _same(
        Sampling(seed=0, temperature=0.0, logit_bias=tuple((7 * at, 1.5) for at in range(16)))
    ),
    "grammar mask": _same(GREEDY, is_masked=True),
    "top_logprobs 5": _same(GREEDY, top_logprobs=5),
}
"""The settings to measure, by name."""


@dataclass
class Step:
    """One step over random logits; run() draws the tokens and waits for them."""

    settings: Settings
    num_rows: int
    vocab_size: int
    logits: mx.array = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(0)
        self.logits = mx.array(rng.normal(0, 3, (self.num_rows, self.vocab_size)).astype(np.float32))
        mx.eval(self.logits)
        rows = [self.settings.first] + [self.settings.others] * (self.num_rows - 1)
        prompt = rng.integers(0, self.vocab_size, 200).tolist()
        self._sampler = Sampler(
            [RowSampling(s, self.vocab_size, prompt, prompt[:50]) for s in rows], self.vocab_size
        )
        self._mask = rng.integers(0, 2, self.vocab_size).astype(np.bool_) if self.settings.is_masked else None

    def run(self) -> None:
        """Draw one token per row and wait for it."""
        draws = [Draw(row, mask=self._mask) for row in range(self.num_rows)]
        tokens = self._sampler.sample(self.logits, [100] * self.num_rows, draws)
        wanted = [self.settings.top_logprobs] * self.num_rows
        likelihoods = measure_likelihoods(self.logits, tokens, wanted)
        mx.eval(tokens, *(likelihoods.arrays if likelihoods else ()))
        if likelihoods:
            likelihoods.read()


def time_step(run: Callable[[], None]) -> float:
    """Return the median of several times in seconds, after one run that is not counted."""
    is_on_processor = mx.default_device() == mx.Device(mx.cpu)
    clock = time.process_time if is_on_processor else time.perf_counter
    run()
    times: list[float] = []
    while len(times) < MIN_REPEATS or (sum(times) < REPEAT_S and len(times) < MAX_REPEATS):
        start = clock()
        run()
        times.append(clock() - start)
    return statistics.median(times)


def measure_memory(run: Callable[[], None]) -> str:
    """Return the peak of MLX's memory in MiB, where it may run ahead of the device and where it may not."""
    peaks = []
    for limit in (None, 0):
        before = mx.get_active_memory()
        usual = mx.set_memory_limit(limit) if limit is not None else None
        mx.reset_peak_memory()
        run()
        if usual is not None:
            mx.set_memory_limit(usual)
        peaks.append((mx.get_peak_memory() - before) / 2**20)
    return " / ".join(f"{peak:.1f}" for peak in peaks)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the named settings, or all, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.step_overhead", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(SETTINGS), help=f"of {', '.join(SETTINGS)}")
    parser.add_argument("--vocabularies", type=int, nargs="+", default=VOCABULARIES, help="numbers of tokens")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="numbers of rows")
    parser.add_argument("--memory", action="store_true", help="measure memory instead of time")
    options = parser.parse_args(arguments)
    names: list[str] = options.names
    if unknown := [name for name in names if name not in SETTINGS]:
        parser.error(f"unknown settings: {', '.join(unknown)}; there are {', '.join(SETTINGS)}")
    machine = describe_machine()
    title = "MiB per step: running ahead / not" if options.memory else "microseconds per row and step"
    table = Table("settings", "vocabulary", title=title)
    for num_rows in options.rows:
        table.add_column(f"{num_rows} row{'s' if num_rows > 1 else ''}", justify="right")
    for vocab_size in options.vocabularies:
        for name in names:
            steps = [Step(SETTINGS[name], num_rows, vocab_size) for num_rows in options.rows]
            if options.memory:
                cells = [measure_memory(step.run) for step in steps]
            else:
                cells = [f"{time_step(step.run) / step.num_rows * 1e6:.0f}" for step in steps]
            table.add_row(name, str(vocab_size), *cells)
    console = Console()
    console.print(table)
    system, cores, load = machine["system"], machine["cores"], machine["load_at_start"]
    console.print(f"{system}, {cores} cores, load {load}, mlx {machine['mlx']}", style="dim")


if __name__ == "__main__":
    main()
