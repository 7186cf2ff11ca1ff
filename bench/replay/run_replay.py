"""Run `reprise bench replay`: compute what drafting would gain, without a model.

Known answers are replayed step by step as an engine would generate them, once per drafting rule. Step costs
are read from a cost curve. So thousands of requests take seconds, and rules can be compared for machines that
are not at hand. The rules are in rules.py, the sources of pairs in sources.py.
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

SUMMARY = "Replay known answers by any drafting rule, without a model, at given step costs."

_DESCRIPTION = """\
Replay known answers step by step, drafting by each rule, and report what it would gain at given step costs.
Needs no model. Without --pairs and --workloads the pairs are generated from a seed: edits of the Python files
installed here, documents, and traps.
"""
_WIDTH = 140


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `reprise bench replay` to the parser."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = _DESCRIPTION
    names = max(map(len, RULES))
    parser.epilog = "rules:\n" + "\n".join(f"  {rule.name:{names}}  {rule.title}" for rule in RULES.values())
    add = parser.add_argument
    add("--pairs", action="append", type=Path, metavar="FILE", help="Pairs as JSON lines; may be repeated.")
    add(
        "--workloads",
        type=_names,
        default=(),
        metavar="NAMES",
        help="Replay the right answers of these workloads' chats.",
    )
    add(
        "--tokenizer",
        type=Path,
        default=BUNDLED_MODEL,
        metavar="FOLDER",
        help="Tokenizer to use. Default: the bundled model's.",
    )
    add(
        "--drafters",
        type=_names,
        default=COMPARED,
        metavar="RULES",
        help=f"Rules to replay. Default: {','.join(COMPARED)}",
    )
    add(
        "--cost-curve",
        action="append",
        metavar="FILE",
        help="Step costs: a curve, a result document that has one, or the name of a built-in curve: "
        f"{', '.join(built_in())}. May be repeated. Default: all built-in curves.",
    )
    add(
        "--num-draft-tokens",
        type=argument_types.count,
        default=31,
        metavar="N",
        help="Maximum draft length of the server's rules. Default: 31.",
    )
    add(
        "--chats",
        type=argument_types.count,
        default=20,
        metavar="N",
        help="Chats per workload and prompt length. Default: 20.",
    )
    add(
        "--prompt-tokens",
        type=argument_types.levels,
        metavar="N,M",
        help="Prompt lengths, for workloads that take them.",
    )
    add("--edits", type=_count_or_none, default=60, metavar="N", help="Generated edits. Default: 60.")
    add(
        "--prose",
        type=_count_or_none,
        default=40,
        metavar="N",
        help="Documents whose second half is replayed after the first. Default: 40.",
    )
    add(
        "--traps",
        type=_count_or_none,
        default=4,
        metavar="N",
        help="Prompts whose matches mislead drafters. Default: 4.",
    )
    add("--kind", choices=KINDS, default="", help="Replay only generated edits of this kind.")
    add("--seed", type=int, default=1, metavar="N", help="Seed of everything that is generated. Default: 1.")
    add(
        "--processes",
        type=argument_types.count,
        default=_num_processors(),
        metavar="N",
        help="Maximum number of processes. Default: the number of processors.",
    )
    add(
        "--calibrate", action="store_true", help="Print how often each bucket of the suffix drafter is right."
    )
    outputs.add_arguments(parser, "Write one row per rule and curve.")


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
    """Run the command as `python -m bench.replay`."""
    parser = argparse.ArgumentParser(prog="python -m bench.replay")
    add_arguments(parser)
    given = sys.argv[1:] if given is None else given
    return run(parser.parse_args(given, argparse.Namespace(given=["bench", "replay", *given])))


def _check(arguments: argparse.Namespace) -> None:
    if unknown := [name for name in arguments.drafters if name not in RULES]:
        raise ArgumentsError(f"{', '.join(unknown)}: no such rule; the rules are {', '.join(RULES)}")
    if arguments.num_draft_tokens > 255:
        raise ArgumentsError("--num-draft-tokens is at most 255, as in the server")


def _curves(names: Sequence[str] | None) -> tuple[Curve, ...]:
    known = built_in()
    curves: list[Curve] = []
    for name in names or known:
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
        results = run_job(job, num_processes, lambda share: progress.update(task, completed=share))
    if not results:
        raise ArgumentsError("none of the pairs is marked to be measured")
    return rows_of(results, job.rules, job.curves)


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
    record = document.new_document(document.command_line(arguments), replay=section)
    outputs.write(arguments, record, flat(rows))


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else argument_types.count(text)


def _num_processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
