"""Measure what drafters cost: microseconds of processor time per emitted token, by context length.

    python -m bench.drafter_cost [name ...]

Each step is as in the engine: propose up to 31 tokens, observe the accepted ones and one more,
record_verified. *copy*: the prompt is random text, and the answer repeats stretches of it. *random*: both are
random over few ids, so there are many short matches, and they are wrong. *open*: milliseconds for the prompt,
which also serves as the prediction.
"""

import argparse
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.machine import describe_machine
from drafters.base import Drafter, DraftQuery, SequenceStart
from drafters.ngram_mod import NgramModDrafter
from drafters.ngram_mod_tables import NgramModTables
from drafters.ngram_simple import NgramSimpleDrafter
from drafters.prediction import PredictionDrafter
from drafters.suffix import SuffixDrafter

MakeDrafter = Callable[[], Drafter]

DRAFTERS: dict[str, MakeDrafter] = {
    "ngram-simple": NgramSimpleDrafter,
    "ngram-mod": lambda: NgramModDrafter(NgramModTables("bench")),
    # Every slot is occupied, so each lookup finds a token, usually a wrong one.
    "ngram-mod, full": lambda: full_ngram_mod(),
    "suffix": SuffixDrafter,
    "prediction": PredictionDrafter,
}
"""The drafters to measure: name -> how to create one."""

CONTEXT_TOKENS = (1_000, 16_000, 128_000)
ANSWER_TOKENS = 2_000
LIMIT = 31
REPEATS = 3


@dataclass(frozen=True, slots=True)
class Workload:
    """A prompt and its answer."""

    prompt: Sequence[int]
    answer: Sequence[int]


@dataclass(frozen=True, slots=True)
class Cost:
    """The processor time of a drafter.

    open_ms: for the prompt. token_us: propose, observe and record_verified, per token of the answer.
    """

    open_ms: float
    token_us: float


def full_ngram_mod() -> NgramModDrafter:
    """Create a drafter whose small table is full of other text."""
    tables = NgramModTables("bench", size=65_536)
    rng = random.Random(0)
    tables.table("").learn([rng.randrange(50_000) for _ in range(20 * tables.spec.size)])
    return NgramModDrafter(tables)


def copying(num_tokens: int) -> Workload:
    """Return a workload whose answer consists of stretches of 20 to 200 tokens of the prompt."""
    rng = random.Random(num_tokens)
    prompt = [rng.randrange(50_000) for _ in range(num_tokens)]
    answer: list[int] = []
    while len(answer) < ANSWER_TOKENS:
        start = rng.randrange(num_tokens - 200)
        answer += prompt[start : start + rng.randint(20, 200)]
    return Workload(prompt, answer[:ANSWER_TOKENS])


def guessing(num_tokens: int) -> Workload:
    """Return a workload of random ids below 300: pairs repeat often, but what follows them does not."""
    rng = random.Random(num_tokens)
    draw = [rng.randrange(300) for _ in range(num_tokens + ANSWER_TOKENS)]
    return Workload(draw[:num_tokens], draw[num_tokens:])


WORKLOADS: Mapping[str, Callable[[int], Workload]] = {"copy": copying, "random": guessing}


def measure(make: MakeDrafter, workload: Workload) -> Cost:
    """Replay the answer as the engine would, several times, and return the lowest costs.

    Other processes can only add time.
    """
    costs = [_run(make(), workload) for _ in range(REPEATS)]
    return Cost(min(cost.open_ms for cost in costs), min(cost.token_us for cost in costs))


def _run(drafter: Drafter, workload: Workload) -> Cost:
    answer = workload.answer
    start = time.process_time()
    drafter.open(SequenceStart(0, workload.prompt, workload.prompt))
    opened = time.process_time()
    at = 0
    while at < len(answer):
        draft = drafter.propose(DraftQuery(0, LIMIT)).tokens
        accepted = 0
        while accepted < min(len(draft), len(answer) - at - 1) and draft[accepted] == answer[at + accepted]:
            accepted += 1
        drafter.observe(0, answer[at : at + accepted + 1])
        if draft:
            drafter.record_verified(0, len(draft), accepted)
        at += accepted + 1
    ended = time.process_time()
    drafter.close(0)
    return Cost((opened - start) * 1e3, (ended - opened) / len(answer) * 1e6)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the named drafters, or all, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.drafter_cost", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(DRAFTERS), help=f"of {', '.join(DRAFTERS)}")
    names: list[str] = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in DRAFTERS]:
        parser.error(f"unknown drafters: {', '.join(unknown)}; there are {', '.join(DRAFTERS)}")
    machine = describe_machine()
    table = Table("drafter", "context tokens", title="microseconds per emitted token")
    for workload in WORKLOADS:
        table.add_column(workload, justify="right")
        table.add_column("open, ms", justify="right")
    for name in names:
        for num_tokens in CONTEXT_TOKENS:
            costs = [measure(DRAFTERS[name], make(num_tokens)) for make in WORKLOADS.values()]
            cells = [text for cost in costs for text in (f"{cost.token_us:.2f}", f"{cost.open_ms:.1f}")]
            table.add_row(name, str(num_tokens), *cells)
    console = Console()
    console.print(table)
    system, cores, load = machine["system"], machine["cores"], machine["load_at_start"]
    console.print(f"{system}, {cores} cores, load {load}, Python {machine['python']}", style="dim")


if __name__ == "__main__":
    main()
