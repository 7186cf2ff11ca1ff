"""Where findings go: a terminal, or a pipe without a width of its own; and the files that were asked for."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench import argument_types, document
from bench.flat_file import write_rows


def make_console(width: int) -> Console:
    """A console as wide as the terminal; where there is none, of this width in columns."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def make_progress(console: Console) -> Progress:
    """A bar that counts and tells the time left, and is gone when all is done."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True)


def add_arguments(parser: argparse.ArgumentParser, csv_help: str) -> None:
    """Give the parser --json, --csv and --html. csv_help: what the rows are."""
    add = parser.add_argument
    add("--json", type=argument_types.output_file, metavar="FILE", help="Write a result document.")
    add("--csv", type=argument_types.output_file, metavar="FILE", help=csv_help)
    add("--html", type=argument_types.output_file, metavar="FILE", help="Write a page with plots.")


def write(
    arguments: argparse.Namespace, record: document.Document, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write the files that were asked for. rows: flat, for the CSV. Raises OSError."""
    if arguments.json:
        document.write(arguments.json, record)
    if arguments.csv:
        write_rows(arguments.csv, rows)
    if arguments.html:
        # Here, so that commands that draw nothing do not load it.
        from bench.page import write_page

        write_page(arguments.html, [record])
