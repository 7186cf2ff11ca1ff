"""`reprise bench sweep`: the command's arguments, and its output files."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import argument_types, outputs
from bench.cost_curves import Curve, CurveError, built_in, read_curve
from bench.errors import ArgumentsError, BenchError
from bench.sweep import gate, grid, tables
from bench.sweep.parts import PARTS, Bars, Row, sweep
from bench.sweep.report import print_report
from bench.workloads import WORKLOADS
from config.setting import SettingsError
from config.settings import SETTINGS, Settings
from drafters.base import TableFileError
from engine.model.loading import ModelError

_WIDTH = 140

SUMMARY = "Try draft types and lengths, n-gram and table sizes, and gate thresholds, and find the best."
DEFAULT_WORKLOADS = "records,json_rag,quotes,passage,code,edits_short,edits_long,agent,free,trap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `reprise bench sweep` to the parser."""
    parser.description = (
        "Answer chats plainly once, then replay the answers under hundreds of settings with the step costs "
        "measured here; the default and the best settings are also measured on the engine. grid: draft type "
        "by draft length by n-gram size. tables: sizes of ngram-mod's table under long traffic of source "
        "files. gate: thresholds of the gate. warm: an n-gram table filled earlier, by the same model or "
        "another with the same vocabulary. Workloads: " + ", ".join(WORKLOADS)
    )
    add, count, numbers = parser.add_argument, argument_types.count, argument_types.levels
    add("--model", type=argument_types.model_folder, metavar="DIR", help="Default: the bundled model.")
    add(
        "--other-model",
        type=argument_types.model_folder,
        metavar="DIR",
        help="A model with the same vocabulary, which uses the table that the first one filled. Default: for "
        "the bundled model its draft model.",
    )
    add("--parts", type=_names, default=PARTS, metavar="NAMES", help=f"Default: {','.join(PARTS)}.")
    add(
        "--workloads",
        type=_names,
        default=_names(DEFAULT_WORKLOADS),
        metavar="NAMES",
        help=f"Default: {DEFAULT_WORKLOADS}.",
    )
    add("--prompts", type=argument_types.input_file, metavar="FILE", help="Your own chats instead.")
    add("--chats", type=count, default=3, metavar="N", help="Chats of each workload. Default: 3.")
    add(
        "--max-tokens",
        type=count,
        default=192,
        metavar="N",
        help="Maximum tokens of an answer. Default: 192.",
    )
    add(
        "--repeats",
        type=_count_or_none,
        default=2,
        metavar="N",
        help="Runs of each measurement on the engine; 0: only replay. Default: 2.",
    )
    add(
        "--references",
        action="store_true",
        help="Replay right answers, where there are any, instead of the model's: the results are then the "
        "same for all models with this vocabulary.",
    )
    add(
        "--draft-types",
        type=_names,
        default=grid.DRAFT_TYPES,
        metavar="NAMES",
        help=f"Draft types of the grid. Default: {','.join(grid.DRAFT_TYPES)}.",
    )
    add(
        "--num-draft-tokens",
        type=numbers,
        default=grid.LENGTHS,
        metavar="K,L",
        help=f"Draft lengths of the grid. {_default(grid.LENGTHS)}",
    )
    add(
        "--ngram-sizes",
        type=numbers,
        default=grid.NGRAM_SIZES,
        metavar="N,M",
        help=f"N-gram sizes of grid and tables. {_default(grid.NGRAM_SIZES)}",
    )
    add(
        "--table-entries",
        type=numbers,
        default=tables.ENTRIES,
        metavar="N,M",
        help=f"Table sizes. {_default(tables.ENTRIES)}",
    )
    add(
        "--requests",
        type=numbers,
        default=tables.REQUESTS,
        metavar="N,M",
        help=f"Requests of the tables' traffic, of about 5,500 tokens each. {_default(tables.REQUESTS)}",
    )
    add(
        "--measured-requests",
        type=count,
        default=tables.MEASURED,
        metavar="N",
        help=f"Requests of each traffic that are replayed. Default: {tables.MEASURED}.",
    )
    add(
        "--thresholds",
        type=_shares,
        default=gate.THRESHOLDS,
        metavar="S,T",
        help=f"Gate thresholds. {_default(gate.THRESHOLDS)}",
    )
    add(
        "--cost-curve",
        type=_curve,
        metavar="FILE",
        help="Step costs of the replay: a file with a curve, a result document, or a built-in curve: "
        f"{', '.join(built_in())}. Default: as measured here.",
    )
    add("--seed", type=int, default=1, metavar="N", help="Seed of everything that is generated. Default: 1.")
    outputs.add_arguments(parser, "Write all rows to FILE, with a column for the part.")


def run(arguments: argparse.Namespace) -> int:
    """Run the sweep, print, write the files, and return the exit status."""
    console = outputs.make_console(_WIDTH)
    try:
        _check(arguments)
        with outputs.make_progress(console) as progress:
            results = sweep(arguments, Bars(progress, console))
    except (BenchError, TableFileError, ModelError) as fault:
        print(f"reprise bench sweep: {fault}", file=sys.stderr)
        return 2
    print_report(console, results["sweep"], Settings())
    outputs.write(arguments, results, [{"part": part, **row} for part, row in _flat(results["sweep"])])
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise ArgumentsError for unknown names, and for numbers that no server accepts."""
    if arguments.references and (arguments.repeats or "warm" in arguments.parts):
        raise ArgumentsError("--references is only for replays: add --repeats 0, leave warm out of --parts")
    known = {"parts": PARTS, "workloads": tuple(WORKLOADS), "draft_types": grid.DRAFT_TYPES}
    for name, names in known.items():
        for one in getattr(arguments, name):
            if one not in names:
                raise ArgumentsError(f"{one} is not one of {', '.join(names)}")
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


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _count_or_none(text: str) -> int:
    return 0 if text == "0" else argument_types.count(text)


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


def _default(numbers: Sequence[float]) -> str:
    return f"Default: {','.join(f'{number:g}' if number < 1 else f'{number:.0f}' for number in numbers)}."


def _flat(section: Mapping[str, Any]) -> Iterator[tuple[str, Row]]:
    for part, rows in section.items():
        if isinstance(rows, list):
            yield from ((part, row) for row in rows)
