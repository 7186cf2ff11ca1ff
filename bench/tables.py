"""Tables of rows: in a terminal, in Markdown, and as CSV."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

Row = Mapping[str, Any]
Form = str | Callable[[Any], str]
"""How a value is written: digits after the point ("2"), "%", "text", or a function of the value."""

_ENDLESS = 10_000


@dataclass(frozen=True, slots=True)
class Column:
    """A column. name: a field of the rows, or a function of a row. heading: one or two lines.

    trivial: a value so usual that a column with nothing else is left out. is_key: repeated if the columns
    need several tables.
    """

    name: str | Callable[[Row], Any]
    heading: str
    form: Form = "text"
    trivial: Any = None
    is_key: bool = False

    def value(self, row: Row) -> Any:
        """Return the value of a row."""
        return self.name(row) if callable(self.name) else row.get(self.name)

    def text(self, row: Row) -> str:
        """Return the value as text, without markup."""
        return format_value(self.value(row), self.form)


def format_value(value: Any, form: Form) -> str:
    """Return a value as text; a dash if it is missing."""
    if callable(form):
        return form(value)
    if value is None:
        return "-"
    if form == "%":
        return f"{100 * value:.0f} %"
    return str(value) if form == "text" else f"{value:,.{form}f}"


def interval(row: Row, low: str = "low", high: str = "high", digits: int = 2) -> str:
    """Return the ends of an interval; a dash if they are unknown."""
    ends = row.get(low), row.get(high)
    return "-" if None in ends else f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"


def positions(shares: Sequence[float], at: Sequence[int] = (1, 2, 4, 8, 16, 31)) -> str:
    """Return shares by position in the draft as percentages, at some positions."""
    return " ".join(f"{100 * (shares[one - 1] or 0):.0f}" for one in at if one <= len(shares)) or "-"


def print_rows(
    console: Console,
    rows: Sequence[Row],
    columns: Sequence[Column],
    title: str = "",
    notes: Iterable[str] = (),
    group: str = "workload",
) -> None:
    """Print rows, in several tables if the columns do not fit the width, and notes below.

    group: the field whose values are set apart by lines.
    """
    shown = [one for one in columns if any(one.value(row) != one.trivial for row in rows)]
    for part in _parts(console, rows, shown, group):
        table = _table(rows, part, title, group)
        console.print(table if _fits(console, table) else _table(rows, part, title, group, gap=0))
    for note in notes:
        console.print(note, style="dim", highlight=False, markup=False)


def _parts(
    console: Console, rows: Sequence[Row], columns: Sequence[Column], group: str
) -> list[list[Column]]:
    keys = [one for one in columns if one.is_key]
    parts = [list(keys)]
    for one in columns:
        if one.is_key:
            continue
        longer = [*parts[-1], one]
        if len(parts[-1]) > len(keys) and not _fits(console, _table(rows, longer, "", group, gap=0)):
            parts.append(list(keys))
        parts[-1].append(one)
    return parts


def _fits(console: Console, table: Table) -> bool:
    endless = console.options.update(max_width=_ENDLESS)
    return Measurement.get(console, endless, table).maximum <= console.width


def _table(rows: Sequence[Row], columns: Sequence[Column], title: str, group: str, gap: int = 1) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    for one in columns:
        side: Literal["left", "right"] = "left" if _is_text(one, rows) else "right"
        table.add_column(one.heading, justify=side, overflow="fold", vertical="bottom")
    for at, row in enumerate(rows):
        ends = at + 1 == len(rows) or rows[at + 1].get(group) != row.get(group)
        table.add_row(*(_colored(one.text(row)) for one in columns), end_section=ends)
    return table


def _is_text(column: Column, rows: Sequence[Row]) -> bool:
    return all(isinstance(column.value(row), str | Mapping | list | None) for row in rows)


def _colored(text: str) -> str:
    style = {"PASS": "green", "FAIL": "bold red"}.get(text)
    return f"[{style}]{text}[/]" if style else escape(text)


def pivoted(
    rows: Iterable[Row],
    keys: Sequence[Column],
    field: str,
    cell: Callable[[Row], Any],
    heading: str = "{}",
    form: Form = "text",
) -> tuple[list[Row], list[Column]]:
    """Return a table with a row for each combination of keys, and a column for each value of a field."""
    table: dict[tuple[Any, ...], dict[str, Any]] = {}
    names: dict[Any, None] = {}
    for row in rows:
        values = {str(one.name): one.value(row) for one in keys}
        table.setdefault(tuple(values.values()), values)[str(row[field])] = cell(row)
        names[row[field]] = None
    columns = [Column(str(name), heading.format(name), form) for name in names]
    return list(table.values()), [*keys, *columns]


def markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Return rows as a table for documentation."""
    headings = [one.heading.replace("-\n", "").replace("\n", " ") for one in columns]
    cells = [headings, *([one.text(row) for one in columns] for row in rows)]
    first, *others = [f"| {' | '.join(line)} |\n" for line in cells]
    return f"{first}|{'---|' * len(columns)}\n{''.join(others)}"


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV, with all fields of any row; nested values are written as JSON. Raises OSError."""
    # Imported here, because `reprise verify` needs tables and not polars, which is installed for benchmarks.
    import polars as pl

    names = list(dict.fromkeys(name for row in rows for name in row))
    flat = [{name: _flat(row.get(name)) for name in names} for row in rows]
    pl.DataFrame(flat, infer_schema_length=None, strict=False).write_csv(path)


def _flat(value: Any) -> Any:
    if isinstance(value, list | tuple) and not any(isinstance(one, list | tuple | Mapping) for one in value):
        return " ".join(map(str, value))
    return json.dumps(value) if isinstance(value, list | tuple | Mapping) else value
