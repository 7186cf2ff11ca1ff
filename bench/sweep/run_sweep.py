"""`reprise bench sweep`: its arguments, its parts one after the other, its files."""

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

SUMMARY = "Try draft types, lengths, n-gram and table sizes, and gate thresholds, and tell which are best."
DEFAULT_WORKLOADS = "records,json_rag,quotes,passage,code,edits_short,edits_long,agent,free,trap"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise bench sweep` takes."""
    parser.description = (
        "Take plain answers from the model once, then replay them under hundreds of settings at the costs of "
        "steps that were measured here; what the default and the best settings give is measured on the "
        "engine as well. grid: draft type by draft length by n-gram size. tables: sizes of ngram-mod's table "
        "under a long traffic of source files. gate: thresholds of the gate. warm: a table that was filled "
        "before, by the same model or another of its vocabulary. Workloads: " + ", ".join(WORKLOADS)
    )
    add, count, numbers = parser.add_argument, argument_types.count, argument_types.levels
    add("--model", type=argument_types.model_folder, metavar="FOLDER", help="Default: the bundled one.")
    add(
        "--other-model",
        type=argument_types.model_folder,
        metavar="FOLDER",
        help="A model of the same vocabulary, to use the table that the first one filled. Default: for the "
        "bundled model its draft model.",
    )
    add("--parts", type=_names, default=PARTS, metavar="NAMES", help=f"Default: {','.join(PARTS)}")
    add("--workloads", type=_names, default=_names(DEFAULT_WORKLOADS), metavar="NAMES")
    add("--prompts", type=argument_types.input_file, metavar="FILE", help="Your own chats, instead of those.")
    add("--chats", type=count, default=3, metavar="N", help="Of each workload. Default: 3")
    add("--max-tokens", type=count, default=192, metavar="N", help="Of one answer. Default: 192")
    add(
        "--repeats",
        type=_count_or_none,
        default=2,
        metavar="N",
        help="Runs on the engine of what is measured there; 0 leaves it at the replays. Default: 2",
    )
    add(
        "--references",
        action="store_true",
        help="Replay right answers where there are any, instead of what the model says: the same for all "
        "models of a vocabulary.",
    )
    add("--draft-types", type=_names, default=grid.DRAFT_TYPES, metavar="NAMES", help="Of the grid.")
    add("--num-draft-tokens", type=numbers, default=grid.LENGTHS, metavar="K,L", help=_shown(grid.LENGTHS))
    add("--ngram-sizes", type=numbers, default=grid.NGRAM_SIZES, metavar="N,M", help=_shown(grid.NGRAM_SIZES))
    add("--table-entries", type=numbers, default=tables.ENTRIES, metavar="N,M", help=_shown(tables.ENTRIES))
    add(
        "--requests",
        type=numbers,
        default=tables.REQUESTS,
        metavar="N,M",
        help=f"Lengths of the tables' traffic; a request is some 5,500 tokens. {_shown(tables.REQUESTS)}",
    )
    add("--measured-requests", type=count, default=tables.MEASURED, metavar="N", help="Of each traffic.")
    add("--thresholds", type=_shares, default=gate.THRESHOLDS, metavar="S,T", help=_shown(gate.THRESHOLDS))
    add(
        "--cost-curve",
        type=_curve,
        metavar="FILE",
        help="What replayed steps cost: a curve's file, a result document, or the name of one that is built "
        f"in: {', '.join(built_in())}. Default: as measured here.",
    )
    add("--seed", type=int, default=1, metavar="N", help="Of everything that is generated. Default: 1")
    outputs.add_arguments(parser, "Write all rows; `part` tells which.")


def run(arguments: argparse.Namespace) -> int:
    """Sweep, print, and return the exit status."""
    console = outputs.make_console(_WIDTH)
    try:
        _check(arguments)
        with outputs.make_progress(console) as progress:
            found = sweep(arguments, Bars(progress, console))
    except (BenchError, TableFileError, ModelError) as fault:
        print(f"reprise bench sweep: {fault}", file=sys.stderr)
        return 2
    print_report(console, found["sweep"], Settings())
    outputs.write(arguments, found, [{"part": part, **row} for part, row in _flat(found["sweep"])])
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Raise ArgumentsError for names that are unknown, and numbers that no server takes."""
    if arguments.references and (arguments.repeats or "warm" in arguments.parts):
        raise ArgumentsError("--references is for replays alone: add --repeats 0, leave warm out of --parts")
    known = {"parts": PARTS, "workloads": tuple(WORKLOADS), "draft_types": grid.DRAFT_TYPES}
    for name, names in known.items():
        for one in getattr(arguments, name):
            if one not in names:
                raise ArgumentsError(f"{one} is none of {', '.join(names)}")
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
    """Shares of a prompt, separated by commas."""
    try:
        found = tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(0 <= share <= 1 for share in found):
        raise argparse.ArgumentTypeError(f"{text} is no list of numbers from 0 to 1")
    return found


def _curve(text: str) -> Curve:
    try:
        return built_in().get(text) or read_curve(Path(text))
    except CurveError as fault:
        known = ", ".join(built_in())
        raise argparse.ArgumentTypeError(f"{fault}; curves that are built in: {known}") from None


def _shown(numbers: Sequence[float]) -> str:
    return f"Default: {','.join(f'{number:g}' if number < 1 else f'{number:.0f}' for number in numbers)}"


def _flat(section: Mapping[str, Any]) -> Iterator[tuple[str, Row]]:
    for part, rows in section.items():
        if isinstance(rows, list):
            yield from ((part, row) for row in rows)
