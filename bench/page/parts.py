"""Parts of a section, and what documents have for them.

A part is a dictionary whose "kind" is a function of page.js.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.page.charts import SHARES, Row

Document = Mapping[str, Any]
Part = dict[str, Any]
Built = tuple[str, list[Part]] | None
"""A sentence that sums a section up, and its parts; None without data."""


def rows_of(document: Document, section: str, part: str = "rows") -> list[dict[str, Any]]:
    """Return the rows of a section that are rows."""
    inside = document.get(section)
    rows = inside.get(part) if isinstance(inside, Mapping) else None
    return [dict(row) for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def table(title: str, rows: Sequence[Row], without: Sequence[str] = ()) -> Part:
    """Return a table of all fields of the rows that are not nested."""
    fields = dict.fromkeys(name for row in rows for name in row)
    found: dict[str, list[Any]] = {name: [row.get(name) for row in rows] for name in fields}
    names = [
        name
        for name, values in found.items()
        if name not in without
        and any(value is not None for value in values)
        and not any(isinstance(value, list | Mapping) for value in values)
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


def by_position(rows: Sequence[Row], *names: str) -> list[dict[str, Any]]:
    """Return a point for each position in the draft, with some fields of its row."""
    return [
        {name: row[name] for name in names} | {"position": at, "accepted": share}
        for row in rows
        for at, share in enumerate(row.get("acceptance_by_position") or (), 1)
        if share is not None
    ]
