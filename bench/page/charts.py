"""Vega-Lite charts as plain dictionaries: dots, lines, points and cells, with menus and legends to press."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Spec = dict[str, Any]

SHARES = ("acceptance", "drafted_share", "known", "occupancy", "overwritten", "coverage", "accepted")
"""Fields that are shares, shown as percentages."""

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

TITLES = MEASURES | {
    "num_draft_tokens": "draft length", "position": "position in the draft", "speed": "tokens per second",
    "width": "width: tokens in one forward pass", "cost": "cost relative to width 1", "ngrams": "n-gram size",
    "series": None, "case": None, "workload": None, "chats": None, "value": None, "by": None, "label": None,
}  # fmt: skip
"""Titles of axes that are not the name of their field."""

TINTS = {
    "speedup": {"domainMid": 1, "range": ["#e8833a", "#f3f1ea", "#4aa3ea"]},
    "parity": {"domain": ["PASS", "FAIL"], "range": ["#bfdcf3", "#f2914f"]},
}
"""The scales of colors of cells, by their field."""

_TYPES = {"dots": ("Q", "N"), "cells": ("O", "O"), "lines": ("Q", "Q"), "points": ("Q", "Q")}
"""Types of x and y, by the mark; as in Altair: quantitative, nominal or ordinal."""


def is_number(value: Any) -> bool:
    """Return whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def chart(
    title: str,
    mark: str,
    rows: Iterable[Row],
    x: str,
    y: str,
    series: str,
    panel: str = "",
    *,
    measures: Iterable[str] = MEASURES,
    menus: Sequence[str] = (),
    about: Sequence[str] = (),
    layers: Sequence[Spec] = (),
    text: str = "",
    note: str = "",
) -> Iterator[Spec]:
    """Yield a chart, a part of the page, if there are rows for it.

    mark: dots, a lane for each series in a band for y, the best band first; lines; points; or cells, tinted
    by the series, with a text. x, y: fields, with a type if it is not the usual one: "turn:O". panel: a plot
    for each of this field's values. measures: what the field named value shows; the reader chooses.
    menus: fields by which the reader filters. about: more fields of tooltips. layers: drawn below the marks.
    """
    rows = [{name: v for name, v in row.items() if not isinstance(v, list | Mapping)} for row in rows]
    is_chosen = "value" in (x, y)
    known = [name for name in measures if is_chosen and any(is_number(row.get(name)) for row in rows)]
    if not rows or (is_chosen and not known):
        return
    params = [menu("measure", "Show", known)] if known else []
    params += [menu(f"by_{field}", field, (row.get(field) for row in rows)) for field in menus]
    suffixes = {"value": "", "low": "_low", "high": "_high", "best": "_best"} if known else {}
    transform: list[Spec] = [{"filter": f"datum['{field}'] == by_{field}"} for field in menus]
    transform += [
        {"calculate": f"datum[measure + '{suffix}']", "as": name} for name, suffix in suffixes.items()
    ]
    axes = {name: _axis(field, kind) for name, field, kind in zip("xy", (x, y), _TYPES[mark], strict=True)}
    fields = panel, axes["y"]["field"], series, axes["x"]["field"], *menus, *known, *about
    tooltip = [_tip(name) for name in dict.fromkeys(fields) if all(name in row for row in rows)]
    if mark == "dots":
        rows.sort(key=lambda row: row.get(known[0]) or 0, reverse=True)
        view = _dots(axes, series, tooltip)
    elif mark == "cells":
        view = _cells(axes, series, tooltip, text)
    else:
        view = _lines(axes, series, tooltip, mark)
    bands, lanes = (len({row.get(field) for row in rows}) for field in (axes["y"]["field"], series))
    view["height"] = {"dots": 15 * bands * (1 + lanes), "cells": 26 * bands}.get(mark, 220)
    view["layer"] = [*layers, *view["layer"]]
    if panel:
        view = {"facet": {"field": panel, "type": "nominal", "sort": None}, "spec": view}
    else:
        view |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    spec = {"data": {"values": rows}, "params": params, "transform": transform, **view}
    yield {"kind": "chart", "title": title, "note": note, "spec": spec}


def menu(name: str, label: str, options: Iterable[Any]) -> Spec:
    """Return a parameter that the reader sets to one of some values with a menu, at first to the first."""
    options = list(dict.fromkeys(options))
    labels = [MEASURES.get(one, str(one)) for one in options]
    bind = {"input": "select", "options": options, "labels": labels, "name": label.replace("_", " ")}
    return {"name": name, "value": options[0], "bind": bind}


def rule(axis: str, value: float) -> Spec:
    """Return a layer with a line at one value of an axis."""
    mark = {"type": "rule", "aria": False}
    return {"data": {"values": [{}]}, "mark": mark, "encoding": {axis: {"datum": value}}}


def line(x: str, y: str, filtered: str = "true", group: str = "", **more: Any) -> Spec:
    """Return a layer with the least-squares line of y over x. filtered: a condition. group: a field."""
    encoding = {axis: {"field": name, "type": "quantitative"} for axis, name in (("x", x), ("y", y))}
    fit = {"regression": y, "on": x, "groupby": [group] if group else []}
    mark = {"type": "line", "aria": False, "strokeDash": [5, 4], "color": "gray"}
    return {"transform": [{"filter": filtered}, fit], "mark": mark, "encoding": encoding, **more}


def _axis(given: str, usual: str) -> Spec:
    field, _, own = given.partition(":")
    type_ = {"Q": "quantitative", "N": "nominal", "O": "ordinal"}[own or usual]
    axis: Spec = {"field": field, "type": type_, "title": TITLES.get(field, field.replace("_", " "))}
    if field == "value":
        label = f"format(datum.value, indexof({[*SHARES]}, measure) < 0 ? ',.3~r' : '.0%')"
        axis["axis"] = {"labelExpr": label}
    elif type_ == "ordinal" or field in SHARES:
        axis["axis"] = {"labelAngle": 0} if type_ == "ordinal" else {"format": ".0%"}
    return axis | ({"scale": {"zero": False}} if type_ == "quantitative" else {})


def _tip(name: str) -> Spec:
    form = ".1%" if name in SHARES else ".3~g" if name in MEASURES else None
    return {"field": name, "title": name.replace("_", " ")} | ({"format": form} if form else {})


def _by_series(series: str) -> Spec:
    """Return encodings by which series have colors and shapes; those not pressed in the legend fade."""
    fading = {"condition": {"param": "shown", "value": 1}, "value": 0.08}
    field = {"field": series, "type": "nominal"}
    return {"color": field, "shape": field | {"legend": None}, "opacity": fading}


def _switch(series: str) -> list[Spec]:
    return [{"name": "shown", "select": {"type": "point", "fields": [series]}, "bind": "legend"}]


def _dots(axes: Spec, series: str, tooltip: Sequence[Spec]) -> Spec:
    """Draw dots, NAME_low and NAME_high of the chosen measure as its range, and NAME_best as a tick."""
    lane = {"field": series, "type": "nominal"}
    bands = {"y": {"sort": None} | axes["y"], "yOffset": lane}
    marks: dict[str, tuple[Spec, Spec]] = {
        "low": ({"type": "rule", "strokeWidth": 3, "aria": False}, {"x2": {"field": "high"}, "color": lane}),
        "best": ({"type": "tick", "thickness": 2, "aria": False}, {}),
        "value": ({"type": "point", "filled": True, "size": 70}, {"tooltip": tooltip} | _by_series(series)),
    }
    layers: list[Spec] = [
        {"mark": mark, "encoding": bands | {"x": axes["x"] | {"field": field}} | encoding}
        for field, (mark, encoding) in marks.items()
    ]
    layers[-1]["params"] = _switch(series)
    is_ratio = {"filter": "measure == 'speedup' || measure == 'tokens_per_forward'"}
    return {"layer": [rule("x", 1) | {"transform": [is_ratio]}, *layers]}


def _lines(axes: Spec, series: str, tooltip: Sequence[Spec], mark: str) -> Spec:
    """Draw points, joined by lines if the mark is "lines"."""
    joined = {"type": "line", "point": {"size": 45}, "strokeWidth": 1.6}
    drawn = joined if mark == "lines" else {"type": "point", "filled": True}
    encoding = axes | _by_series(series) | {"tooltip": tooltip}
    if mark == "points":
        encoding["shape"] = encoding["color"]
    return {"layer": [{"params": _switch(series), "mark": drawn, "encoding": encoding}]}


def _cells(axes: Spec, series: str, tooltip: Sequence[Spec], text: str) -> Spec:
    """Draw tinted cells with a text."""
    kind = "quantitative" if series == "speedup" else "nominal"
    color = {"field": series, "type": kind, "scale": TINTS[series], "legend": None}
    shade = {"color": color, "tooltip": tooltip}
    written = {"field": text} if text else {"field": series, "format": ".2f"}
    layers = [
        {"mark": {"type": "rect", "cornerRadius": 3}, "encoding": shade},
        {"mark": {"type": "text", "color": "#111", "aria": False}, "encoding": {"text": written}},
    ]
    return {"encoding": axes, "layer": layers}
