"""Replay many pairs by many rules, in several processes if there is enough to do."""

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace

from bench.cost_curves import FLAT, Curve
from bench.errors import BenchError
from bench.replay.pairs import TokenPair
from bench.replay.policies import Outcome
from bench.replay.rules import RULES, Setup

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
