"""Outputs of a benchmark command: the console, the progress bar, and the JSON, CSV and HTML files."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bench import argument_types, document
from bench.flat_file import write_rows


def make_console(width: int) -> Console:
    """Return a console as wide as the terminal, or of this width in columns if there is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def make_progress(console: Console) -> Progress:
    """Return a progress bar with a count and the time left; it disappears at the end."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True)


def add_arguments(parser: argparse.ArgumentParser, csv_help: str) -> None:
    """Add --json, --csv and --html to the parser. csv_help: help text that says what the rows are."""
    add = parser.add_argument
    add("--json", type=argument_types.output_file, metavar="FILE", help="Write a result document to FILE.")
    add("--csv", type=argument_types.output_file, metavar="FILE", help=csv_help)
    add("--html", type=argument_types.output_file, metavar="FILE", help="Write a report page to FILE.")


def write(
    arguments: argparse.Namespace, record: document.Document, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Write the files that the user asked for. rows: for the CSV. Raises OSError."""
    if arguments.json:
        document.write(arguments.json, record)
    if arguments.csv:
        write_rows(arguments.csv, rows)
    if arguments.html:
        # Imported here, so that it is loaded only when a page is written.
        from bench.page import write_page

        write_page(arguments.html, [record])
