"""Replay many pairs by many rules, in several processes if the order of pairs allows it."""

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

from bench.cost_curves import Curve
from bench.errors import BenchError
from bench.replay.pairs import TokenPair
from bench.replay.policies import Outcome
from bench.replay.rules import RULES, Setup

CHUNK_TOKENS = 100_000
"""Answer tokens per task, if the pairs of a rule may be split into tasks."""

MIN_PARALLEL_TOKENS = 400_000
"""Total answer tokens from which starting more processes pays off."""

Key = tuple[str, str, str]
"""Names of a rule, a workload and a curve."""

Task = tuple[str, int | None, int, int]
"""A rule, a curve (None if one replay serves all), and the range of pairs."""


@dataclass
class Group:
    """The results of a rule for some pairs on one cost curve.

    cost: in plain steps. slowest: the lowest speedup of a pair. drafter_ns, open_ns: processor time
    of the drafters, for answers and for prompts.
    """

    num_pairs: int = 0
    num_prompt_tokens: int = 0
    outcome: Outcome = field(default_factory=Outcome)
    cost: float = 0.0
    slowest: float = float("inf")
    drafter_ns: int = 0
    open_ns: int = 0

    def add(self, other: "Group") -> None:
        """Add the results of other pairs."""
        for name in ("num_pairs", "num_prompt_tokens", "cost", "drafter_ns", "open_ns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.outcome.add(other.outcome)
        self.slowest = min(self.slowest, other.slowest)


Results = dict[Key, Group]


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
    tasks = tasks_of(job)
    weights = {task: sum(len(pair.answer) for pair in job.pairs[task[2] : task[3]]) for task in tasks}
    total = max(1, sum(weights.values()))
    results: Results = {}

    def finish(task: Task, found: Results) -> None:
        add_all(results, found)
        progress(weights[task] / total)

    if min(num_processes, len(tasks)) == 1 or total < MIN_PARALLEL_TOKENS:
        for task in tasks:
            finish(task, run_task(job, task))
        return results
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(num_processes, len(tasks)), context, _begin_worker, (job,))
    try:
        futures = {pool.submit(_run_in_worker, task): task for task in tasks}
        for future in as_completed(futures):
            finish(futures[future], future.result())
    except BrokenProcessPool:
        raise BenchError(
            "a replay process was killed, perhaps because memory ran out; "
            "--processes 1 needs the least memory"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return results


def tasks_of(job: Job) -> list[Task]:
    """Return the tasks of a job, the longest first. Pairs that depend on each other are in one task."""
    tasks: list[Task] = []
    for name in job.rules:
        rule = RULES[name]
        ranges = [(0, len(job.pairs))] if rule.is_ordered else _chunks(job.pairs)
        curves = range(len(job.curves)) if rule.depends_on_costs else (None,)
        tasks += [(name, curve, start, stop) for curve in curves for start, stop in ranges]
    return sorted(tasks, key=lambda task: task[2] - task[3])


def run_task(job: Job, task: Task) -> Results:
    """Replay one task."""
    name, curve, start, stop = task
    rule, curves = RULES[name], job.curves if curve is None else (job.curves[curve],)
    player = rule.player(job.setup, None if curve is None else curves[0])
    results: Results = {}
    chat = ""
    for pair in job.pairs[start:stop]:
        if not rule.is_warm and (not pair.chat or pair.chat != chat):
            player.forget()
        chat = pair.chat
        before = player.spent_ns()
        outcome = player.play(pair)
        spent = [after - earlier for after, earlier in zip(player.spent_ns(), before, strict=True)]
        for one in curves if pair.is_measured else ():
            cost = outcome.cost_on(one)
            group = Group(1, len(pair.prompt), outcome, cost, outcome.num_tokens / cost, *spent)
            add_all(results, {(name, pair.workload, one.name): group})
    return results


def add_all(results: Results, found: Results) -> None:
    """Add results to those of other pairs."""
    for key, group in found.items():
        results.setdefault(key, Group()).add(group)


def together(groups: Iterable[Group]) -> Group:
    """Return the results of all groups as one."""
    total = Group()
    for group in groups:
        total.add(group)
    return total


_jobs: list[Job] = []
"""In a worker process: its job."""


def _begin_worker(job: Job) -> None:
    _jobs.append(job)


def _run_in_worker(task: Task) -> Results:
    return run_task(_jobs[0], task)


def _chunks(pairs: Sequence[TokenPair]) -> list[tuple[int, int]]:
    """Return ranges of pairs, split only between chats."""
    chunks, start, tokens = [], 0, 0
    for at, pair in enumerate(pairs):
        starts_chat = not pair.chat or at == 0 or pairs[at - 1].chat != pair.chat
        if tokens >= CHUNK_TOKENS and starts_chat:
            chunks.append((start, at))
            start, tokens = at, 0
        tokens += len(pair.answer)
    return [*chunks, (start, len(pairs))]
