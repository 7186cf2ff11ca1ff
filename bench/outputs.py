"""What commands print and write: the console, progress, errors, and the files."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from bench import document, tables
from bench.errors import ArgumentsError, BenchError


def make_console(width: int) -> Console:
    """Return a console as wide as the terminal, or of this width in columns if there is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def report(
    arguments: argparse.Namespace,
    record: document.Document,
    rows: Sequence[tables.Row],
    columns: Sequence[tables.Column],
    title: str = "",
    notes: Iterable[str] = (),
    *,
    width: int = 120,
    group: str = "workload",
) -> None:
    """Print the table and the machine, and write the files that the user asked for. Raises OSError."""
    console = make_console(width)
    tables.print_rows(console, rows, columns, title, notes, group)
    finish(console, arguments, record, rows)


def finish(
    console: Console, arguments: argparse.Namespace, record: document.Document, rows: Sequence[tables.Row]
) -> None:
    """Print the machine, and write the files that the user asked for. rows: for the CSV. Raises OSError."""
    machine = ", ".join(f"{key} {value}" for key, value in record["machine"].items())
    console.print(machine, highlight=False, markup=False)
    if arguments.json:
        document.write(arguments.json, record)
    if getattr(arguments, "csv", None):
        tables.write_csv(arguments.csv, rows)
    if getattr(arguments, "html", None):
        # Imported here, so that it is loaded only when a page is written.
        from bench.page import write_page

        write_page(arguments.html, [record])


def run_command(name: str, run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run a command and return its exit status; after an error, 2 for wrong arguments, 1 for a failure."""
    try:
        return run(arguments)
    except (BenchError, OSError, ValueError, RuntimeError) as fault:
        print(f"{name}: {fault}", file=sys.stderr)
        return 2 if isinstance(fault, ArgumentsError | OSError | ValueError) else 1


class Work:
    """Shows the progress of work with a known weight: a bar in a terminal, otherwise a line per label."""

    def __init__(self, weight: float = 0.0, console: Console | None = None) -> None:
        self.weight = weight
        console = console or Console(stderr=True)
        self._progress = Progress(console=console, transient=True, disable=not console.is_terminal)
        self._progress.add_task("")
        (self._task,) = self._progress.tasks

    def begin(self, label: str) -> None:
        """Show what is running now."""
        task, text = self._task, escape(label)
        if self._progress.disable and text != task.description:
            share = min(1.0, task.completed / self.weight) if self.weight else 0.0
            left = f", about {(task.elapsed or 0.0) * (1 / share - 1):.0f} s left" if share else ""
            line = f"{label} ({100 * share:.0f} % done{left})"
            self._progress.console.print(line, highlight=False, markup=False)
        self._progress.update(task.id, description=text, total=self.weight)

    def stage(self, label: str, weight: float) -> Callable[[], None]:
        """Begin a stage with its own total weight; return a function to call after each unit of it."""
        self.weight = weight
        self._progress.reset(self._task.id)
        self.begin(label)
        return self.advance

    def advance(self, weight: float = 1.0) -> None:
        """Add finished work of this weight."""
        self._progress.update(self._task.id, advance=weight, total=self.weight)

    def __enter__(self) -> "Work":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
