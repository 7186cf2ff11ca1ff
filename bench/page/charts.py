"""Vega-Lite charts, as plain dictionaries: dots, lines and cells, with menus and pressable legends."""

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Spec = dict[str, Any]

SHARES = ("acceptance", "drafted_share", "known", "occupancy", "overwritten", "coverage")
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


def measures_of(rows: Sequence[Row], names: Sequence[str] = tuple(MEASURES)) -> list[str]:
    """Return the names of measures that at least one row has as a number."""
    return [name for name in names if any(isinstance(row.get(name), int | float) for row in rows)]


def menu(name: str, label: str, options: Sequence[Any], labels: Sequence[str] | None = None) -> Spec:
    """Return a parameter that the reader sets with a menu."""
    bind = {"input": "select", "options": list(options), "name": label}
    return {"name": name, "value": options[0], "bind": bind | ({"labels": list(labels)} if labels else {})}


def tooltip(rows: Sequence[Row], *names: str) -> list[Spec]:
    """Return the fields of a tooltip, of those that rows have; shares and other numbers are formatted."""
    return [
        {"field": name, "title": name.replace("_", " ")}
        | ({"format": ".1%"} if name in SHARES else {"format": ".3~g"} if name in MEASURES else {})
        for name in dict.fromkeys(names)
        if all(name in row for row in rows)
    ]


def _switch(series: str) -> Spec:
    return {"name": "shown", "select": {"type": "point", "fields": [series]}, "bind": "legend"}


def _by_series(series: str) -> Spec:
    return {
        "color": {"field": series, "type": "nominal"},
        "opacity": {"condition": {"param": "shown", "value": 1}, "value": 0.08},
    }


def dots(
    rows: Sequence[Row],
    label: str,
    series: str,
    measures: Sequence[str],
    menus: Mapping[str, str] | None = None,
    about: Sequence[str] = (),
) -> Spec:
    """Draw a dot for each row, in a band for its label and a lane for its series; the best label comes first.

    measures: the reader chooses one; NAME_low and NAME_high are drawn as its range, and NAME_best as a tick.
    menus: fields by which the reader filters, with the names of their menus. about: more fields of tooltips.
    """
    menus = menus or {}
    params = [menu("measure", "Show", measures, [MEASURES.get(name, name) for name in measures])]
    params += [
        menu(f"by_{field}", name, list(dict.fromkeys(row.get(field) for row in rows)))
        for field, name in menus.items()
    ]
    transform: list[Spec] = [{"filter": f"datum['{field}'] == by_{field}"} for field in menus]
    transform += [
        {"calculate": f"datum[measure + '{suffix}']", "as": name}
        for name, suffix in {"shown_value": "", "low": "_low", "high": "_high", "best": "_best"}.items()
    ]
    shares = " || ".join(f"measure == '{name}'" for name in SHARES)
    x = {
        "type": "quantitative",
        "axis": {"labelExpr": f"format(datum.value, ({shares}) ? '.0%' : ',.3~r')"},
        "scale": {"zero": False},
        "title": None,
    }
    best = {
        name: max((row.get(measures[0]) or 0 for row in rows if row.get(label) == name), default=0)
        for name in dict.fromkeys(row.get(label) for row in rows)
    }
    bands = {
        "y": {
            "field": label,
            "type": "nominal",
            "title": None,
            "sort": sorted(best, key=best.__getitem__)[::-1],
        },
        "yOffset": {"field": series, "type": "nominal"},
    }
    dot = {"x": {"field": "shown_value"} | x, "shape": {"field": series, "type": "nominal", "legend": None}}
    dot["tooltip"] = tooltip(rows, label, series, *menus, *measures, *about)
    span = {"x": {"field": "low"} | x, "x2": {"field": "high"}}
    marks: list[tuple[Spec, Spec, str]] = [
        ({"type": "rule", "strokeWidth": 3, "aria": False}, span | _by_series(series), "low"),
        ({"type": "tick", "thickness": 2, "aria": False}, {"x": {"field": "best"} | x}, "best"),
        ({"type": "point", "filled": True, "size": 70}, dot | _by_series(series), "shown_value"),
    ]
    layers: list[Spec] = [
        {"transform": [{"filter": f"isValid(datum.{field})"}], "mark": mark, "encoding": bands | encoding}
        for mark, encoding, field in marks
    ]
    layers[-1]["params"] = [_switch(series)]
    plain: Spec = {
        "data": {"values": [{"plain": 1}]},
        "transform": [{"filter": "measure == 'speedup' || measure == 'tokens_per_forward'"}],
        "mark": {"type": "rule", "aria": False},
        "encoding": {"x": {"field": "plain"} | x},
    }
    return {
        "data": {"values": list(rows)}, "params": params, "transform": transform,
        "height": 15 * len(best) * (1 + len({row.get(series) for row in rows})), "layer": [plain, *layers],
    }  # fmt: skip


def lines(
    rows: Sequence[Row],
    x: str,
    y: str,
    series: str,
    panel: str | None = None,
    *,
    titles: tuple[str, str] = ("", ""),
    menus: Sequence[Spec] = (),
    transform: Sequence[Spec] = (),
    has_lines: bool = True,
    scales: tuple[Spec, Spec] = ({}, {"zero": False}),
    rules: Sequence[Spec] = (),
    about: Sequence[str] = (),
    kind: str = "quantitative",
) -> Spec:
    """Draw points, joined by lines, over two axes; with panel, in one plot for each of its values.

    rules: further layers. scales: of both axes. kind: type of the x axis. about: further fields of tooltips.
    """
    axis = {"format": ".0%"} if y in SHARES or y == "accepted" else {}
    encoding = {
        "x": {"field": x, "type": kind, "title": titles[0], "scale": scales[0]},
        "y": {"field": y, "type": "quantitative", "title": titles[1], "scale": scales[1], "axis": axis},
        "shape": {"field": series, "type": "nominal", "legend": None},
        "tooltip": tooltip(rows, *([panel] if panel else []), series, x, y, *about),
    } | _by_series(series)
    points = {
        "params": [_switch(series)],
        "mark": {"type": "line", "point": {"size": 45}, "strokeWidth": 1.6}
        if has_lines
        else {"type": "point", "filled": True},
        "encoding": encoding
        if not has_lines
        else {name: one for name, one in encoding.items() if name != "shape"},
    }
    view: Spec = {"height": 220, "layer": [*rules, points]}
    shared: Spec = {"data": {"values": list(rows)}, "params": list(menus), "transform": list(transform)}
    if panel is None:
        return shared | view
    return shared | {"facet": {"field": panel, "type": "nominal", "sort": None}, "spec": view}


def cells(
    rows: Sequence[Row],
    x: str,
    y: str,
    value: str,
    panel: str | None = None,
    *,
    text: Spec | None = None,
    color: Spec | None = None,
    titles: tuple[str, str] = ("", ""),
    about: Sequence[str] = (),
) -> Spec:
    """Draw a tinted cell with a text for each row. text, color: encodings; by default of the value."""
    axes = {
        "x": {"field": x, "type": "ordinal", "title": titles[0], "axis": {"labelAngle": 0}, "sort": None},
        "y": {"field": y, "type": "ordinal", "title": titles[1], "sort": None},
    }
    shade = {"field": value, "legend": None} | (color or ABOVE_PLAIN)
    described = tooltip(rows, *([panel] if panel else []), y, x, value, *about)
    layer = [
        {"mark": {"type": "rect", "cornerRadius": 3}, "encoding": {"color": shade, "tooltip": described}},
        {
            "mark": {"type": "text", "color": "#111", "aria": False},
            "encoding": {"text": text or {"field": value, "format": ".2f"}},
        },
    ]
    view = {"height": 26 * len({row[y] for row in rows}), "encoding": axes, "layer": layer}
    data = {"data": {"values": list(rows)}}
    if panel is None:
        return data | view
    return data | {
        "facet": {"field": panel, "type": "nominal", "sort": None},
        "spec": view,
        "resolve": {"axis": {"x": "independent"}},
    }


def rule(axis: str, value: float, dashed: bool = False) -> Spec:
    """Return a layer with a line at one value of an axis."""
    mark = {"type": "rule", "aria": False, "strokeDash": [5, 4] if dashed else [1, 0]}
    return {
        "data": {"values": [{"at": value}]},
        "mark": mark,
        "encoding": {axis: {"field": "at", "type": "quantitative"}},
    }


def segment(points: Sequence[tuple[float, float]], names: tuple[str, str]) -> Spec:
    """Return a layer with a dashed line through points. names: of the fields, which the axes share."""
    values = [dict(zip(names, point, strict=True)) for point in points]
    encoding = {axis: {"field": name, "type": "quantitative"} for axis, name in zip("xy", names, strict=True)}
    mark = {"type": "line", "strokeDash": [5, 4], "color": "gray", "aria": False}
    return {"data": {"values": values}, "mark": mark, "encoding": encoding}
