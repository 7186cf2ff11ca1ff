"""The output of commands: the console, progress, errors, and the files."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

from reprise.bench import document, tables
from reprise.bench.errors import ArgumentsError, BenchError

LINE_EVERY_S = 60.0
"""Seconds after which another line says how far the work is, where there is no terminal."""


def make_console(width: int) -> Console:
    """Return a console as wide as the terminal, or of this width in columns if there is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


@dataclass(frozen=True)
class Table:
    """How rows are printed. width: columns of text where there is no terminal.

    group: the field whose values are set apart by lines.
    """

    columns: Sequence[tables.Column]
    title: str = ""
    notes: Iterable[str] = ()
    width: int = 120
    group: str = "workload"


def report(
    arguments: argparse.Namespace,
    result: document.Document,
    rows: Sequence[tables.Row],
    table: Table,
) -> None:
    """Print the table and the machine, and write the files that the user asked for. Raises OSError."""
    console = make_console(table.width)
    tables.print_rows(console, rows, table.columns, table.title, table.notes, table.group)
    finish(console, arguments, result, rows)


def finish(
    console: Console, arguments: argparse.Namespace, result: document.Document, rows: Sequence[tables.Row]
) -> None:
    """Print the machine, and write the files that the user asked for. rows: for the CSV. Raises OSError."""
    machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    console.print(machine, highlight=False, markup=False)
    if arguments.json:
        document.write(arguments.json, result)
    if getattr(arguments, "csv", None):
        tables.write_csv(arguments.csv, rows)
    if getattr(arguments, "html", None):
        # Imported here, so that it is loaded only when a page is written.
        from reprise.bench.page import write_page

        write_page(arguments.html, [result])


def run_command(name: str, run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    """Run a command and return its exit status; after an error, 2 for wrong arguments, 1 for a failure."""
    try:
        return run(arguments)
    except (BenchError, OSError, ValueError, RuntimeError) as fault:
        print(f"{name}: {fault}", file=sys.stderr)
        return 2 if isinstance(fault, ArgumentsError | OSError | ValueError) else 1


class Work:
    """Shows the progress of work: a bar in a terminal, otherwise a line for each part, and for each minute.

    left: units of work left in each part, by the part's label; "" stands for all parts that are not listed.
    A unit is expected to take as long as the finished units of its part did, or, if there are none, as those
    of all parts.
    """

    def __init__(self, left: Mapping[str, float] | None = None, console: Console | None = None) -> None:
        self.left = dict(left or {})
        # By part: seconds, and the units that took them.
        self._taken: dict[str, tuple[float, float]] = {}
        self._label, self._share, self._is_planned = "", 0.0, True
        self._first_share = 0.0
        self._began_at = self._shown_at = monotonic()
        self._console = console or Console(stderr=True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            _Left(self),
        )
        is_hidden = not self._console.is_terminal
        self._progress = Progress(*columns, console=self._console, transient=True, disable=is_hidden)
        self._task = self._progress.add_task("", total=1.0)

    def plan(self, left: Mapping[str, float]) -> None:
        """Set the parts that are still to be done, and drop the times of earlier parts. left: see Work."""
        self.left, self._taken = dict(left), {}

    def begin(self, label: str) -> None:
        """Show that the part of this label begins."""
        self._began_at, self._is_planned = monotonic(), True
        self._show(label, 0.0)

    def stage(self, label: str, weight: float) -> Callable[[], None]:
        """Begin the only part that is left, of `weight` units; return a function to call after each unit."""
        self.plan({label: weight})
        self.begin(label)
        return self.advance

    def advance(self, weight: float = 1.0) -> None:
        """Count `weight` units of the running part as finished."""
        part, now = self._part, monotonic()
        seconds, units = self._taken.get(part, (0.0, 0.0))
        self._taken[part] = seconds + now - self._began_at, units + weight
        self.left[part] = max(0.0, self.left.get(part, 0.0) - weight)
        self._began_at, self._is_planned = now, True
        self._show(self._label, 0.0)

    def show(self, label: str, share: float) -> None:
        """Show work that plan() does not list, and the share of it that is done.

        May be called on any thread, while the others wait.
        """
        if label != self._label:
            self._began_at, self._is_planned, self._first_share = monotonic(), False, share
        self._show(label, share)

    @property
    def left_s(self) -> float | None:
        """The estimated seconds that are left; None before there is anything to estimate them by."""
        if not (self._taken if self._is_planned else self._share > self._first_share):
            return None
        running_s = monotonic() - self._began_at
        left_s = sum(units * self._unit_s(part) for part, units in self.left.items()) if self._taken else 0.0
        if not self._is_planned:
            return left_s + running_s * (1 - self._share) / (self._share - self._first_share)
        if not self.left.get(self._part):
            return left_s
        # What takes longer than expected takes longer still, nobody knows by how much.
        unit_s = self._unit_s(self._part)
        return left_s - unit_s + abs(unit_s - running_s)

    @property
    def done_share(self) -> float:
        """The share of the whole time that is over; the share that show() was given, if left_s is None."""
        if self.left_s is None:
            return self._share
        taken_s = sum(seconds for seconds, _ in self._taken.values()) + monotonic() - self._began_at
        return taken_s / (taken_s + self.left_s) if taken_s else 0.0

    @property
    def _part(self) -> str:
        return self._label if self._label in self.left else ""

    def _unit_s(self, part: str) -> float:
        seconds, units = self._taken.get(part) or map(sum, zip(*self._taken.values(), strict=True))
        return seconds / units

    def _show(self, label: str, share: float) -> None:
        is_new = label != self._label
        self._label, self._share = label, share
        self._progress.update(self._task, description=label, completed=self.done_share)
        if self._progress.disable and (is_new or monotonic() - self._shown_at >= LINE_EVERY_S):
            self._shown_at = monotonic()
            left = f", {format_left(self.left_s)}" if self.left_s is not None else ""
            line = f"{label} ({100 * self.done_share:.0f} % done{left})"
            self._console.print(line, highlight=False, markup=False)

    def __enter__(self) -> "Work":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


class _Left(ProgressColumn):
    """The time that is left."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work

    def render(self, task: Task) -> Text:  # noqa: ARG002
        """See ProgressColumn."""
        return Text(format_left(self._work.left_s) if self._work.left_s is not None else "")


def format_left(seconds: float) -> str:
    """Write the time that is left in seconds, minutes or hours, rounded as an estimate should be."""
    if seconds < 90:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left" if seconds < 5400 else f"about {seconds / 3600:.1f} h left"
