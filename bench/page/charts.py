"""Vega-Lite charts as plain dictionaries: dots, lines, points and cells, with menus and legends to press."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Spec = dict[str, Any]

SHARES = ("acceptance", "drafted_share", "known", "occupancy", "overwritten", "coverage", "accepted")
"""Measures that are shares, shown as percentages."""

MEASURES = {
    "speedup": "speedup over plain decoding", "decode_tps": "tokens per second while decoding",
    "tokens_per_s": "tokens per second", "tokens_per_forward": "tokens per forward pass",
    "acceptance": "share of drafted tokens accepted",
    "drafted_share": "share of the answer that was drafted",
    "coverage": "share of the answer that was drafted and accepted",
    "ttft_ms": "milliseconds to the first token", "inter_token_ms": "milliseconds between tokens",
    "drafter_us_per_token": "microseconds of drafting per token",
}  # fmt: skip
"""What plots can show, by the names in rows."""

ABOVE_PLAIN = {"type": "quantitative", "scale": {"domainMid": 1, "range": ["#e8833a", "#f3f1ea", "#4aa3ea"]}}
_SHOWS_SHARE = " || ".join(f"measure == '{name}'" for name in SHARES)


def is_number(value: Any) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def known(rows: Sequence[Row], *names: str) -> list[str]:
    """Return the names of measures that at least one row has as a number."""
    return [name for name in names or MEASURES if any(is_number(row.get(name)) for row in rows)]


def chart(
    title: str,
    mark: str,
    rows: Sequence[Row],
    x: str,
    y: str,
    series: str = "",
    panel: str | None = None,
    *,
    measures: Sequence[str] = (),
    menus: Mapping[str, str] | None = None,
    about: Sequence[str] = (),
    titles: tuple[str | None, str | None] = (None, None),
    scales: tuple[Spec, Spec] = ({}, {"zero": False}),
    x_type: str = "quantitative",
    layers: Sequence[Spec] = (),
    note: str = "",
    width: int | None = None,
    **own: Any,
) -> Spec:
    """Return a chart, a part of the page.

    mark: "dots", "lines", "points" or "cells", see below. panel: a plot for each of this field's values.
    measures: what the field named value shows; the reader chooses. menus: fields by which the reader filters,
    with the names of their menus. about: more fields of tooltips. layers: drawn below the marks.
    width: minimum width of each panel. own: arguments of the mark.
    """
    menus = menus or {}
    rows = [{name: v for name, v in row.items() if not isinstance(v, list | Mapping)} for row in rows]
    params = [menu(f"by_{field}", name, rows, field) for field, name in menus.items()]
    transform: list[Spec] = [{"filter": f"datum['{field}'] == by_{field}"} for field in menus]
    if measures:
        bind = {"input": "select", "options": measures, "name": "Show"}
        bind["labels"] = [MEASURES.get(name, name.replace("_", " ")) for name in measures]
        params.insert(0, {"name": "measure", "value": measures[0], "bind": bind})
        transform += [
            {"calculate": f"datum[measure + '{suffix}']", "as": name}
            for name, suffix in {"value": "", "low": "_low", "high": "_high", "best": "_best"}.items()
        ]
    names = [name for name in (panel, y, series, x, *menus, *measures, *about) if name and name != "value"]
    tooltip = [
        {"field": name, "title": name.replace("_", " ")}
        | ({"format": ".1%"} if name in SHARES else {"format": ".3~g"} if name in MEASURES else {})
        for name in dict.fromkeys(names)
        if all(name in row for row in rows)
    ]
    axes = {}
    for name, field, scale, heading in zip("xy", (x, y), scales, titles, strict=True):
        axes[name] = {"field": field, "type": "quantitative", "title": heading, "scale": scale}
        if field == "value" and measures:
            axes[name]["axis"] = {"labelExpr": f"format(datum.value, ({_SHOWS_SHARE}) ? '.0%' : ',.3~r')"}
        elif field in SHARES:
            axes[name]["axis"] = {"format": ".0%"}
    axes["x"]["type"] = x_type
    if mark == "dots":
        view = _dots(rows, axes, series, tooltip, measures[0], **own)
    elif mark == "cells":
        view = _cells(rows, axes, series, tooltip, **own)
    else:
        view = _lines(axes, series, tooltip, has_lines=mark == "lines")
    view["layer"] = [*layers, *view["layer"]]
    spec: Spec = {"data": {"values": rows}, "params": params, "transform": transform}
    if panel is None:
        spec |= view
    else:
        spec |= {"facet": {"field": panel, "type": "nominal", "sort": None}, "spec": view}
        spec |= {"resolve": {"axis": {"x": "independent"}}} if mark == "cells" else {}
    return {"kind": "chart", "title": title, "note": note, "spec": spec, "panel": width}


def menu(name: str, label: str, rows: Sequence[Row], field: str) -> Spec:
    """Return a parameter that the reader sets to one of a field's values, with a menu."""
    options = list(dict.fromkeys(row.get(field) for row in rows))
    return {
        "name": name, "value": options[0], "bind": {"input": "select", "options": options, "name": label}
    }  # fmt: skip


def _by_series(series: str) -> Spec:
    return {
        "color": {"field": series, "type": "nominal"},
        "opacity": {"condition": {"param": "shown", "value": 1}, "value": 0.08},
    }


def _switch(series: str) -> Spec:
    return {"name": "shown", "select": {"type": "point", "fields": [series]}, "bind": "legend"}


def _dots(
    rows: Sequence[Row],
    axes: Spec,
    series: str,
    tooltip: Sequence[Spec],
    measure: str,
    is_sorted: bool = True,
) -> Spec:
    """Draw a dot for each row, in a band for y and a lane for its series; the best band comes first.

    NAME_low and NAME_high of the chosen measure are drawn as its range, and NAME_best as a tick.
    """
    label, x = axes["y"]["field"], axes["x"] | {"scale": {"zero": False}}
    best: dict[Any, float] = {}
    for row in rows:
        best[row.get(label)] = max(best.get(row.get(label), 0), row.get(measure) or 0)
    order = sorted(best, key=best.__getitem__, reverse=True) if is_sorted else None
    y = {"field": label, "type": "nominal", "title": None, "sort": order}
    bands = {"y": y, "yOffset": {"field": series, "type": "nominal"}}
    shape = {"shape": {"field": series, "type": "nominal", "legend": None}, "tooltip": tooltip}
    colored = _by_series(series)
    marks: dict[str, tuple[Spec, Spec]] = {
        "low": ({"type": "rule", "strokeWidth": 3, "aria": False}, {"x2": {"field": "high"}} | colored),
        "best": ({"type": "tick", "thickness": 2, "aria": False}, {}),
        "value": ({"type": "point", "filled": True, "size": 70}, shape | colored),
    }
    layers: list[Spec] = [
        {
            "transform": [{"filter": f"isValid(datum.{field})"}], "mark": mark,
            "encoding": bands | {"x": x | {"field": field}} | encoding,
        }
        for field, (mark, encoding) in marks.items()
    ]  # fmt: skip
    layers[-1]["params"] = [_switch(series)]
    plain = rule("x", 1)
    plain["transform"] = [{"filter": "measure == 'speedup' || measure == 'tokens_per_forward'"}]
    plain["encoding"]["x"] = x | {"field": "at"}
    count = len(best) * (1 + len({row.get(series) for row in rows}))
    return {"height": 15 * count, "layer": [plain, *layers]}


def _lines(axes: Spec, series: str, tooltip: Sequence[Spec], has_lines: bool = True) -> Spec:
    """Draw points, joined by lines."""
    mark: Spec = {"type": "line", "point": {"size": 45}, "strokeWidth": 1.6}
    encoding = axes | _by_series(series) | {"tooltip": tooltip}
    if not has_lines:
        mark = {"type": "point", "filled": True}
        encoding["shape"] = {"field": series, "type": "nominal"}
    return {"height": 220, "layer": [{"params": [_switch(series)], "mark": mark, "encoding": encoding}]}


def _cells(
    rows: Sequence[Row],
    axes: Spec,
    series: str,
    tooltip: Sequence[Spec],
    text: str = "",
    tint: Spec = ABOVE_PLAIN,
    sort: str | None = None,
) -> Spec:
    """Draw a tinted cell with a text for each row. series: the field that tints it. text: another field."""
    for axis in axes.values():
        axis |= {"type": "ordinal", "sort": sort, "scale": {}}
    axes["x"]["axis"] = {"labelAngle": 0}
    written = {"field": text} if text else {"field": series, "format": ".2f"}
    shade = {"color": {"field": series, "legend": None} | tint, "tooltip": tooltip}
    return {
        "height": 26 * len({row[axes["y"]["field"]] for row in rows}), "encoding": axes,
        "layer": [
            {"mark": {"type": "rect", "cornerRadius": 3}, "encoding": shade},
            {"mark": {"type": "text", "color": "#111", "aria": False}, "encoding": {"text": written}},
        ],
    }  # fmt: skip


def rule(axis: str, value: float) -> Spec:
    """Return a layer with a line at one value of an axis."""
    encoding = {axis: {"field": "at", "type": "quantitative"}}
    return {
        "data": {"values": [{"at": value}]},
        "mark": {"type": "rule", "aria": False},
        "encoding": encoding,
    }


def line(x: str, y: str, filtered: str = "true", group: str = "") -> Spec:
    """Return a layer with the least-squares line of y over x. filtered: a condition. group: a field."""
    encoding = {axis: {"field": name, "type": "quantitative"} for axis, name in (("x", x), ("y", y))}
    fit = {"regression": y, "on": x, "groupby": [group] if group else []}
    mark = {"type": "line", "aria": False, "strokeDash": [5, 4], "color": "gray"}
    return {"transform": [{"filter": filtered}, fit], "mark": mark, "encoding": encoding}
