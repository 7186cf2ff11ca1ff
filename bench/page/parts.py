"""Parts of a section, as page.html writes them, and what documents have for them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bench.page.charts import SHARES, Row, is_number

Document = Mapping[str, Any]
Rows = list[dict[str, Any]]
Part = dict[str, Any]
Parts = Iterator[Part]
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


def extremes(rows: Iterable[Row], *about: str) -> str:
    """Say in which rows the speedup is highest and lowest, by some of their fields."""
    known = sorted((row for row in rows if is_number(row.get("speedup"))), key=lambda row: row["speedup"])
    if not known:
        return ""
    lowest, highest = (
        f"{row['speedup']:.2f} ({', '.join(str(row[name]) for name in about if row.get(name))})"
        for row in (known[0], known[-1])
    )
    return f"The highest speedup is {highest}, the lowest {lowest}."


def positions(rows: Iterable[Row], *names: str) -> Rows:
    """Return a point for each position in the draft, with some fields of its row."""
    return [
        {name: row[name] for name in names} | {"position": at, "accepted": share}
        for row in rows
        for at, share in enumerate(row.get("acceptance_by_position") or (), 1)
        if share is not None
    ]


def text(kind: str, *sentences: str) -> Part:
    """Return sentences as a part. kind: "lead", or "note" for small type."""
    return {"kind": kind, "text": " ".join(sentences)}


def advice(title: str, items: Any) -> Parts:
    """Yield a list of sentences, if there are any."""
    if items:
        yield {"kind": "advice", "title": title, "items": items}


def table(title: str, rows: Sequence[Row]) -> Parts:
    """Yield a table of all fields of the rows that are not nested, if there are rows."""
    names = [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if any(row.get(name) is not None for row in rows)
        and not any(isinstance(row.get(name), list | Mapping) for row in rows)
    ]
    numeric = [name for name in names if all(is_number(row.get(name) or 0) for row in rows)]
    cells = [[(name in numeric, _shown(name, row.get(name))) for name in names] for row in rows]
    headings = [(name in numeric, name.replace("_", " ")) for name in names]
    if rows:
        yield {"kind": "table", "title": title, "headings": headings, "rows": cells}


def _shown(name: str, value: Any) -> str:
    if value is None or isinstance(value, bool | str):
        return {None: "–", True: "yes", False: "no"}.get(value, value)
    if "speedup" in name.split("_") or name in ("predicted", "measured"):
        return f"{value:.2f}×"
    if name in SHARES or name.endswith("_share") or name == "of_best_width":
        return f"{value:.1%}"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"
