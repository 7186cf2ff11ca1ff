"""Measure what drafters cost in processor time, by the length and kind of the prompt.

    python -m bench.drafter_cost [name ...]

*us/token*: microseconds per emitted token. Each step is as in the engine: propose up to 31 tokens, observe
the accepted ones and one more, record_verified. *read*: milliseconds for the prompt, which also serves as the
prediction. *learn*: milliseconds after the sequence ended. Both are done in slices; *slice* is the longest
of them, or of the calls that return them. *score*: the gate's repetition score, computed in slices too.

*copy*: the prompt is random text, and the answer repeats stretches of it. *random*: both are random over few
ids, so there are many short matches, and they are wrong. *two ids*: even more so. *equal*: a single token.
"""

import argparse
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from itertools import pairwise, product

from rich.console import Console

from bench.machine import describe_machine
from bench.outputs import print_machine
from bench.tables import Column, print_rows
from drafters.base import Drafter, DraftQuery, SequenceStart
from drafters.ngram_mod import NgramModDrafter
from drafters.ngram_mod_tables import NgramModTables
from drafters.ngram_simple import NgramSimpleDrafter
from drafters.prediction import PredictionDrafter
from drafters.repetition import score_in_slices
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

SCORE = "score"

CONTEXT_TOKENS = (1_000, 10_000, 100_000)
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

    token_us: propose, observe and record_verified, per token of the answer.
    read_ms, learn_ms: all slices of the prompt, and of the finished text. slice_ms: the longest of both.
    """

    token_us: float
    read_ms: float
    learn_ms: float
    slice_ms: float


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


def guessing(num_tokens: int, num_ids: int = 300) -> Workload:
    """Return a workload of few random ids: pairs repeat often, but what follows them does not."""
    rng = random.Random(num_tokens)
    draw = [rng.randrange(num_ids) for _ in range(num_tokens + ANSWER_TOKENS)]
    return Workload(draw[:num_tokens], draw[num_tokens:])


WORKLOADS: Mapping[str, Callable[[int], Workload]] = {
    "copy": copying,
    "random": guessing,
    "two ids": partial(guessing, num_ids=2),
    "equal": partial(guessing, num_ids=1),
}


def measure(make: MakeDrafter, workload: Workload) -> Cost:
    """Replay the answer as the engine would, several times, and return the lowest costs.

    Other processes can only add time.
    """
    return _lowest([_run(make(), workload) for _ in range(REPEATS)])


def measure_score(workload: Workload) -> Cost:
    """Compute the repetition score of the prompt several times, and return the lowest costs."""
    costs = []
    for _ in range(REPEATS):
        slices_ms = _time_slices(partial(score_in_slices, workload.prompt))
        costs.append(Cost(0.0, sum(slices_ms), 0.0, max(slices_ms)))
    return _lowest(costs)


def _lowest(costs: Sequence[Cost]) -> Cost:
    return Cost(*(min(times) for times in zip(*(astuple(cost) for cost in costs), strict=True)))


def _time_slices(begin: Callable[[], Iterator[int] | None]) -> list[float]:
    """Return the milliseconds of a call that returns slices, and of each of them."""
    times = [time.thread_time()]
    slices = begin() or iter(())
    times.append(time.thread_time())
    is_left = True
    while is_left:
        is_left = next(slices, None) is not None
        times.append(time.thread_time())
    return [(after - before) * 1e3 for before, after in pairwise(times)]


def _run(drafter: Drafter, workload: Workload) -> Cost:
    answer = workload.answer
    read_ms = _time_slices(partial(drafter.open, SequenceStart(0, workload.prompt, workload.prompt)))
    start = time.thread_time()
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
    token_us = (time.thread_time() - start) / len(answer) * 1e6
    learn_ms = _time_slices(partial(drafter.close, 0))
    return Cost(token_us, sum(read_ms), sum(learn_ms), max(*read_ms, *learn_ms))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the named drafters, or all, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m bench.drafter_cost", description=__doc__)
    known = [*DRAFTERS, SCORE]
    parser.add_argument("names", nargs="*", default=known, help=f"of {', '.join(known)}")
    names: list[str] = parser.parse_args(arguments).names
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown drafters: {', '.join(unknown)}; there are {', '.join(known)}")
    rows = []
    for name, (kind, make), num_tokens in product(names, WORKLOADS.items(), CONTEXT_TOKENS):
        workload = make(num_tokens)
        cost = measure_score(workload) if name == SCORE else measure(DRAFTERS[name], workload)
        rows.append({"drafter": name, "prompt": kind, "tokens": num_tokens} | asdict(cost))
    console = Console()
    headings = {"token_us": "us/token", "read_ms": "read ms", "learn_ms": "learn ms", "slice_ms": "slice ms"}
    columns = [Column(name, name) for name in ("drafter", "prompt", "tokens")]
    print_rows(console, rows, [*columns, *(Column(*pair, "2") for pair in headings.items())], group="drafter")
    print_machine(console, {"machine": describe_machine()})


if __name__ == "__main__":
    main()
