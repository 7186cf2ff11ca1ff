"""The report: one HTML file with interactive plots, drawn from result documents. It fetches nothing.

A section is a function that yields its parts as plain dictionaries: Vega-Lite charts, tables, sample answers.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reprise.bench.document import format_value
from reprise.bench.experiment import Row

if TYPE_CHECKING:
    from jinja2 import Template

FOLDER = Path(__file__).parent

Document = Mapping[str, Any]
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
    "occupancy": "share of a table that is occupied",
}  # fmt: skip
"""Measures that plots can show, by the names in rows. The first one that the rows have is shown first."""

ABOUT = (
    "workload", "num_draft_tokens", "ms", "plain_tps", "rule", "requests", "failed",
    "error", "parity",
)  # fmt: skip
"""More fields that tooltips show."""

TITLES = MEASURES | {
    "num_draft_tokens": "draft length", "position": "position in the draft", "ngram_size": "n-gram size",
    "width": "width: tokens in one forward pass", "cost": "cost relative to width 1",
    "accepted": "share of these tokens accepted",
}  # fmt: skip
"""Titles of fields whose name does not say enough."""

SHARES = [name for name, title in TITLES.items() if title.startswith("share ")]
"""Fields that are shown as percentages."""

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
}
"""The marks of charts from bottom to top, with the fields that they show instead of x and y.

A mark without a color of its own has that of its series, and a tooltip.
"""


class Axes(NamedTuple):
    """The fields of rows that a chart shows; "value" stands for the measure that the reader chooses.

    panel: the field with one plot per value. menus: fields with a filter menu.
    """

    x: str
    y: str
    series: str
    panel: str = ""
    menus: Sequence[str] = ()


def chart(
    title: str, mark: str, rows: Iterable[Row], axes: Axes, layers: Sequence[Spec] = (), note: str = ""
) -> Spec | None:
    """Return a chart of rows; None if no row can be shown.

    mark: "dots", with a band for each value of y, the best first, and a lane in it for each series; "lines";
    or "points". Bars and ticks are drawn where a row has NAME_low, NAME_high and NAME_best of a measure, or
    low and high. layers: drawn below the marks.
    """
    (x, y, series, panel, menus) = axes
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
    drawn = {name: _axis(field, rows) for name, field in (("x", x), ("y", y))}
    if mark == "dots":
        rows.sort(key=lambda row: row.get(known[0]) or 0, reverse=True)
        drawn["y"]["sort"] = None
        drawn["yOffset"] = {"field": series, "type": "nominal"}
        layers = [rule("x", 1, "measure == 'speedup' || measure == 'tokens_per_forward'"), *layers]
    fields = dict.fromkeys([panel, y, series, x, *menus, *MEASURES, *ABOUT])
    tooltip = [_tip(name) for name in fields if all(name in row for row in rows)]
    bands, lanes = (len({row.get(field) for row in rows}) for field in (y, series))
    height = 15 * bands * (1 + lanes) if mark == "dots" else 220
    view: Spec = {"height": height, "layer": [*layers, *_marks(mark, drawn, series, tooltip)]}
    if panel:
        view = {"facet": {"field": panel, "type": "nominal", "sort": None}, "spec": view}
    else:
        view |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
    spec = {"data": {"values": rows}, "params": params, "transform": transform, **view}
    return {"kind": "chart", "title": title, "note": note, "spec": spec}


def _menu(name: str, label: str, options: Iterable[Any]) -> Spec:
    """Return a parameter with a menu, initially at the first option."""
    options = list(dict.fromkeys(options))
    labels = [MEASURES.get(one, str(one)) for one in options]
    bind = {"input": "select", "options": options, "labels": labels, "name": label.replace("_", " ")}
    return {"name": name, "value": options[0], "bind": bind}


def _axis(field: str, rows: Sequence[Row]) -> Spec:
    """Return an axis, untitled if its labels or a menu explain it."""
    is_text = any(isinstance(row.get(field), str) for row in rows)
    title = None if is_text or field == "value" else TITLES.get(field, field.replace("_", " "))
    axis = {"field": field, "title": title}
    if is_text or field == "turn":
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
    color = {"field": series, "type": "nominal"}
    layers: list[Spec] = []
    for drawn, fields in MARKS[mark]:
        own = {channel: axes.get(channel, {}) | {"field": name} for channel, name in fields.items()}
        shade = {} if "color" in drawn else {"color": color, "tooltip": tooltip}
        if shade:
            shade["opacity"] = {"condition": {"param": "shown", "value": 1}, "value": 0.08}
        layers.append({"mark": drawn, "encoding": axes | own | shade})
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

    filtered: the condition for rows to count. group: the field with one line per value.
    """
    encoding = {axis: {"field": name, "type": "quantitative"} for axis, name in (("x", x), ("y", y))}
    fit = {"regression": y, "on": x, "groupby": [group] if group else []}
    mark = {"type": "line", "aria": False, "strokeDash": [5, 4], "color": "gray"}
    return {"transform": [{"filter": filtered}, fit], "mark": mark, "encoding": encoding}


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


def _decode_rows(document: Document) -> Rows:
    """Return the rows of decode that are about all turns, with a series and a case."""
    rows = [row for row in rows_of(document, "decode") if row.get("turn") is None]
    label(rows, "series", "draft_type", num_draft_tokens="max {}", draft_model="{}", strategy="{}",
          costs="{} costs", memory="{}", window="{}")  # fmt: skip
    return label(rows, "case", "workload", prompt_tokens="{}-token prompt")


def speedup(document: Document) -> Parts:
    """Yield the parts about speedups by workload and draft type."""
    note = "At 1: plain decoding. Bars: repeated runs. Ticks: the best fixed draft length, in hindsight."
    yield chart(
        "Workloads by speedup", "dots", _decode_rows(document), Axes("value", "case", "series"), note=note
    )
    yield from tables(all_figures=rows_of(document, "decode"))


def answers(document: Document) -> Parts:
    """Yield the sample answers, beginning with the one that has the largest drafted share."""
    samples = [one for one in rows_of(document, "decode", "samples") if one.get("tokens")]
    for one in samples:
        one["tokens"] = [(text, source or "model") for text, source in one["tokens"]]
        counts = Counter(source for _, source in one["tokens"]).most_common()
        one["shares"] = {source: count / len(one["tokens"]) for source, count in counts}
    samples.sort(key=lambda one: one["shares"].get("model", 0))
    named = [(f"{one['workload']}, {one['draft_type']}", one) for one in samples]
    yield {"kind": "answers", "samples": named} if named else None


def acceptance(document: Document) -> Parts:
    """Yield the chart of acceptance by position."""
    positions = [
        {"case": row["case"], "series": row["series"], "position": at, "accepted": share}
        for row in _decode_rows(document)
        for at, share in enumerate(row.get("acceptance_by_position") or (), 1)
        if share is not None
    ]
    title = "Acceptance by position in the draft"
    yield chart(title, "lines", positions, Axes("position", "accepted", "series", "case"))


def sweep(document: Document) -> Parts:
    """Yield the parts about sizes of tables and n-grams."""
    names = "table_sizes", "ngram_sizes"
    sizes, ngrams = (rows_of(document, "sweep", name) for name in names)
    yield chart("Size of ngram-mod's table", "lines", sizes, Axes("entries", "value", "requests"))
    yield chart("Length of ngram-mod's n-grams", "lines", ngrams, Axes("ngram_size", "value", "requests"))
    yield from tables(**{name: rows_of(document, "sweep", name) for name in names})


def pays(document: Document) -> Parts:
    """Yield the parts about the acceptance from which drafts pay."""
    points = [row | {"k": f"k = {row['num_draft_tokens']}"} for row in rows_of(document, "sweep", "points")]
    points = [row for row in points if row.get("acceptance") is not None]
    fits = line("acceptance", "speedup", "datum.drafts == 'controlled'", "k")
    note = "A mark is an answer. The fit of controlled drafts crosses plain decoding at the break-even."
    title = "Speed by acceptance, for each draft length k"
    axes = Axes("acceptance", "speedup", "drafts", "k")
    yield chart(title, "points", points, axes, [fits, rule("y", 1)], note)
    yield from tables(**{name: rows_of(document, "sweep", name) for name in ("fits", "draft_model")})


def serve(document: Document) -> Parts:
    """Yield the parts that compare peers on the same chats."""
    rows = rows_of(document, "serve", "levels")
    label(rows, "chats", "workload", streams="{} at a time")
    note = f"Ratios are to {rows[0]['name']}." if rows else ""
    yield chart("The same prompts on each peer", "dots", rows, Axes("value", "chats", "name"), note=note)
    yield from tables(peers=rows)


def replay(document: Document) -> Parts:
    """Yield the parts about rules that were replayed without a model."""
    rows = [row | {"speedup_best": row.pop("slowest", None)} for row in rows_of(document, "replay")]
    # The workload that stands for all comes first, because menus show their first value.
    rows.sort(key=lambda row: row.get("workload") != "all")
    note = "Speedups follow from a cost curve; they are not measured. Ticks are the slowest requests."
    axes = Axes("value", "drafter", "curve", menus=("workload", "curve"))
    yield chart("Rules, best first", "dots", rows, axes, note=note)
    yield from tables(replays=rows, cost_curves=rows_of(document, "replay", "curves"))


@cache
def _vega() -> str:
    """Return the JavaScript of the charts, which takes two seconds to make."""
    # Imported here, as jinja2 is, since it comes with an extra.
    import vl_convert

    return str(vl_convert.javascript_bundle())  # type: ignore[call-arg]


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader

    loader = FileSystemLoader(FOLDER)
    made = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return made.get_template("page.html")


def write_page(path: Path, documents: Sequence[Document]) -> None:
    """Write a page of documents. Raises OSError if it cannot be written."""
    path.write_text(page(documents), encoding="utf-8", errors="xmlcharrefreplace")


def place(document: Document) -> str:
    """Describe the machine and the model of a document."""
    machine, model = document.get("machine") or {}, document.get("model") or {}
    with_model = f"; model {model['name']}" if model.get("name") else ""
    return f"{machine.get('cpu') or 'an unknown machine'}{with_model}"


def costs(*documents: Document) -> Parts:
    """Yield one plot of cost curves: for each machine and model, the curve with the most widths."""
    known = [one for one in documents if len(one.get("cost_curve") or ()) > 1]
    curves = {place(one): one["cost_curve"] for one in sorted(known, key=lambda one: len(one["cost_curve"]))}
    rows = [
        {"curve": name, "width": point["width"], "ms": 1000 * point["seconds"]}
        | {"cost": point["seconds"] / points[0]["seconds"]}
        for name, points in curves.items()
        for point in points
    ]
    top = max((row["cost"] for row in rows), default=1)
    layers = [rule("y", 1), line("width", "width", f"datum.width <= {top}")]
    note = "Below the slanted line, a fully accepted draft saves time. At 1, additional width is free."
    title = "c(w): cost of a forward pass by width"
    yield chart(title, "lines", rows, Axes("width", "cost", "curve"), layers, note)


SECTIONS: dict[str, Callable[..., Parts]] = {
    "Speedup": speedup, "The source of each token": answers,
    "Acceptance": acceptance, "Cost curve": costs, "Settings": sweep, "When drafting pays": pays,
    "Servers under load": serve, "Replayed without a model": replay,
}  # fmt: skip
"""Title -> function that yields a section's parts."""


def page(documents: Sequence[Document]) -> str:
    """Return a page of documents as HTML."""
    # Numbers that JSON does not have (nan, infinities) become null.
    finite = json.loads(json.dumps(documents), parse_constant=lambda _: None)
    named = {
        f"{(one.get('date') or 'an unknown day')[:10]} on {place(one)}"
        + (f" ({number})" if len(finite) > 1 else ""): [one]
        for number, one in enumerate(finite, 1)
    }
    found = []
    for title, build in SECTIONS.items():
        # All cost curves share one plot; elsewhere, the reader chooses a document.
        given = {", ".join(named): finite} if build is costs else named
        drawn = {origin: [part for part in build(*some) if part] for origin, some in given.items()}
        if variants := [(origin, parts) for origin, parts in drawn.items() if parts]:
            found.append((build.__name__, title, variants))
    style, own = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    # A script element ends at the first "</script", also inside a string.
    script = f"{_vega()}\n{own}".replace("</script", "<\\/script")
    shown = {"style": style, "script": script, "hash": _hash, "sections": found, "documents": finite}
    return _template().render(shown)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
