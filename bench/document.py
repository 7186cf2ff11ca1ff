"""Result documents, and the tables of their rows: in a terminal and in Markdown.

{"reprise": version, "date": ISO, "machine": ..., "model": ..., "command": "reprise bench ...",
"cost_curve": [{"width": 1, "seconds": ...}, ...], and one or more of SECTIONS, each with "rows"}
"""

import argparse
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reprise.bench.experiment import ArgumentsError, BenchError
from reprise.config.version import VERSION
from reprise.engine.interface.models import ModelInfo
from reprise.engine.speculative.costs.step_costs import StepCosts

Document = dict[str, Any]
Row = Mapping[str, Any]
Form = str | Callable[[Any], str]
"""How a value is written: digits after the point ("2"), "%", "text", or a function of the value."""

SECTIONS = ("decode", "sweep", "serve", "replay", "verify")
"""The names of the sections; each command writes one."""

_OF_MODEL = (
    "name", "architecture", "context_tokens", "vocab_size", "num_layers", "num_parameters", "weight_bytes",
    "dtype", "device", "fingerprint",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. name: a field of the rows, or a function of a row. heading: one or two lines.

    trivial: a value so usual that a column with nothing else is left out. is_key: cells are never wrapped.
    """

    name: str | Callable[[Row], Any]
    heading: str
    form: Form = "text"
    trivial: Any = None
    is_key: bool = False

    def value(self, row: Row) -> Any:
        """Return a row's value in this column."""
        return self.name(row) if callable(self.name) else row.get(self.name)

    def text(self, row: Row) -> str:
        """Return a row's value in this column as text, without markup."""
        return format_value(self.value(row), self.form)


def format_value(value: Any, form: Form) -> str:
    """Return a value as text; a dash if it is missing."""
    if callable(form):
        return form(value)
    if isinstance(value, float) and form == "text":
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    if value is None or form == "text":
        return "-" if value is None else str(value)
    return f"{100 * value:.0f} %" if form == "%" else f"{value:,.{form}f}"


def interval(row: Row, low: str = "low", high: str = "high") -> str:
    """Write the interval between two fields of a row, such as "1.20 to 1.40"; a dash if one is missing."""
    ends = row.get(low), row.get(high)
    return "-" if None in ends else f"{ends[0]:.2f} to {ends[1]:.2f}"


def markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return rows as a Markdown table."""
    headings = [one.heading.replace("-\n", "").replace("\n", " ") for one in columns]
    lines = [headings, *([one.text(row) for one in columns] for row in rows)]
    first, *others = [f"| {' | '.join(line)} |\n" for line in lines]
    return f"{first}|{'---|' * len(columns)}\n{''.join(others)}"


def make_console(width: int) -> Console:
    """Return a console as wide as the terminal, or of this width in columns if there is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=width)


def print_rows(
    console: Console, rows: Sequence[Row], columns: Sequence[Column], title: str = "", group: str = "workload"
) -> None:
    """Print rows. group: the field whose values are set apart by lines."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    shown = [one for one in columns if any(one.value(row) != one.trivial for row in rows)]
    for one in shown:
        is_text = all(isinstance(one.value(row), str | Mapping | list | None) for row in rows)
        table.add_column(
            one.heading, justify="left" if is_text else "right", overflow="fold", vertical="bottom",
            no_wrap=one.is_key,
        )  # fmt: skip
    for row, following in pairwise([*rows, {}]):
        is_last = row.get(group) != following.get(group)
        table.add_row(*(Text(one.text(row)) for one in shown), end_section=is_last)
    console.print(table)


def report(
    arguments: argparse.Namespace,
    result: Document,
    notes: Iterable[str] = (),
    console: Console | None = None,
) -> None:
    """Print notes and the machine, and write the files that the user asked for. Raises OSError."""
    console = console or make_console(120)
    for note in notes:
        style = "red" if note.startswith("FAIL") else "dim"
        console.print(note, style=style, highlight=False, markup=False)
    machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    console.print(machine, highlight=False, markup=False)
    if arguments.json:
        write(arguments.json, result)
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


def new_document(
    arguments: argparse.Namespace,
    model: ModelInfo | None = None,
    costs: StepCosts | None = None,
    **sections: Any,
) -> Document:
    """Build a result document, dated now.

    model, costs: the engine's, if one ran; the document has the costs of one-row steps.
    """
    plain_s = costs.seconds(1, 1) if costs else 1.0
    taken = {one: costs.seconds(1, one) for one in costs.widths} if costs else {}
    curve = [{"width": one, "seconds": s, "plain_steps": s / plain_s} for one, s in taken.items()]
    return {
        "reprise": VERSION, "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "model": {name: getattr(model, name) for name in _OF_MODEL} if model else None,
        "command": shlex.join(["reprise", *getattr(arguments, "given", ())]), "cost_curve": curve, **sections,
    }  # fmt: skip


def write(path: Path, document: Document) -> None:
    """Write a document atomically. Raises OSError."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    new.replace(path)


def read(path: Path) -> Document:
    """Read a document. Raises OSError, and ValueError if it is not a result document."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as fault:
        raise ValueError(f"{path} is not JSON: {fault}") from None
    if not isinstance(document, dict) or not any(name in document for name in SECTIONS):
        raise ValueError(f"{path} is not a result document: it has none of {', '.join(SECTIONS)}")
    return document


def describe_machine() -> dict[str, Any]:
    """Return processor, cores, memory, system, versions, and load; nothing that identifies an owner."""
    if sys.platform == "darwin":
        cores = os.cpu_count()
        asked = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
        cpu = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        system = f"macOS {platform.mac_ver()[0]}"
    else:
        # In a container, often fewer than the machine has.
        cores = len(os.sched_getaffinity(0))
        named = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        cpu, system = named[1] if named else "", platform.freedesktop_os_release()["PRETTY_NAME"]
    return {
        "cpu": cpu or platform.machine(), "cores": cores,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{system} {platform.machine()}", "python": platform.python_version(),
        "reprise": VERSION, "mlx": version("mlx"), "mlx_lm": version("mlx-lm"),
        "load_at_start": round(os.getloadavg()[0], 2),
    }  # fmt: skip
