"""Replay many pairs by many rules, in several processes if the order of pairs allows it."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

from bench.cost_curves import Curve
from bench.errors import BenchError
from bench.pairs import TokenPair
from bench.replay.policies import Outcome
from bench.replay.rules import RULES, Setup

CHUNK_TOKENS = 100_000
"""Answer tokens per task, if the pairs of a rule may be split into tasks."""

MIN_PARALLEL_TOKENS = 400_000
"""Total answer tokens from which starting more processes pays off."""

PROGRESS_INTERVAL_S = 0.2

Key = tuple[str, str, str]
"""Names of a rule, a workload and a curve."""


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
        self.num_pairs += other.num_pairs
        self.num_prompt_tokens += other.num_prompt_tokens
        self.outcome.add(other.outcome)
        self.cost += other.cost
        self.slowest = min(self.slowest, other.slowest)
        self.drafter_ns += other.drafter_ns
        self.open_ns += other.open_ns


@dataclass(frozen=True, slots=True)
class Job:
    """Everything to replay. rules: their names."""

    pairs: Sequence[TokenPair]
    rules: tuple[str, ...]
    curves: tuple[Curve, ...]
    setup: Setup


@dataclass(frozen=True, slots=True)
class Task:
    """A rule and a range of pairs. curve: its index, or None if one replay serves all curves."""

    rule: str
    curve: int | None
    start: int
    stop: int


def tasks_of(job: Job) -> list[Task]:
    """Split a job into tasks that do not depend on each other, the longest first."""
    everything = [(0, len(job.pairs))]
    chunks = _chunks(job.pairs)
    tasks = []
    for name in job.rules:
        rule = RULES[name]
        curves: Iterable[int | None] = range(len(job.curves)) if rule.depends_on_costs else (None,)
        ranges = everything if rule.is_ordered else chunks
        tasks += [Task(name, curve, start, stop) for curve in curves for start, stop in ranges]
    return sorted(tasks, key=lambda task: task.start - task.stop)


def run_task(job: Job, task: Task, note: Callable[[int], None]) -> dict[Key, Group]:
    """Replay one task. note: called with the number of tokens after each answer."""
    rule, curves = RULES[task.rule], job.curves if task.curve is None else (job.curves[task.curve],)
    player = rule.player(job.setup, None if task.curve is None else curves[0])
    results: dict[Key, Group] = {}
    chat = ""
    for pair in job.pairs[task.start : task.stop]:
        if not rule.is_warm and (not pair.chat or pair.chat != chat):
            player.forget()
        chat = pair.chat
        drafter_ns, open_ns = player.drafter_ns, player.open_ns
        outcome = player.play(pair)
        drafter_ns, open_ns = player.drafter_ns - drafter_ns, player.open_ns - open_ns
        note(len(pair.answer))
        for curve in curves if pair.is_measured else ():
            cost = outcome.cost_on(curve)
            group = results.setdefault((rule.name, pair.workload, curve.name), Group())
            speed = outcome.num_tokens / cost
            group.add(Group(1, len(pair.prompt), outcome, cost, speed, drafter_ns, open_ns))
    return results


def run_job(job: Job, num_processes: int, progress: Callable[[float], None]) -> dict[Key, Group]:
    """Replay a whole job.

    num_processes: the maximum; a small job runs in this process alone.
    progress: called with the share that is done, in [0, 1]. Raises BenchError if a process is lost.
    """
    tasks = tasks_of(job)
    total = max(1, sum(len(pair.answer) for task in tasks for pair in job.pairs[task.start : task.stop]))
    results: dict[Key, Group] = {}
    if min(num_processes, len(tasks)) == 1 or total < MIN_PARALLEL_TOKENS:
        done = 0

        def note(num_tokens: int) -> None:
            nonlocal done
            done += num_tokens
            progress(done / total)

        for task in tasks:
            _add(results, run_task(job, task, note))
        return results
    for part in _in_processes(job, tasks, num_processes, lambda tokens: progress(tokens / total)):
        _add(results, part)
    return results


def _in_processes(
    job: Job, tasks: Sequence[Task], num_processes: int, progress: Callable[[int], None]
) -> Iterator[dict[Key, Group]]:
    context = multiprocessing.get_context("spawn")
    counter = context.Value("q", 0)
    pool = ProcessPoolExecutor(min(num_processes, len(tasks)), context, _begin_worker, (job, counter))
    try:
        waiting: set[Future[dict[Key, Group]]] = {pool.submit(_run_in_worker, task) for task in tasks}
        while waiting:
            done, waiting = wait(waiting, PROGRESS_INTERVAL_S)
            progress(counter.value)
            for future in done:
                yield future.result()
    except BrokenProcessPool:
        raise BenchError(
            "a replay process was killed, perhaps because memory ran out; "
            "--processes 1 needs the least memory"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


_job: Job | None = None
_counter: Any = None


def _begin_worker(job: Job, counter: Any) -> None:
    global _job, _counter
    _job, _counter = job, counter
    # Ctrl-C reaches all processes; only the main one reports it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run_in_worker(task: Task) -> dict[Key, Group]:
    assert _job is not None

    def note(num_tokens: int) -> None:
        with _counter.get_lock():
            _counter.value += num_tokens

    return run_task(_job, task, note)


def _add(results: dict[Key, Group], part: dict[Key, Group]) -> None:
    for key, group in part.items():
        results.setdefault(key, Group()).add(group)


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
