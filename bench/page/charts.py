"""The parts of a section as plain dictionaries: Vega-Lite charts, tables and advice; and rows for them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from reprise.bench.tables import format_value

Document = Mapping[str, Any]
Row = dict[str, Any]
Rows = list[Row]
Spec = dict[str, Any]
Parts = Iterator[Spec | None]
"""None is a part without data."""

MEASURES = {
    "tokens_per_s": "tokens per second", "speedup": "speedup over plain decoding",
    "decode_tps": "tokens per second while decoding", "tokens_per_forward": "tokens per forward pass",
    "acceptance": "share of drafted tokens accepted",
    "drafted_share": "share of the answer that was drafted",
    "coverage": "share of the answer that was drafted and accepted",
    "ttft_ms": "milliseconds to the first token", "inter_token_ms": "milliseconds between tokens",
    "drafter_us_per_token": "microseconds of drafting per token",
    "known": "share of tokens that a table knows", "occupancy": "share of a table that is occupied",
    "overwritten": "share of writes that replace another token",
}  # fmt: skip
"""Measures that plots can show, by the names in rows. The first one that the rows have is shown first."""

ABOUT = (
    "workload", "num_draft_tokens", "low", "high", "n", "ms", "plain_tps", "measured_speedup",
    "replayed_speedup", "rule", "requests", "failed", "error", "parity", "margin",
)  # fmt: skip
"""More fields that tooltips show."""

TITLES = MEASURES | {
    "num_draft_tokens": "draft length", "position": "position in the draft", "ngrams": "n-gram size",
    "width": "width: tokens in one forward pass", "cost": "cost relative to width 1",
    "accepted": "share of these tokens accepted",
}  # fmt: skip
"""Titles of fields whose name does not say enough."""

SHARES = [name for name, title in TITLES.items() if title.startswith("share ")]
"""Fields that are shown as percentages."""

_SPEEDS = {"domainMid": 1, "range": ["#e8833a", "#f3f1ea", "#4aa3ea"]}
_EQUAL = {"domain": ["PASS", "FAIL"], "range": ["#bfdcf3", "#f2914f"]}
TINTS: dict[str, Spec] = {
    "speedup": {"type": "quantitative", "legend": None, "scale": _SPEEDS},
    "parity": {"type": "nominal", "legend": None, "scale": _EQUAL},
}
"""How cells are tinted, by field."""

MARKS: dict[str, list[tuple[Spec, dict[str, str]]]] = {
    "dots": [
        ({"type": "rule", "strokeWidth": 3, "aria": False}, {"x": "low", "x2": "high"}),
        ({"type": "tick", "thickness": 2, "aria": False, "color": "var(--ink)"}, {"x": "best"}),
        ({"type": "point", "filled": True, "size": 70}, {}),
    ],
    "points": [
        ({"type": "rule", "aria": False}, {"y": "low", "y2": "high"}),
        ({"type": "point", "filled": True}, {}),
    ],
    "lines": [({"type": "line", "point": {"size": 45}, "strokeWidth": 1.6}, {})],
    "cells": [
        ({"type": "rect", "cornerRadius": 3}, {}),
        ({"type": "text", "color": "#111", "aria": False}, {"text": "text"}),
    ],
}
"""The marks of charts from bottom to top, with the fields that they show instead of x and y.

A mark without a color of its own has that of its series, and a tooltip.
"""


@dataclass(frozen=True)
class Axes:
    """The fields of rows that a chart shows, and by which its reader filters.

    x, y: fields; "value" stands for the measure that the reader chooses. panel: the field for each of whose
    values there is a plot. menus: fields with a menu to filter by.
    """

    x: str
    y: str
    series: str
    panel: str = ""
    menus: Sequence[str] = ()


def chart(
    title: str,
    mark: str,
    rows: Iterable[Row],
    axes: Axes,
    *,
    layers: Sequence[Spec] = (),
    note: str = "",
) -> Spec | None:
    """Return a chart of rows; None if no row can be shown.

    mark: "dots", with a band for each value of y, the best first, and a lane in it for each series; "lines";
    "points"; or "cells", tinted by the series, with the text of the field "text". Bars and ticks are drawn
    where a row has NAME_low, NAME_high and NAME_best of a measure, or low and high. layers: drawn below the
    marks.
    """
    x, y, series, panel, menus = axes.x, axes.y, axes.series, axes.panel, axes.menus
    rows = _flat(rows)
    is_chosen = "value" in (x, y)
    known = [name for name in MEASURES if is_chosen and any(_is_number(row.get(name)) for row in rows)]
    if not rows or (is_chosen and not known):
        return None
    params = [_menu("measure", "Show", known)] if known else []
    params += [_menu(f"by_{field}", field, (row.get(field) for row in rows)) for field in menus]
    ends = {"value": "", "low": "_low", "high": "_high", "best": "_best"} if known else {}
    transform: list[Spec] = [{"filter": f"datum['{field}'] == by_{field}"} for field in menus]
    transform += [{"calculate": f"datum[measure + '{end}']", "as": name} for name, end in ends.items()]
    drawn = {name: _axis(field, mark, rows) for name, field in (("x", x), ("y", y))}
    if mark == "dots":
        rows.sort(key=lambda row: row.get(known[0]) or 0, reverse=True)
        drawn["y"]["sort"] = None
        drawn["yOffset"] = {"field": series, "type": "nominal"}
        layers = [rule("x", 1, "measure == 'speedup' || measure == 'tokens_per_forward'"), *layers]
    fields = dict.fromkeys([panel, y, series, x, *menus, *MEASURES, *ABOUT])
    tooltip = [_tip(name) for name in fields if all(name in row for row in rows)]
    bands, lanes = (len({row.get(field) for row in rows}) for field in (y, series))
    height = {"dots": 15 * bands * (1 + lanes), "cells": 26 * bands}.get(mark, 220)
    view: Spec = {"height": height, "layer": [*layers, *_marks(mark, drawn, series, tooltip)]}
    if panel:
        view = {"facet": {"field": panel, "type": "nominal", "sort": None}, "spec": view}
    else:
        view |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    spec = {"data": {"values": rows}, "params": params, "transform": transform, **view}
    return {"kind": "chart", "title": title, "note": note, "spec": spec}


def _menu(name: str, label: str, options: Iterable[Any]) -> Spec:
    """Return a parameter that the reader sets with a menu, at first to the first option."""
    options = list(dict.fromkeys(options))
    labels = [MEASURES.get(one, str(one)) for one in options]
    bind = {"input": "select", "options": options, "labels": labels, "name": label.replace("_", " ")}
    return {"name": name, "value": options[0], "bind": bind}


def _axis(field: str, mark: str, rows: Sequence[Row]) -> Spec:
    """Return an axis, without a title if its texts or a menu say what it shows."""
    is_text = any(isinstance(row.get(field), str) for row in rows)
    title = None if is_text or field == "value" else TITLES.get(field, field.replace("_", " "))
    axis = {"field": field, "title": title}
    # Thresholds grow by factors, but are drawn at equal distances.
    if is_text or mark == "cells" or field in ("turn", "threshold"):
        return axis | {"type": "ordinal", "axis": {"labelAngle": 0}}
    scale = {"type": "log", "base": 2} if field == "entries" else {"zero": False}
    form = {"format": ".0%"} if field in SHARES else {}
    if field == "value":
        form = {"labelExpr": f"format(datum.value, indexof({SHARES}, measure) < 0 ? ',.3~r' : '.0%')"}
    return axis | {"type": "quantitative", "scale": scale, "axis": form}


def _tip(name: str) -> Spec:
    form = ".1%" if name in SHARES else ".3~g" if name in MEASURES else None
    return {"field": name, "title": name.replace("_", " ")} | ({"format": form} if form else {})


def _marks(mark: str, axes: Spec, series: str, tooltip: Sequence[Spec]) -> list[Spec]:
    """Return the layers of a chart's marks. Names in a legend can be pressed, and the others fade."""
    color = {"field": series} | TINTS.get(series, {"type": "nominal"})
    layers: list[Spec] = []
    for drawn, fields in MARKS[mark]:
        own = {channel: axes.get(channel, {}) | {"field": name} for channel, name in fields.items()}
        shade = {} if "color" in drawn else {"color": color, "tooltip": tooltip}
        if mark != "cells" and shade:
            shade["opacity"] = {"condition": {"param": "shown", "value": 1}, "value": 0.08}
        layers.append({"mark": drawn, "encoding": axes | own | shade})
    if mark != "cells":
        # A chart takes its legend from its first layer, which must be the one that listens to it.
        select = {"type": "point", "fields": [series]}
        layers[0]["params"] = [{"name": "shown", "select": select, "bind": "legend"}]
        layers[-1]["encoding"]["shape"] = color | {"legend": None}
    return layers


def rule(axis: str, value: float, shown: str = "true") -> Spec:
    """Return a layer with a line at one value of an axis, "x" or "y". shown: the condition to draw it."""
    drawn = {"mark": {"type": "rule", "aria": False}, "encoding": {axis: {"datum": value}}}
    return {"data": {"values": [{}]}, "transform": [{"filter": shown}], **drawn}


def line(x: str, y: str, filtered: str = "true", group: str = "") -> Spec:
    """Return a layer with the least-squares line of y over x.

    filtered: the condition for rows to count. group: the field for each of whose values there is a line.
    """
    encoding = {axis: {"field": name, "type": "quantitative"} for axis, name in (("x", x), ("y", y))}
    fit = {"regression": y, "on": x, "groupby": [group] if group else []}
    mark = {"type": "line", "aria": False, "strokeDash": [5, 4], "color": "gray"}
    return {"transform": [{"filter": filtered}, fit], "mark": mark, "encoding": encoding}


def advice(title: str, sentences: Iterable[str | None] | None) -> Spec | None:
    """Return the part of a section that lists sentences; None without any."""
    known = [one for one in sentences or () if one]
    return {"kind": "advice", "title": title, "sentences": known} if known else None


def tables(**named: Iterable[Row]) -> Parts:
    """Yield a table for each list of rows, with all fields that are not nested; None for an empty list."""
    for title, rows in named.items():
        rows = _flat(rows)
        names = [one for one in dict.fromkeys(chain(*rows)) if any(row.get(one) is not None for row in rows)]
        numbers = [all(_is_number(row.get(name) or 0) for row in rows) for name in names]
        cells = [[_shown(name, row.get(name)) for name in names] for row in rows]
        title = f"{title.replace('_', ' ').capitalize()} as a table"
        part = {"kind": "table", "title": title, "names": names, "numbers": numbers, "rows": cells}
        yield part if rows else None


def _flat(rows: Iterable[Row]) -> Rows:
    """Return copies of rows without their nested values."""
    return [{name: v for name, v in row.items() if not isinstance(v, list | Mapping)} for row in rows]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(name: str, value: Any) -> str:
    if _is_number(value) and name in SHARES:
        return f"{value:.1%}"
    return format_value(value, "text" if not _is_number(value) or isinstance(value, float) else "0")


def rows_of(document: Document, section: str, part: str = "rows") -> Rows:
    """Return copies of the rows in a part of a document's section; none if the document lacks it."""
    return [dict(row) for row in (document.get(section) or {}).get(part) or ()]


def label(rows: Rows, name: str, first: str, **others: str) -> Rows:
    """Set the field `name` of all rows to the value of `first`, followed by the other fields that vary.

    others: the format of each other field, such as streams="{} streams".
    """
    varied = [field for field in others if len({row.get(field) for row in rows}) > 1]
    for row in rows:
        texts = [others[field].format(row[field]) for field in varied if row.get(field)]
        row[name] = ", ".join([str(row.get(first)), *texts])
    return rows
