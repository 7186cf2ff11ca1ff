"""Vega-Lite charts as plain dictionaries: dots, lines, points and cells, with menus and legends to press."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
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

LINE: Spec = {"type": "line", "point": {"size": 45}, "strokeWidth": 1.6}
POINT: Spec = {"type": "point", "filled": True}
ABOVE_PLAIN: Spec = {
    "type": "quantitative",
    "scale": {"domainMid": 1, "range": ["#e8833a", "#f3f1ea", "#4aa3ea"]},
}


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
    x: str | Spec,
    y: str | Spec,
    series: str,
    panel: str = "",
    *,
    measures: Sequence[str] = (),
    menus: Mapping[str, str] | None = None,
    about: Sequence[str] = (),
    layers: Sequence[Spec] = (),
    note: str = "",
    width: int | None = None,
    **own: Any,
) -> Spec:
    """Return a chart, a part of the page.

    mark: "dots", "lines", "points" or "cells", see below. x, y: a field, or its encoding as in Vega-Lite.
    panel: a plot for each of this field's values. measures: what the field named value shows; the reader
    chooses. menus: fields by which the reader filters, with the names of their menus. about: more fields of
    tooltips. layers: drawn below the marks. width: minimum width of each panel. own: arguments of the mark.
    """
    rows = [{name: v for name, v in row.items() if not isinstance(v, list | Mapping)} for row in rows]
    if mark == "dots":
        rows.sort(key=lambda row: row.get(measures[0]) or 0, reverse=True)
    kinds = {"dots": ("quantitative", "nominal"), "cells": ("ordinal", "ordinal")}.get(
        mark, ("quantitative",) * 2
    )
    axes = {name: _axis(given, kind) for name, given, kind in zip("xy", (x, y), kinds, strict=True)}
    params, transform = [], list[Spec]()
    if measures:
        params.append(menu("measure", "Show", measures))
        for name, suffix in {"value": "", "low": "_low", "high": "_high", "best": "_best"}.items():
            transform.append({"calculate": f"datum[measure + '{suffix}']", "as": name})
    for field, label in (menus or {}).items():
        params.append(menu(f"by_{field}", label, (row.get(field) for row in rows)))
        transform.append({"filter": f"datum['{field}'] == by_{field}"})
    fields = panel, axes["y"]["field"], series, axes["x"]["field"], *(menus or ()), *measures, *about
    tooltip = [_tip(name) for name in dict.fromkeys(fields) if all(name in row for row in rows)]
    view = _MARKS[mark](rows, axes, series, tooltip, **own)
    view["layer"] = [*layers, *view["layer"]]
    if panel:
        view = {"facet": {"field": panel, "type": "nominal", "sort": None}, "spec": view}
        view |= {"resolve": {"axis": {"x": "independent"}}} if mark == "cells" else {}
    spec = {"data": {"values": rows}, "params": params, "transform": transform, **view}
    return {"kind": "chart", "title": title, "note": note, "spec": spec, "panel": width}


def menu(name: str, label: str, options: Iterable[Any]) -> Spec:
    """Return a parameter that the reader sets to one of some values with a menu, at first to the first."""
    options = list(dict.fromkeys(options))
    labels = [MEASURES.get(one, str(one)) for one in options]
    bind = {"input": "select", "options": options, "labels": labels, "name": label}
    return {"name": name, "value": options[0], "bind": bind}


def rule(axis: str, value: float) -> Spec:
    """Return a layer with a line at one value of an axis."""
    mark = {"type": "rule", "aria": False}
    return {"data": {"values": [{}]}, "mark": mark, "encoding": {axis: {"datum": value}}}


def line(x: str, y: str, filtered: str = "true", group: str = "") -> Spec:
    """Return a layer with the least-squares line of y over x. filtered: a condition. group: a field."""
    encoding = {axis: {"field": name, "type": "quantitative"} for axis, name in (("x", x), ("y", y))}
    fit = {"regression": y, "on": x, "groupby": [group] if group else []}
    mark = {"type": "line", "aria": False, "strokeDash": [5, 4], "color": "gray"}
    return {"transform": [{"filter": filtered}, fit], "mark": mark, "encoding": encoding}


def _axis(given: str | Spec, kind: str) -> Spec:
    own = {"type": kind} | ({"field": given} if isinstance(given, str) else given)
    if own["field"] == "value":
        label = f"format(datum.value, indexof({[*SHARES]}, measure) < 0 ? ',.3~r' : '.0%')"
        own |= {"title": None, "axis": {"labelExpr": label}}
    elif own["field"] in SHARES:
        own |= {"axis": {"format": ".0%"}}
    return {"scale": {"zero": False}} | own if own["type"] == "quantitative" else own


def _tip(name: str) -> Spec:
    form = ".1%" if name in SHARES else ".3~g" if name in MEASURES else None
    return {"field": name, "title": name.replace("_", " ")} | ({"format": form} if form else {})


def _by_series(series: str) -> Spec:
    """Return encodings by which series have colors and shapes; those not pressed in the legend fade."""
    fading = {"condition": {"param": "shown", "value": 1}, "value": 0.08}
    field = {"field": series, "type": "nominal"}
    return {"color": field, "shape": field | {"legend": None}, "opacity": fading}


def _switch(series: str) -> Spec:
    return {"name": "shown", "select": {"type": "point", "fields": [series]}, "bind": "legend"}


def _dots(rows: Sequence[Row], axes: Spec, series: str, tooltip: Sequence[Spec]) -> Spec:
    """Draw a dot for each row, in a band for y and a lane for its series; the best band comes first.

    NAME_low and NAME_high of the chosen measure are drawn as its range, and NAME_best as a tick.
    """
    lane = {"field": series, "type": "nominal"}
    bands = {"y": {"sort": None} | axes["y"] | {"title": None}, "yOffset": lane}
    marks: dict[str, tuple[Spec, Spec]] = {
        "low": ({"type": "rule", "strokeWidth": 3, "aria": False}, {"x2": {"field": "high"}, "color": lane}),
        "best": ({"type": "tick", "thickness": 2, "aria": False}, {}),
        "value": ({"type": "point", "filled": True, "size": 70}, {"tooltip": tooltip} | _by_series(series)),
    }
    layers: list[Spec] = [
        {"mark": mark, "encoding": bands | {"x": axes["x"] | {"field": field}} | encoding}
        for field, (mark, encoding) in marks.items()
    ]
    layers[-1]["params"] = [_switch(series)]
    plain = rule("x", 1)
    plain["transform"] = [{"filter": "measure == 'speedup' || measure == 'tokens_per_forward'"}]
    lanes = 1 + len({row.get(series) for row in rows})
    return {"height": 15 * lanes * len({row[axes["y"]["field"]] for row in rows}), "layer": [plain, *layers]}


def _lines(_: Sequence[Row], axes: Spec, series: str, tooltip: Sequence[Spec], mark: Spec = LINE) -> Spec:
    """Draw points, joined by lines unless another mark is given."""
    encoding = axes | _by_series(series) | {"tooltip": tooltip}
    return {"height": 220, "layer": [{"params": [_switch(series)], "mark": mark, "encoding": encoding}]}


def _cells(
    rows: Sequence[Row],
    axes: Spec,
    series: str,
    tooltip: Sequence[Spec],
    text: str = "",
    tint: Spec = ABOVE_PLAIN,
) -> Spec:
    """Draw a tinted cell with a text for each row. series: the field that tints it. text: another field."""
    for axis in axes.values():
        axis.setdefault("sort", None)
    axes["x"]["axis"] = {"labelAngle": 0}
    written = {"field": text} if text else {"field": series, "format": ".2f"}
    shade = {"color": {"field": series, "legend": None} | tint, "tooltip": tooltip}
    layers = [
        {"mark": {"type": "rect", "cornerRadius": 3}, "encoding": shade},
        {"mark": {"type": "text", "color": "#111", "aria": False}, "encoding": {"text": written}},
    ]
    return {"height": 26 * len({row[axes["y"]["field"]] for row in rows}), "encoding": axes, "layer": layers}


_MARKS = {"dots": _dots, "lines": _lines, "points": partial(_lines, mark=POINT), "cells": _cells}
