"""Parts of a section, and what documents have for them.

A part is a dictionary whose "kind" is a function of page.js.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.page.charts import SHARES, Row, Spec

Document = Mapping[str, Any]
Part = dict[str, Any]
Built = tuple[str, list[Part]] | None
"""A sentence that sums a section up, and its parts; None without data."""

TIMES = (
    "speedup", "speedup_low", "speedup_high", "best_width_speedup", "measured_speedup", "predicted",
    "measured",
)  # fmt: skip


def rows_of(document: Document, section: str, part: str = "rows") -> list[dict[str, Any]]:
    """Return the rows of a section that are rows."""
    inside = document.get(section)
    rows = inside.get(part) if isinstance(inside, Mapping) else None
    return [dict(row) for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def is_number(value: Any) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def pick(row: Row, names: Iterable[str]) -> dict[str, Any]:
    """Return some fields of a row."""
    return {name: row[name] for name in names if name in row}


def chart(title: str, spec: Spec, note: str = "", panel: int | None = None) -> Part:
    """Return the part of a chart. panel: minimum width of each of its plots."""
    return {"kind": "chart", "title": title, "note": note, "spec": spec, "panel": panel}


def table(title: str, rows: Sequence[Row], without: Sequence[str] = ()) -> Part:
    """Return a table of all fields of the rows that are not nested."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if name not in without
        and any(row.get(name) is not None for row in rows)
        and not any(isinstance(row.get(name), list | Mapping) for row in rows)
    ]
    columns = [{"name": name, "label": name.replace("_", " "), "format": _format(name)} for name in names]
    return {
        "kind": "table",
        "title": title,
        "columns": columns,
        "rows": [pick(r, names) for r in rows],
    }


def _format(name: str) -> str | None:
    if name in TIMES:
        return "times"
    return "share" if name in SHARES or name.endswith("_share") or name == "of_best_width" else None


def advice(title: str, items: Any) -> list[Part]:
    """Return a list of sentences as parts; none without sentences."""
    return [{"kind": "list", "title": title, "items": [str(i) for i in items]}] if items else []


def note_part(text: str) -> Part:
    """Return a sentence in small type."""
    return {"kind": "note", "text": text}


def day(document: Document) -> str:
    """Return the day of a document."""
    return str(document.get("date") or "an unknown day")[:10]


def measured_on(document: Document) -> str:
    """Return when, where and with which model a document was measured, in a sentence."""
    machine, model = document.get("machine") or {}, document.get("model") or {}
    cores = f", {machine['cores']} cores" if machine.get("cores") else ""
    name = f"; model {model['name']}" if model.get("name") else ""
    return f"Measured on {day(document)} on {machine.get('cpu') or 'an unknown machine'}{cores}{name}."


def by_position(rows: Sequence[Row], case: str, series: str) -> list[dict[str, Any]]:
    """Return a point for each position in the draft."""
    return [
        {case: row[case], series: row[series], "position": at, "accepted": share}
        for row in rows
        for at, share in enumerate(row.get("acceptance_by_position") or (), 1)
        if share is not None
    ]
