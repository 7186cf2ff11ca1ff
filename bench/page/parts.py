"""Parts of a section, as page.html writes them, and what documents have for them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]
Document = Mapping[str, Any]
Part = dict[str, Any] | None
"""None without data."""
Parts = Iterator[Part]

SHARES = ("acceptance", "drafted_share", "known", "occupancy", "overwritten", "coverage", "accepted")
"""Fields that are shares, shown as percentages."""


def note(text: str | None) -> Part:
    """Return a sentence in small type, if there is one."""
    return {"kind": "note", "text": text} if text else None


def advice(title: str, sentences: Sequence[str] | None) -> Part:
    """Return a list of sentences, if there are any."""
    return {"kind": "advice", "title": title, "sentences": sentences} if sentences else None


def table(title: str, rows: Rows) -> Part:
    """Return a table of all fields of the rows that are not nested, if there are rows."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if any(row.get(name) is not None for row in rows)
        and not any(isinstance(row.get(name), list | Mapping) for row in rows)
    ]
    numbers = [all(is_number(row.get(name) or 0) for row in rows) for name in names]
    cells = [[_shown(name, row.get(name)) for name in names] for row in rows]
    part = {"kind": "table", "title": title, "names": names, "numbers": numbers, "rows": cells}
    return part if rows else None


def tables(document: Document, section: str, *names: str) -> Parts:
    """Yield tables of the rows of a section, as they are in the document."""
    for name in names:
        yield table(f"{name.replace('_', ' ').capitalize()} as a table", rows_of(document, section, name))


def is_number(value: Any) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(name: str, value: Any) -> str:
    if not is_number(value):
        return "-" if value is None else str(value)
    if name in SHARES or name.endswith("_share"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rows_of(document: Document, section: str, part: str = "rows") -> Rows:
    """Return copies of the rows of a section."""
    return [dict(row) for row in (document.get(section) or {}).get(part) or ()]


def label(rows: Rows, name: str, first: str, **others: str) -> Rows:
    """Set a field to that of another field, and of further fields whose values vary among the rows.

    others: how the further fields are written, such as streams="{} streams".
    """
    varied = [field for field in others if len({row.get(field) for row in rows}) > 1]
    for row in rows:
        texts = [others[field].format(row[field]) for field in varied if row.get(field)]
        row[name] = ", ".join([str(row.get(first)), *texts])
    return rows
