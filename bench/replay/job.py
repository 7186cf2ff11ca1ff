"""Replay many pairs by many rules, in several processes if there is enough to do, and report the results."""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rich.console import Console

from bench.cost_curves import FLAT, Curve
from bench.errors import BenchError
from bench.replay.pairs import TokenPair
from bench.replay.policies import Outcome, ServerPlayer
from bench.replay.rules import RULES, Setup
from bench.tables import Column, print_rows
from drafters.base import Draft, DraftQuery
from drafters.suffix import NUM_CLASSES, SuffixDrafter
from engine.speculative.acceptance import count_accepted

MIN_PARALLEL_TOKENS = 400_000
"""Total answer tokens from which starting more processes pays off."""

Results = dict[tuple[str, str, str], Outcome]
"""By the names of rule, workload and curve."""

Task = tuple[str, Curve | None]
"""A rule and a curve; None if one replay serves all curves."""


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
    tasks: list[Task] = [
        (name, curve)
        for name in job.rules
        for curve in (job.curves if RULES[name].depends_on_costs else (None,))
    ]
    results: Results = {}
    num_tokens = len(tasks) * sum(len(pair.answer) for pair in job.pairs)
    if min(num_processes, len(tasks)) == 1 or num_tokens < MIN_PARALLEL_TOKENS:
        for task in tasks:
            results |= run_task(job, task)
            progress(1 / len(tasks))
        return results
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(num_processes, len(tasks)), context, _begin_worker, (job,))
    try:
        for found in pool.map(_run_in_worker, tasks):
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
    name, curve = task
    rule, player = RULES[name], RULES[name].player(job.setup, curve or FLAT)
    results: Results = {}
    chat = ""
    for pair in job.pairs:
        if not rule.is_warm and (not pair.chat or pair.chat != chat):
            player.forget()
        chat = pair.chat
        before = player.spent_ns()
        outcome = player.play(pair)
        spent = [after - earlier for after, earlier in zip(player.spent_ns(), before, strict=True)]
        for one in ([curve] if curve else job.curves) if pair.is_measured else ():
            cost = outcome.cost_on(one)
            of_pair = replace(
                outcome, cost=cost, slowest=outcome.num_tokens / cost, num_pairs=1,
                num_prompt_tokens=len(pair.prompt), drafter_ns=spent[0], open_ns=spent[1],
            )  # fmt: skip
            results.setdefault((name, pair.workload, one.name), Outcome()).add(of_pair)
    return results


_jobs: list[Job] = []
"""In a worker process: its job."""


def _begin_worker(job: Job) -> None:
    _jobs.append(job)


def _run_in_worker(task: Task) -> Results:
    return run_task(_jobs[0], task)


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
    """Return one row per rule and workload, and one per rule for all workloads if there are several.

    Figures that differ by curve are under "by_curve"; the same fields at top level are those of the first
    curve.
    """
    workloads = list(dict.fromkeys(workload for _, workload, _ in results))
    groups: list[tuple[str, Sequence[str]]] = [(name, [name]) for name in workloads]
    if len(workloads) > 1:
        groups.append(("all", workloads))
    rows = []
    for workload, parts in groups:
        for rule in rules:
            of_curves = {curve.name: Outcome() for curve in curves}
            for name, part in product(of_curves, parts):
                of_curves[name].add(results[rule, part, name])
            rows.append(_row(rule, workload, of_curves))
    return rows


def flat(rows: Iterable[Row]) -> list[Row]:
    """Return the rows for CSV: one per rule, workload and curve."""
    shared = ("workload", "drafter", "rule", "used_by", "pairs", "tokens")
    return [
        {key: row[key] for key in shared} | {"curve": curve} | figures
        for row in rows
        for curve, figures in row["by_curve"].items()
    ]


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: "1 pair", "2,000 pairs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def print_report(console: Console, rows: Sequence[Row], curves: Sequence[Curve]) -> None:
    """Print a table per workload, acceptance by position, and what the names mean."""
    columns = [Column("drafter", "drafter", is_key=True)]
    for curve in curves:
        of_curve = {"tokens_per_forward": "TPF", "speedup": "speed", "slowest": "least"}
        columns += [
            Column(_of_curve(curve.name, name), f"{curve.name}\n{heading}", "2")
            for name, heading in of_curve.items()
        ]
    shares = {"acceptance": "accepted", "coverage": "copied", "coverage_of_steps": "steps"}
    columns += [Column(name, heading, "%") for name, heading in shares.items()]
    columns += [
        Column("drafter_us_per_token", "us/token", "1"),
        Column("open_us_per_prompt_token", "open", "1"),
    ]
    for workload in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == workload]
        pairs, tokens_in, tokens_out = (own[0][name] for name in ("pairs", "prompt_tokens", "tokens"))
        sizes = f"{tokens_in // pairs:,} tokens in and {tokens_out // pairs:,} out on average"
        print_rows(console, own, columns, f"{workload or 'pairs'}: {count_text(pairs, 'pair')}, {sizes}")
    last = [row for row in rows if row["workload"] == rows[-1]["workload"]]
    at = [Column(_at(one), str(one), "%") for one in POSITIONS]
    print_rows(console, last, [columns[0], *at], f"Acceptance by position in the draft, {curves[0].name}")
    for name in dict.fromkeys(row["drafter"] for row in rows):
        rule = RULES[name]
        used = f" ({rule.used_by})" if rule.used_by else ""
        console.print(f"{name}: {rule.title}{used}", highlight=False, style="dim")
    for curve in curves:
        line = f"{curve.name}: {curve.kind}; {curve.machine}; {curve.source}"
        console.print(f"{line}; costs above width {curve.widest} are a guess", highlight=False, style="dim")
    console.print(NOTES, style="dim", highlight=False)


def _of_curve(curve: str, name: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: row["by_curve"][curve][name]


def _at(position: int) -> Callable[[Mapping[str, Any]], Any]:
    return lambda row: next(iter(row["acceptance_by_position"][position - 1 : position]), None)


def _row(name: str, workload: str, of_curves: Mapping[str, Outcome]) -> Row:
    rule, first = RULES[name], next(iter(of_curves.values()))
    by_curve = {curve: _figures(outcome) for curve, outcome in of_curves.items()}
    return {
        "drafter": name, "rule": rule.title, "used_by": rule.used_by, "is_hindsight": rule.is_hindsight,
        "memory": "warm" if rule.is_warm else "cold", "workload": workload, "pairs": first.num_pairs,
        "tokens": first.num_tokens, "prompt_tokens": first.num_prompt_tokens,
        **next(iter(by_curve.values())),
        "speedup": {curve: figures["speedup"] for curve, figures in by_curve.items()},
        "slowest": {curve: figures["slowest"] for curve, figures in by_curve.items()}, "by_curve": by_curve,
    }  # fmt: skip


def _figures(outcome: Outcome) -> Row:
    figures = outcome.figures()
    return figures | {
        "slowest": outcome.slowest, "coverage": figures.pop("drafted_share"),
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
    player = ServerPlayer([drafter], setup.settings, curve, setup.line_ends)
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
