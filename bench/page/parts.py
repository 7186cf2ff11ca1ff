"""Parts of a section, as page.html writes them, and what documents have for them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bench.page.charts import SHARES, Row, is_number

Document = Mapping[str, Any]
Rows = list[dict[str, Any]]
Parts = Iterator[dict[str, Any]]
"""The parts of a section; none without data."""


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


def positions(rows: Iterable[Row], *names: str) -> Rows:
    """Return a point for each position in the draft, with some fields of its row."""
    return [
        {name: row[name] for name in names} | {"position": at, "accepted": share}
        for row in rows
        for at, share in enumerate(row.get("acceptance_by_position") or (), 1)
        if share is not None
    ]


def note(text: str | None) -> Parts:
    """Yield a sentence in small type, if there is one."""
    if text:
        yield {"kind": "note", "text": text}


def advice(title: str, sentences: Any) -> Parts:
    """Yield a list of sentences, if there are any."""
    if sentences:
        yield {"kind": "advice", "title": title, "sentences": sentences}


def table(title: str, rows: Rows) -> Parts:
    """Yield a table of all fields of the rows that are not nested, if there are rows."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if any(row.get(name) is not None for row in rows)
        and not any(isinstance(row.get(name), list | Mapping) for row in rows)
    ]
    if rows:
        numbers = [all(is_number(row.get(name) or 0) for row in rows) for name in names]
        cells = [[_shown(name, row.get(name)) for name in names] for row in rows]
        yield {"kind": "table", "title": title, "names": names, "numbers": numbers, "rows": cells}


def _shown(name: str, value: Any) -> str:
    if not is_number(value):
        return "-" if value is None else str(value)
    if name in SHARES or name.endswith("_share"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
