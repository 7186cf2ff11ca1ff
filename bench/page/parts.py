"""Parts of a section, and what documents have for them.

A part is a dictionary whose "kind" is a function of page.js.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.page.charts import SHARES, Row, is_number

Document = Mapping[str, Any]
Rows = list[dict[str, Any]]
Part = dict[str, Any]
Built = tuple[str, list[Part]] | None
"""A sentence that sums a section up, and its parts; None without data."""


def rows_of(document: Document, section: str, part: str = "rows") -> Rows:
    """Return copies of the rows of a section."""
    inside = document.get(section)
    rows = inside.get(part) if isinstance(inside, Mapping) else None
    return [dict(row) for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def label(rows: Rows, name: str, first: str, **others: str) -> None:
    """Set a field to that of another field, and of further fields whose values vary among the rows.

    others: how the further fields are written, such as streams="{} streams".
    """
    varied = [field for field in others if len({row.get(field) for row in rows}) > 1]
    for row in rows:
        texts = [others[field].format(row[field]) for field in varied if row.get(field)]
        row[name] = ", ".join([str(row.get(first)), *texts])


def extremes(rows: Sequence[Row], *about: str) -> str:
    """Say in which rows the speedup is highest and lowest, by some of their fields."""
    known = sorted((row for row in rows if is_number(row.get("speedup"))), key=lambda row: row["speedup"])
    if not known:
        return ""
    lowest, highest = (
        f"{row['speedup']:.2f} ({', '.join(str(row[name]) for name in about if row.get(name))})"
        for row in (known[0], known[-1])
    )
    return f"The highest speedup is {highest}, the lowest {lowest}."


def table(title: str, rows: Sequence[Row]) -> Part:
    """Return a table of all fields of the rows that are not nested."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if any(row.get(name) is not None for row in rows)
        and not any(isinstance(row.get(name), list | Mapping) for row in rows)
    ]
    columns = [{"name": name, "label": name.replace("_", " "), "format": _format(name)} for name in names]
    shown = [{name: row[name] for name in names if name in row} for row in rows]
    return {"kind": "table", "title": title, "columns": columns, "rows": shown}


def _format(name: str) -> str | None:
    if "speedup" in name.split("_") or name in ("predicted", "measured"):
        return "times"
    return "share" if name in SHARES or name.endswith("_share") or name == "of_best_width" else None


def advice(title: str, items: Any) -> list[Part]:
    """Return a list of sentences as parts; none without sentences."""
    return [{"kind": "list", "title": title, "items": [str(i) for i in items]}] if items else []


def note_part(text: str) -> Part:
    """Return a sentence in small type."""
    return {"kind": "note", "text": text}


def positions(rows: Sequence[Row], *names: str) -> Rows:
    """Return a point for each position in the draft, with some fields of its row."""
    return [
        {name: row[name] for name in names} | {"position": at, "accepted": share}
        for row in rows
        for at, share in enumerate(row.get("acceptance_by_position") or (), 1)
        if share is not None
    ]
