"""Tables of rows: in a terminal, in Markdown, and as CSV."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]
Form = str | Callable[[Any], str]
"""How a value is written: digits after the point ("2"), "%", "text", or a function of the value."""


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


def interval(row: Row, low: str = "low", high: str = "high", digits: int = 2) -> str:
    """Write the interval between two fields of a row, such as "1.20 to 1.40"; a dash if one is missing."""
    ends = row.get(low), row.get(high)
    return "-" if None in ends else f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"


def print_rows(
    console: Console,
    rows: Sequence[Row],
    columns: Sequence[Column],
    title: str = "",
    notes: Iterable[str] = (),
    group: str = "workload",
) -> None:
    """Print rows, and notes below. group: the field whose values are set apart by lines."""
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
    for note in notes:
        style = "red" if note.startswith("FAIL") else "dim"
        console.print(note, style=style, highlight=False, markup=False)


def pivoted(
    rows: Sequence[Row], keys: Sequence[Column], field: str, cell: Callable[[Row], str]
) -> tuple[list[Row], list[Column]]:
    """Return rows and columns of a table with a row per combination of keys, and a column per field value.

    cell: writes the cell of a row.
    """
    table: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        values = {str(one.name): one.value(row) for one in keys}
        table.setdefault(tuple(values.values()), values)[str(row[field])] = cell(row)
    names = dict.fromkeys(str(row[field]) for row in rows)
    return list(table.values()), [*keys, *(Column(name, name) for name in names)]


def markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return rows as a Markdown table."""
    headings = [one.heading.replace("-\n", "").replace("\n", " ") for one in columns]
    lines = [headings, *([one.text(row) for one in columns] for row in rows)]
    first, *others = [f"| {' | '.join(line)} |\n" for line in lines]
    return f"{first}|{'---|' * len(columns)}\n{''.join(others)}"


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV, with all fields of any row; nested values are written as JSON. Raises OSError."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, dict.fromkeys(name for row in rows for name in row))
        writer.writeheader()
        for row in rows:
            is_flat = {name: isinstance(one, str | float | int | None) for name, one in row.items()}
            writer.writerow({name: one if is_flat[name] else json.dumps(one) for name, one in row.items()})
