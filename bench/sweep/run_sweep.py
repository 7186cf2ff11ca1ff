"""`reprise bench sweep`: the command's arguments, and its output files."""

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench import options, outputs
from bench.cost_curves import Curve, CurveError, built_in, read_curve
from bench.errors import ArgumentsError
from bench.sweep import gate, grid, tables
from bench.sweep.parts import PARTS, Row, sweep
from bench.sweep.report import print_report
from bench.workloads import WORKLOADS
from config.setting import SettingsError
from config.settings import SETTINGS, Settings
from drafters.base import TableFileError

_WIDTH = 140

SUMMARY = "Try draft types and lengths, n-gram and table sizes, and gate thresholds, and find the best."
DEFAULT_WORKLOADS = (
    "records", "json_rag", "quotes", "passage", "code", "edits_short", "edits_long", "agent", "free", "trap",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench sweep` to the parser."""
    parser.description = (
        "Answer chats plainly once, then replay the answers under hundreds of settings with the step costs "
        "measured here; the default and the best settings are also measured on the engine. grid: draft type "
        "by draft length by n-gram size. tables: sizes of ngram-mod's table under long traffic of source "
        "files. gate: thresholds of the gate. warm: an n-gram table filled earlier, by the same model or "
        "another with the same vocabulary. Workloads: " + ", ".join(WORKLOADS)
    )
    options.add(
        parser, model=None, workloads=DEFAULT_WORKLOADS, prompts=None, max_tokens=192,
        draft_types=grid.DRAFT_TYPES, num_draft_tokens=grid.LENGTHS, seed=1, **options.OUTPUTS,
    )  # fmt: skip
    add, numbers = parser.add_argument, options.levels
    other = (
        "A model with the same vocabulary, which uses the table that the first one filled. Default: for the "
    )
    add(
        "--other-model",
        type=options.model_folder,
        metavar="DIR",
        help=f"{other}bundled model its draft model.",
    )
    add("--parts", type=options.names, default=PARTS, metavar="NAMES", help=f"Default: {','.join(PARTS)}.")
    add("--chats", type=options.count, default=3, metavar="N", help="Chats of each workload. Default: 3.")
    add("--repeats", type=options.count_or_none, default=2, metavar="N",
        help="Runs of each measurement on the engine; 0: only replay. Default: 2.")  # fmt: skip
    add("--references", action="store_true",
        help="Replay right answers, where there are any, instead of the model's: the results are then the "
        "same for all models with this vocabulary.")  # fmt: skip
    for name, parse, default, text in (
        ("--ngram-sizes", numbers, grid.NGRAM_SIZES, "N-gram sizes of grid and tables."),
        ("--table-entries", numbers, tables.ENTRIES, "Table sizes."),
        (
            "--requests",
            numbers,
            tables.REQUESTS,
            "Requests of the tables' traffic, of about 5,500 tokens each.",
        ),
        ("--thresholds", _shares, gate.THRESHOLDS, "Gate thresholds."),
    ):
        shown = ",".join(map(str, default))
        add(name, type=parse, default=default, metavar="N,M", help=f"{text} Default: {shown}.")
    add("--measured-requests", type=options.count, default=tables.MEASURED, metavar="N",
        help=f"Requests of each traffic that are replayed. Default: {tables.MEASURED}.")  # fmt: skip
    add("--cost-curve", type=_curve, metavar="FILE",
        help="Step costs of the replay: a file with a curve, a result document, or a built-in curve: "
        f"{', '.join(built_in())}. Default: as measured here.")  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Run the sweep, print, write the files, and return the exit status."""
    return outputs.run_command("reprise bench sweep", _run, arguments)


def _run(arguments: argparse.Namespace) -> int:
    _check(arguments)
    with outputs.Work() as work:
        try:
            results = sweep(arguments, work)
        except TableFileError as fault:
            raise ArgumentsError(str(fault)) from None
    print_report(outputs.make_console(_WIDTH), results["sweep"], Settings())
    outputs.write(arguments, results, [{"part": part, **row} for part, row in _flat(results["sweep"])])
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise ArgumentsError for unknown names, and for numbers that no server accepts."""
    if arguments.references and (arguments.repeats or "warm" in arguments.parts):
        raise ArgumentsError("--references is only for replays: add --repeats 0, leave warm out of --parts")
    known = {"parts": PARTS, "workloads": tuple(WORKLOADS), "draft_types": grid.DRAFT_TYPES}
    for name, names in known.items():
        options.check_names(f"--{name.replace('_', '-')}", getattr(arguments, name), names)
    limits = {
        "num_draft_tokens": SETTINGS["num_draft_tokens"],
        "ngram_sizes": SETTINGS["ngram_size_max"],
        "table_entries": SETTINGS["ngram_table_entries"],
    }
    for name, limit in limits.items():
        for number in getattr(arguments, name):
            try:
                limit.check(number)
            except SettingsError as fault:
                raise ArgumentsError(f"--{name.replace('_', '-')}: {fault}") from None


def _shares(text: str) -> tuple[float, ...]:
    """Parse shares from 0 to 1, separated by commas."""
    try:
        found = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(0 <= share <= 1 for share in found):
        raise argparse.ArgumentTypeError(f"{text} is not a list of numbers from 0 to 1")
    return found


def _curve(text: str) -> Curve:
    try:
        return built_in().get(text) or read_curve(Path(text))
    except CurveError as fault:
        known = ", ".join(built_in())
        raise argparse.ArgumentTypeError(f"{fault}; built-in curves: {known}") from None


def _flat(section: Mapping[str, Any]) -> Iterator[tuple[str, Row]]:
    for part, rows in section.items():
        if isinstance(rows, list):
            yield from ((part, row) for row in rows)
