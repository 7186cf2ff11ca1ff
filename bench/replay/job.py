"""Replay many pairs by many rules, in several processes if there is enough to do, and report the results."""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console

from bench.cost_curves import Curve
from bench.errors import BenchError
from bench.replay.pairs import TokenPair
from bench.replay.policies import Outcome, Setup, total
from bench.replay.rules import RULES, Rule
from bench.tables import Column, print_rows
from drafters.base import Draft, DraftQuery
from drafters.suffix import NUM_CLASSES, SuffixDrafter
from engine.speculative.acceptance import count_accepted

MIN_PARALLEL_TOKENS = 400_000
"""Total answer tokens from which starting more processes pays off."""

Results = dict[tuple[str, str, str], Outcome]
"""By the names of rule, workload and curve."""

Task = tuple[str, tuple[Curve, ...]]
"""A rule and the curves that one replay by it serves."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything to replay. rules: their names."""

    pairs: Sequence[TokenPair]
    rules: tuple[str, ...]
    curves: tuple[Curve, ...]
    setup: Setup


def run_job(job: Job, num_processes: int, progress: Callable[[float], None]) -> Results:
    """Replay a whole job.

    num_processes: the maximum; a small job runs in this process alone.
    progress: called with the share of each finished task. Raises BenchError if a process is lost.
    """
    tasks: list[Task] = []
    for name in job.rules:
        alone = [(name, (curve,)) for curve in job.curves]
        tasks += alone if RULES[name].depends_on_costs else [(name, job.curves)]
    num_workers = min(num_processes, len(tasks))
    if len(tasks) * sum(len(pair.answer) for pair in job.pairs) < MIN_PARALLEL_TOKENS:
        num_workers = 1
    results: Results = {}
    pool = ProcessPoolExecutor(num_workers, multiprocessing.get_context("spawn"))
    run = map if num_workers == 1 else pool.map
    try:
        for found in run(partial(run_task, job), tasks):
            results |= found
            progress(1 / len(tasks))
    except BrokenProcessPool:
        raise BenchError(
            "a replay process was killed, perhaps because memory ran out; "
            "--processes 1 needs the least memory"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return results


def run_task(job: Job, task: Task) -> Results:
    """Replay all pairs by one rule."""
    name, curves = task
    results: Results = {}
    player = RULES[name].player(job.setup, curves[0])
    for pair, outcome in player.play_all(job.pairs, is_cold=not RULES[name].is_warm):
        for curve in curves:
            cost = outcome.cost_on(curve)
            priced = replace(outcome, cost=cost, slowest=outcome.num_tokens / cost)
            results.setdefault((name, pair.workload, curve.name), Outcome()).add(priced)
    return results


Row = dict[str, Any]

POSITIONS = (1, 2, 3, 4, 8, 12, 16, 24, 31, 48, 64)
"""Positions in a draft that the table shows; the first is 1."""

NOTES = """\
TPF: tokens per forward pass. speed: speedup over plain decoding; least: the lowest speedup of a pair.
accepted: share of drafted tokens. copied: share of the answer that came from drafts.
steps: share of forward passes that verified a draft.
us/token: processor time of the drafter per token of the answer, not included in the speed.
open: the same per token of the prompt."""


def rows_of(results: Results, rules: Sequence[str], curves: Sequence[Curve]) -> list[Row]:
    """Return a row for each workload, rule and curve, and for all workloads together if there are several."""
    workloads = list(dict.fromkeys(workload for _, workload, _ in results))
    groups = {name: [name] for name in workloads} | ({"all": workloads} if len(workloads) > 1 else {})
    return [
        _row(RULES[rule], workload, curve.name, total(results[rule, part, curve.name] for part in parts))
        for workload, parts in groups.items()
        for rule in rules
        for curve in curves
    ]


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: "1 pair", "2,000 pairs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def print_report(console: Console, rows: Sequence[Row], curves: Sequence[Curve]) -> None:
    """Print a table per workload, acceptance by position, and what the names mean."""
    found = {(row["workload"], row["drafter"], row["curve"]): row for row in rows}

    def on(curve: Curve, name: str) -> Callable[[Mapping[str, Any]], Any]:
        return lambda row: found[row["workload"], row["drafter"], curve.name][name]

    columns = [Column("drafter", "drafter", is_key=True)]
    columns += [
        Column(on(curve, name), f"{curve.name}\n{heading}", "2")
        for curve in curves
        for name, heading in (("tokens_per_forward", "TPF"), ("speedup", "speed"), ("slowest", "least"))
    ]
    shares = {"acceptance": "accepted", "coverage": "copied", "coverage_of_steps": "steps"}
    columns += [Column(name, heading, "%") for name, heading in shares.items()]
    columns += [
        Column("drafter_us_per_token", "us/token", "1"),
        Column("open_us_per_prompt_token", "open", "1"),
    ]
    firsts = [row for row in rows if row["curve"] == curves[0].name]
    for workload in dict.fromkeys(row["workload"] for row in firsts):
        own = [row for row in firsts if row["workload"] == workload]
        pairs, tokens_in, tokens_out = (own[0][name] for name in ("pairs", "prompt_tokens", "tokens"))
        sizes = f"{tokens_in // pairs:,} tokens in and {tokens_out // pairs:,} out on average"
        print_rows(console, own, columns, f"{workload or 'pairs'}: {count_text(pairs, 'pair')}, {sizes}")
    at = [Column(_at(one), str(one), "%") for one in POSITIONS]
    print_rows(console, own, [columns[0], *at], f"Acceptance by position in the draft, {curves[0].name}")
    for name in dict.fromkeys(row["drafter"] for row in rows):
        rule = RULES[name]
        used = f" ({rule.used_by})" if rule.used_by else ""
        console.print(f"{name}: {rule.title}{used}", highlight=False, style="dim")
    for curve in curves:
        line = f"{curve.name}: {curve.kind}; {curve.machine}; {curve.source}"
        console.print(f"{line}; costs above width {curve.widest} are a guess", highlight=False, style="dim")
    console.print(NOTES, style="dim", highlight=False)


def _at(position: int) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: next(iter(row["acceptance_by_position"][position - 1 : position]), None)


def _row(rule: Rule, workload: str, curve: str, outcome: Outcome) -> Row:
    figures = outcome.figures()
    return {
        "drafter": rule.name, "rule": rule.title, "used_by": rule.used_by, "curve": curve,
        "is_hindsight": rule.is_hindsight, "memory": "warm" if rule.is_warm else "cold", "workload": workload,
        "pairs": outcome.num_pairs, "prompt_tokens": outcome.num_prompt_tokens,
        "slowest": outcome.slowest, "coverage": figures.pop("drafted_share"), **figures,
        "coverage_of_steps": outcome.num_drafting / outcome.num_forwards,
        "drafter_us_per_token": outcome.drafter_ns / outcome.num_tokens / 1e3,
        "open_us_per_prompt_token": outcome.open_ns / outcome.num_prompt_tokens / 1e3,
    }  # fmt: skip


CLASSES = ("<3", "3", "4-5", "6-8", "9-15", "16-31", "32+")
KINDS = ("cursor", "match", "disputed", "finished")


class WatchedSuffix(SuffixDrafter):
    """A suffix drafter that knows the answer and counts how many of its drafted tokens are right.

    compared: drafted tokens up to and including the first wrong one of each draft, by bucket.
    right: those of them that were right, by bucket.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rest: Sequence[int] = ()
        self.compared: Counter[int] = Counter()
        self.right: Counter[int] = Counter()

    def propose(self, query: DraftQuery) -> Draft:
        """Propose as the drafter does, and count the tokens."""
        draft = super().propose(query)
        right = count_accepted(draft.tokens, self.rest[: len(draft.tokens)])
        self.compared[draft.bucket] += min(right + 1, len(draft.tokens))
        self.right[draft.bucket] += right
        return draft

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Observe as the drafter does."""
        self.rest = self.rest[len(tokens) :]
        super().observe(seq, tokens)


def calibrate(pairs: Sequence[TokenPair], setup: Setup, curve: Curve) -> WatchedSuffix:
    """Replay the pairs in order with the server's gate, keeping finished requests in the history."""
    drafter = WatchedSuffix()
    player = replace(setup, curve=curve).server(setup.settings, [drafter])
    for pair in pairs:
        drafter.rest = pair.answer
        player.play(pair)
    return drafter


def print_calibration(console: Console, name: str, counts: WatchedSuffix) -> None:
    """Print how often drafted tokens were right, by kind of evidence and match length."""
    rows: list[Row] = []
    for number, kind in enumerate(KINDS):
        buckets = {step: number * NUM_CLASSES + at for at, step in enumerate(CLASSES)}
        shares = {
            step: f"{counts.right[bucket] / counts.compared[bucket]:.2f} of {counts.compared[bucket]}"
            for step, bucket in buckets.items()
            if counts.compared[bucket]
        }
        rows.append({"kind": kind} | dict.fromkeys(CLASSES, "") | shares)
    print_rows(console, rows, [Column(one, one) for one in ("kind", *CLASSES)], name)
