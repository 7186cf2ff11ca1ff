"""`reprise bench replay`: what drafting would gain, without a model.

Pairs of a prompt and a known answer are said step by step as an engine would, each rule drafting for itself.
Steps cost what a cost curve says. So thousands of requests take seconds, and rules can be compared on
machines that are not there. What the rules are, see rules.py; where pairs come from, sources.py.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench import argument_types, document, outputs
from bench.cost_curves import Curve, built_in, describe, read_curve
from bench.edits import KINDS
from bench.errors import ArgumentsError, BenchError
from bench.replay.calibration import calibrate, table_of
from bench.replay.report import count_text, flat, print_report, rows_of
from bench.replay.rules import COMPARED, RULES, Setup
from bench.replay.shards import Job, run_job
from bench.replay.sources import Source, Vocabulary, collect
from config.settings import BUNDLED_MODEL, Settings

SUMMARY = "Draft for known answers by any rule, without a model, on given costs of steps."

_WIDTH = 140


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise bench replay` takes."""
    parser.description = (
        "Say known answers step by step, drafting by each rule, and tell what it would gain on given costs "
        "of steps. Needs no model. Without --pairs and --workloads the pairs are generated from a seed: "
        "edits of the Python files installed here, documents, and traps. Rules: "
        + "; ".join(f"{rule.name}: {rule.title}" for rule in RULES.values())
    )
    add = parser.add_argument
    add("--pairs", action="append", type=Path, metavar="FILE", help="Pairs in JSON lines; may be repeated.")
    add("--workloads", type=_names, default=(), metavar="NAMES", help="Right answers of generated chats.")
    add(
        "--tokenizer",
        type=Path,
        default=BUNDLED_MODEL,
        metavar="FOLDER",
        help="Default: the bundled model's.",
    )
    add("--drafters", type=_names, default=COMPARED, metavar="RULES", help=f"Default: {','.join(COMPARED)}")
    add(
        "--cost-curve",
        action="append",
        metavar="FILE",
        help="What steps cost: a curve, a result document with one, or the name of one that is built in: "
        f"{', '.join(built_in())}. May be repeated. Default: all built in.",
    )
    add(
        "--num-draft-tokens",
        type=argument_types.count,
        default=31,
        help="Most tokens of the server's drafts.",
    )
    add("--chats", type=argument_types.count, default=20, help="Of each workload and prompt length.")
    add(
        "--prompt-tokens",
        type=argument_types.levels,
        metavar="N,M",
        help="Lengths, where a workload has them.",
    )
    add("--edits", type=_count_or_none, default=60, help="Generated edits of files.")
    add("--prose", type=_count_or_none, default=40, help="Documents, the second half given the first.")
    add("--traps", type=_count_or_none, default=4, help="Prompts that promise what does not come.")
    add("--kind", choices=KINDS, default="", help="Only generated edits of this kind.")
    add("--seed", type=int, default=1, help="Of everything that is generated.")
    add("--processes", type=argument_types.count, default=_num_processors(), help="At most so many at once.")
    add(
        "--calibrate", action="store_true", help="Print how often each bucket of the suffix drafter is right."
    )
    outputs.add_arguments(parser, "Write a row for each rule and curve.")


def run(arguments: argparse.Namespace) -> int:
    """Replay, print, and return the exit status."""
    console = outputs.make_console(_WIDTH)
    try:
        _check(arguments)
        curves = _curves(arguments.cost_curve)
        vocabulary = Vocabulary(arguments.tokenizer)
        with console.status("reading pairs"):
            pairs, sources = collect(arguments, vocabulary)
            settings = Settings(num_draft_tokens=arguments.num_draft_tokens)
            setup = Setup(settings, vocabulary.line_ends)
        _print_sources(console, sources)
        if arguments.calibrate:
            for name in dict.fromkeys(pair.workload for pair in pairs):
                own = [pair for pair in pairs if pair.workload == name]
                console.print(table_of(name or "pairs", calibrate(own, setup, curves[0])))
            return 0
        rows = _replay(console, Job(pairs, tuple(arguments.drafters), curves, setup), arguments.processes)
    except BenchError as fault:
        print(f"reprise bench replay: {fault}", file=sys.stderr)
        return 2
    print_report(console, rows, curves)
    _write(arguments, rows, curves, sources)
    return 0


def main(given: Sequence[str] | None = None) -> int:
    """The same, as `python -m bench.replay`."""
    parser = argparse.ArgumentParser(prog="python -m bench.replay")
    add_arguments(parser)
    given = sys.argv[1:] if given is None else given
    return run(parser.parse_args(given, argparse.Namespace(given=["bench", "replay", *given])))


def _check(arguments: argparse.Namespace) -> None:
    if unknown := [name for name in arguments.drafters if name not in RULES]:
        raise ArgumentsError(f"{', '.join(unknown)}: no such rule; there are {', '.join(RULES)}")
    if arguments.num_draft_tokens > 255:
        raise ArgumentsError("a server drafts 255 tokens at most")


def _curves(asked: Sequence[str] | None) -> tuple[Curve, ...]:
    known = built_in()
    curves: list[Curve] = []
    for name in asked or known:
        curve = known[name] if name in known else read_curve(Path(name))
        same = sum(other.name.split(" #")[0] == curve.name for other in curves)
        curves.append(replace(curve, name=f"{curve.name} #{same + 1}") if same else curve)
    return tuple(curves)


def _replay(console: Console, job: Job, num_processes: int) -> list[dict[str, Any]]:
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(
            f"replaying {count_text(len(job.pairs), 'pair')} by {count_text(len(job.rules), 'rule')}",
            total=1.0,
        )
        found = run_job(job, num_processes, lambda share: progress.update(task, completed=share))
    if not found:
        raise ArgumentsError("none of the pairs is one to measure")
    return rows_of(found, job.rules, job.curves)


def _print_sources(console: Console, sources: Sequence[Source]) -> None:
    for source in sources:
        left_out = f", {source.num_empty} left out for having no answer" if source.num_empty else ""
        console.print(f"{source.name}: {count_text(source.num_pairs, 'pair')}{left_out}", highlight=False)


def _write(
    arguments: argparse.Namespace,
    rows: list[dict[str, Any]],
    curves: Sequence[Curve],
    sources: Sequence[Source],
) -> None:
    section = {"rows": rows, "curves": describe(curves), "sources": [asdict(source) for source in sources]}
    found = document.new_document(document.command_line(arguments), replay=section)
    outputs.write(arguments, found, flat(rows))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else argument_types.count(text)


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
