"""The sections of the page: titles, sentences, charts and tables, made from result documents of any version.

A part of a section is a dictionary whose "kind" is a function of page.js. A section exists if a document has
data for it; if several have, it has a variant for each, and the reader chooses.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bench.page.charts import (
    MEASURES,
    SHARES,
    Row,
    Spec,
    cells,
    dots,
    lines,
    measures_of,
    menu,
    rule,
    segment,
)

Document = Mapping[str, Any]
Part = dict[str, Any]
Built = tuple[str, list[Part]] | None
"""A sentence that sums a section up, and its parts; None without data."""

TIMES = (
    "speedup",
    "speedup_low",
    "speedup_high",
    "best_width_speedup",
    "measured_speedup",
    "predicted",
    "measured",
)
ALL = "mean of all"


def report(documents: Sequence[Document]) -> list[Part]:
    """Return all sections of a page, in order."""
    names = _names(documents)
    found = [_top(documents)]
    for section_id, (title, short, build) in SECTIONS.items():
        variants = []
        for one, name in zip(documents, names, strict=True):
            if (built := build(one)) is not None:
                lead, parts = built
                variants.append({"name": name, "lead": lead, "measured": [_measured(one)], "parts": parts})
        if variants:
            found.append({"id": section_id, "title": title, "short": short, "variants": variants})
        if section_id == "acceptance" and (costs := _costs(documents, names)):
            found.append(costs)
    return [*found, _sources(documents)]


def _rows(document: Document, section: str, part: str = "rows") -> list[dict[str, Any]]:
    """Return the rows of a section that are rows."""
    inside = document.get(section)
    rows = inside.get(part) if isinstance(inside, Mapping) else None
    return [dict(row) for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _numbers(rows: Iterable[Row], name: str) -> list[float]:
    return [row[name] for row in rows if _is_number(row.get(name))]


def _fits_on_page(row: Row, names: Iterable[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row}


def _chart(title: str, spec: Spec, note: str = "", panel: int | None = None) -> Part:
    return {"kind": "chart", "title": title, "note": note, "spec": spec, "panel": panel}


def _table(title: str, rows: Sequence[Row], without: Sequence[str] = ()) -> Part:
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
        "rows": [_fits_on_page(r, names) for r in rows],
    }


def _format(name: str) -> str | None:
    if name in TIMES:
        return "times"
    return "share" if name in SHARES or name.endswith("_share") or name == "of_best_width" else None


def _list(title: str, items: Any) -> list[Part]:
    return [{"kind": "list", "title": title, "items": [str(i) for i in items]}] if items else []


def _note(text: str) -> Part:
    return {"kind": "note", "text": text}


def _day(document: Document) -> str:
    return str(document.get("date") or "an unknown day")[:10]


def _measured(document: Document) -> str:
    machine, model = document.get("machine") or {}, document.get("model") or {}
    cores = f", {machine['cores']} cores" if machine.get("cores") else ""
    name = f"; model {model['name']}" if model.get("name") else ""
    return f"Measured on {_day(document)} on {machine.get('cpu') or 'an unknown machine'}{cores}{name}."


def _names(documents: Sequence[Document]) -> list[str]:
    """Return a distinct name for each document: the properties that distinguish it from the others."""
    properties = [
        [
            str((one.get("machine") or {}).get("cpu") or "unknown machine"),
            str((one.get("model") or {}).get("name") or "no model"),
            _day(one),
            " ".join(str(one.get("command") or "").split()[2:3]),
        ]
        for one in documents
    ]
    telling = [at for at in range(4) if len({row[at] for row in properties}) > 1]
    names = [", ".join(row[at] for at in telling if row[at]) for row in properties]
    return [
        name if name and names.count(name) == 1 else f"{name or 'document'} ({number})"
        for number, name in enumerate(names, 1)
    ]


def _top(documents: Sequence[Document]) -> Part:
    rows = next((rows for one in documents if (rows := _decode_rows(one))), [])
    whole = [row for row in rows if row.get("turn") is None and _is_number(row.get("speedup"))]
    items = []
    if whole:
        most, least = (pick(whole, key=lambda row: row["speedup"]) for pick in (max, min))
        items = [
            [
                f"{row['speedup']:.2f}\N{MULTIPLICATION SIGN}",
                f"{which} speedup: {row['workload']}, {row['series']}",
            ]
            for which, row in (("highest", most), ("lowest", least))
        ]
        judged = [row for row in whole if row.get("parity")]
        passed = sum(row["parity"] == "PASS" for row in judged)
        items += [[f"{passed} of {len(judged)}", "with the same tokens as plain decoding"]] if judged else []
    lead = (
        "Reprise drafts text that it has already seen; the model verifies each draft in one forward pass. "
        "These are measurements of that, compared with plain decoding of the same prompts."
    )
    measured = [_measured(documents[0])] if len(documents) == 1 else []
    parts = [{"kind": "headline", "items": items}] if items else []
    return {
        "id": "top",
        "title": "Speedup from drafting",
        "variants": [{"name": "", "lead": lead, "measured": measured, "parts": parts}],
    }


def _decode_rows(document: Document) -> list[dict[str, Any]]:
    """Return the decode rows with a series (draft type, with its length if several occur) and a case."""
    rows = _rows(document, "decode")
    has_lengths = len({(row.get("draft_type"), row.get("num_draft_tokens")) for row in rows}) > len(
        {row.get("draft_type") for row in rows}
    )
    for row in rows:
        length = f", max {row.get('num_draft_tokens')}" if has_lengths else ""
        row["series"] = f"{row.get('draft_type')}{length}"
        row["case"] = str(row.get("workload"))
        for name, unit in (("prompt_tokens", "-token prompt"), ("streams", " streams")):
            if row.get(name) and len({one.get(name) for one in rows}) > 1:
                row["case"] += f", {row[name]}{unit}"
        row["speedup_best"] = row.get("best_width_speedup")
    return rows


def _speedup(document: Document) -> Built:
    rows = _decode_rows(document)
    if not rows:
        return None
    whole = [row for row in rows if row.get("turn") is None] or rows
    known = sorted((row for row in whole if _is_number(row.get("speedup"))), key=lambda row: row["speedup"])
    lead = "Each dot is a workload with one draft type."
    if known:
        slower = sum(row["speedup"] < 0.995 for row in known)
        lead = (
            f"The speedup over plain decoding of the same prompts ranges from {known[0]['speedup']:.2f} "
            f"({known[0]['case']}, {known[0]['series']}) to {known[-1]['speedup']:.2f} ({known[-1]['case']}, "
            f"{known[-1]['series']}). {slower or 'None'} of {len(known)} are slower."
        )
    measures = measures_of(whole)
    fields = (
        "case",
        "series",
        "speedup_low",
        "speedup_high",
        "speedup_best",
        "plain_tps",
        "parity",
        *measures,
    )
    spec = dots(
        [_fits_on_page(row, fields) for row in whole],
        "case",
        "series",
        measures,
        about=["plain_tps", "parity"],
    )
    note = (
        "The upright line is plain decoding, bars are the range of repeated runs, and ticks are "
        "the speedup of the best fixed draft length, in hindsight. Names in the legend can be pressed."
    )
    table = _table("All figures as a table", rows, ("series", "case", "speedup_best"))
    return lead, [_chart("Workloads by speedup", spec, note), table]


def _parity(document: Document) -> Built:
    rows = [row for row in _decode_rows(document) if row.get("parity")]
    whole = [row for row in rows if row.get("turn") is None] or rows
    if not whole:
        return None
    failed = sum(row["parity"] != "PASS" for row in whole)
    for row in whole:
        first = row.get("first_divergence") or {}
        row["verdict"] = "✓ same" if row["parity"] == "PASS" else f"✗ token {first.get('token', '?')}"
        row["margin"] = first.get("margin")
    lead = (
        f"{failed} of {len(whole)} comparisons found a token that differs; tooltips have the margin there."
        if failed
        else f"All {len(whole)} comparisons with plain decoding found equal tokens."
    )
    fields = ("case", "series", "parity", "verdict", "parity_pairs", "parity_differing", "margin")
    color = {"type": "nominal", "scale": {"domain": ["PASS", "FAIL"], "range": ["#bfdcf3", "#f2914f"]}}
    spec = cells(
        [_fits_on_page(row, fields) for row in whole],
        "series",
        "case",
        "parity",
        text={"field": "verdict"},
        color=color,
        about=["parity_pairs", "parity_differing", "margin"],
    )
    note = "Every drafted run is compared with every plain run, token by token."
    return lead, [_chart("Drafted answers compared with plain ones", spec, note)]


def _answers(document: Document) -> Built:
    samples = [
        {
            "name": f"{one.get('workload')}, {one.get('draft_type')}",
            "prompt": str(one.get("prompt") or ""),
            "tokens": [[str(text), str(source or "model")] for text, source in one["tokens"]],
        }
        for one in _rows(document, "decode", "samples")
        if one.get("tokens")
    ]
    if not samples:
        return None

    def drafted(sample: Row) -> float:
        return float(sum(source != "model" for _, source in sample["tokens"]) / len(sample["tokens"]))

    samples.sort(key=drafted, reverse=True)
    lead = (
        "Plain text was decoded by the model alone; tinted text was drafted. The largest drafted "
        f"share is in {samples[0]['name']}: {100 * drafted(samples[0]):.0f} % of its tokens."
    )
    return lead, [{"kind": "tokens", "samples": samples}]


def _by_position(rows: Sequence[Row], case: str, series: str) -> list[dict[str, Any]]:
    return [
        {case: row[case], series: row[series], "position": at, "accepted": share}
        for row in rows
        for at, share in enumerate(row.get("acceptance_by_position") or (), 1)
        if share is not None
    ]


def _acceptance(document: Document) -> Built:
    rows = _decode_rows(document)
    points = _by_position([row for row in rows if row.get("turn") is None], "case", "series")
    turns = [row for row in rows if row.get("turn") is not None]
    if not points and not turns:
        return None
    parts = []
    lead = "How the figures change over the turns of a chat."
    if points:
        firsts = [point["accepted"] for point in points if point["position"] == 1]
        lead = (
            f"The first token of a draft was accepted {100 * min(firsts):.0f} to {100 * max(firsts):.0f} % "
            "of the time, depending on the workload; where a curve stays high, long drafts pay."
        )
        spec = lines(
            points,
            "position",
            "accepted",
            "series",
            "case",
            titles=("position in the draft", "accepted"),
            scales=({}, {"domain": [0, 1]}),
        )
        parts.append(_chart("Acceptance by position in the draft", spec, panel=300))
    if turns:
        measures = measures_of(turns, ["speedup", "acceptance", "tokens_per_forward", "drafted_share"])
        spec = lines(
            [_fits_on_page(row, ("case", "series", "turn", *measures)) for row in turns],
            "turn",
            "value",
            "series",
            "case",
            titles=("turn", ""),
            kind="ordinal",
            about=measures,
            menus=[menu("measure", "Show", measures, [MEASURES[name] for name in measures])],
            transform=[{"calculate": "datum[measure]", "as": "value"}],
        )
        note = "Drafters keep what they learned from turn to turn; it is cleared before the next chat."
        parts.append(_chart("By turn of the chat", spec, note, panel=300))
    return lead, parts


def _costs(documents: Sequence[Document], names: Sequence[str]) -> Part | None:
    """Return the section of cost curves; those of all machines and models share one plot."""
    curves: dict[str, tuple[str, Document, list[dict[str, Any]]]] = {}
    for one, name in zip(documents, names, strict=True):
        curve = [
            p for p in one.get("cost_curve") or () if isinstance(p, Mapping) and _is_number(p.get("seconds"))
        ]
        points = sorted(map(dict, curve), key=lambda point: point["width"])
        place = json.dumps([(one.get("machine") or {}).get("cpu"), (one.get("model") or {}).get("name")])
        # Documents of one session have nearly equal curves; the one with the most widths is drawn.
        if (
            len(points) > 1
            and points[0]["width"] == 1
            and len(points) > len(curves.get(place, ((), (), ()))[2])
        ):
            curves[place] = name, one, points
    if not curves:
        return None
    rows = [
        {
            "curve": name,
            "width": p["width"],
            "cost": p["seconds"] / points[0]["seconds"],
            "ms": 1000 * p["seconds"],
        }
        for name, _, points in curves.values()
        for p in points
    ]
    widest = max(row["width"] for row in rows)
    first = rows[: len(next(iter(curves.values()))[2])]
    at = next((row for row in first if row["width"] >= 4), first[-1])
    lead = (
        f"A forward pass over {at['width']} tokens costs {at['cost']:.2f} times as much as over one; it "
        f"pays if it commits more than {at['cost']:.2f} tokens on average."
    )
    top = max(row["cost"] for row in rows) * 1.1
    spec = lines(
        rows,
        "width",
        "cost",
        "curve",
        titles=("width: tokens in one forward pass", "cost relative to width 1"),
        rules=[rule("y", 1), segment([(1, 1), (min(widest, top), min(widest, top))], ("width", "cost"))],
        scales=({"domain": [1, widest]}, {"domain": [0, top]}),
        about=["ms"],
    )
    note = "Below the slanted line, a fully accepted draft saves time. At 1, additional width is free."
    measured = list(dict.fromkeys(_measured(one) for _, one, _ in curves.values()))
    variant = {
        "name": "",
        "lead": lead,
        "measured": measured,
        "parts": [_chart("c(w): cost of a forward pass by width", spec, note)],
    }
    return {"id": "costs", "title": "Cost curve", "short": "Costs", "variants": [variant]}


def _sweep(document: Document) -> Built:
    parts = [
        part
        for name, draw in (
            ("grid", _grid),
            ("measured", _measured_grid),
            ("table_sizes", _table_sizes),
            ("ngram_sizes", _ngram_sizes),
            ("gate", _gate),
            ("warm", _warm),
        )
        if (rows := _rows(document, "sweep", name))
        for part in [*draw(rows), _table(f"{name.replace('_', ' ')}, as a table", rows)]
    ]
    if not parts:
        return None
    known = [row for row in _rows(document, "sweep", "grid") if _is_number(row.get("speedup"))]
    lead = "The effect of single settings on the speed."
    if known:
        best = max(known, key=lambda row: row["speedup"])
        lead = (
            f"The best cell of the grid is {best['draft_type']} with drafts of {best['num_draft_tokens']} "
            f"and n-grams of {best.get('ngram_size') or 'any size'}: {best['speedup']:.2f}, on "
            f"{best['workload']}."
        )
    return lead, parts


def _grid(rows: list[dict[str, Any]]) -> list[Part]:
    """Draw the grid, with menus for workload and drafter; brushed cells are shown below by workload."""
    for row in rows:
        row["ngrams"] = row.get("ngram_size") or "any"
    fields = (
        "draft_type",
        "num_draft_tokens",
        "ngrams",
        "workload",
        "speedup",
        "tokens_per_forward",
        "acceptance",
    )
    known = [
        _fits_on_page(row, fields) for row in rows if _is_number(row.get("speedup")) and row["speedup"] > 0
    ]
    if not known:
        return []
    workloads = list(dict.fromkeys(str(row["workload"]) for row in known))
    of_drafter = {"filter": "datum.draft_type == drafter"}
    mean = [
        {"calculate": "log(datum.speedup)", "as": "log"},
        {
            "aggregate": [
                {"op": "mean", "field": "log", "as": "log"},
                {"op": "min", "field": "speedup", "as": "lowest"},
            ],
            "groupby": ["num_draft_tokens", "ngrams"],
        },
        {"calculate": "exp(datum.log)", "as": "speedup"},
    ]
    heat = cells(
        known,
        "num_draft_tokens",
        "ngrams",
        "speedup",
        titles=("maximum draft length", "n-gram size"),
        about=["lowest"],
    )
    for axis in ("x", "y"):
        heat["encoding"][axis]["sort"] = "ascending"
    heat["layer"][0]["params"] = [{"name": "brush", "select": {"type": "interval"}}]
    heat["transform"] = [of_drafter, {"filter": f"workload == '{ALL}' || datum.workload == workload"}, *mean]
    below: Spec = {
        "transform": [of_drafter, {"filter": {"param": "brush"}}],
        "height": 24 * len(workloads),
        "mark": {"type": "boxplot", "extent": "min-max", "size": 10},
        "encoding": {
            "x": {
                "field": "speedup",
                "type": "quantitative",
                "scale": {"zero": False},
                "title": "speedup in the brushed cells",
            },
            "y": {"field": "workload", "type": "nominal", "title": None},
        },
    }
    heat.pop("data")
    spec = {
        "data": {"values": known},
        "params": [
            menu("drafter", "Drafts", list(dict.fromkeys(row["draft_type"] for row in known))),
            menu("workload", "Workload", [ALL, *workloads]),
        ],
        "vconcat": [heat, below],
    }
    note = (
        "Speedup over plain decoding, by replays of known answers: blue cells are faster, orange "
        "slower. Drag over cells to see below what they give by workload, from the lowest to the highest."
    )
    return [_chart("Draft length by n-gram size", spec, note)]


def _measured_grid(rows: list[dict[str, Any]]) -> list[Part]:
    for row in rows:
        size = f", n = {row['ngram_size']}" if row.get("ngram_size") else ""
        row["setting"] = f"{row.get('draft_type')}, max {row.get('num_draft_tokens')}{size}"
    spec = dots(rows, "workload", "setting", measures_of(rows), about=["parity"])
    return [
        _chart("Measured on the engine", spec, "The default and the best configuration of each draft type.")
    ]


_OF_TABLES = (
    "tokens_per_forward",
    "known",
    "occupancy",
    "overwritten",
    "acceptance",
    "speedup",
    "collisions",
)


def _swept(rows: list[dict[str, Any]], field: str, title: str, note: str, scale: Spec) -> list[Part]:
    measures = measures_of(rows, _OF_TABLES)
    for row in rows:
        row["traffic"] = str(row.get("workload") or f"{row.get('requests')} requests")
    spec = lines(
        rows,
        field,
        "value",
        "traffic",
        titles=(field.replace("_", " "), ""),
        about=measures,
        menus=[menu("measure", "Show", measures, [name.replace("_", " ") for name in measures])],
        transform=[{"calculate": "datum[measure]", "as": "value"}],
        scales=(scale, {"zero": False}),
    )
    spec["layer"][0]["params"].append(
        {"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}
    )
    return [_chart(title, spec, note)]


def _table_sizes(rows: list[dict[str, Any]]) -> list[Part]:
    note = "The same requests with tables of different sizes. Drag to move along the axis, scroll to zoom."
    return _swept(rows, "entries", "Size of ngram-mod's table", note, {"type": "log", "base": 2})


def _ngram_sizes(rows: list[dict[str, Any]]) -> list[Part]:
    note = "Short n-grams match more often, and predict worse."
    return _swept(rows, "ngram_size", "Length of ngram-mod's n-grams", note, {"zero": False})


def _gate(rows: list[dict[str, Any]]) -> list[Part]:
    modes = list(dict.fromkeys(str(row.get("gate")) for row in rows))
    spec = lines(
        rows,
        "threshold",
        "speedup",
        "workload",
        titles=("threshold", "speedup over plain decoding"),
        kind="ordinal",
        menus=[menu("mode", "Gate", modes)],
        transform=[{"filter": "datum.gate == mode"}],
        rules=[rule("y", 1)],
        about=["acceptance", "repetitive"],
    )
    note = (
        "How repetitive a prompt must be for the gate to start with long drafts. A low threshold tries "
        "drafts that lose time; a high one misses gains."
    )
    return [_chart("Gate threshold", spec, note)]


def _warm(rows: list[dict[str, Any]]) -> list[Part]:
    for row in rows:
        row["chats"] = ", ".join(str(row[name]) for name in ("workload", "pair") if row.get(name))
        row.setdefault("draft_type", "ngram-mod")
    turns = [row for row in rows if row.get("turn") is not None]
    whole = [row for row in rows if row.get("turn") is None]
    parts = []
    if whole:
        measures = measures_of(whole, ["speedup", "tokens_per_forward", "acceptance"])
        spec = dots(whole, "chats", "memory", measures, {"draft_type": "Drafts"}, ["measured_speedup"])
        note = (
            "Warm: the table was filled earlier, by the same model or another one with the same vocabulary."
        )
        parts.append(_chart("Cold and warm tables", spec, note))
    if any(row["turn"] > 1 for row in turns):
        spec = lines(
            turns,
            "turn",
            "speedup",
            "memory",
            "chats",
            titles=("turn", "speedup"),
            kind="ordinal",
            menus=[menu("drafter", "Drafts", list(dict.fromkeys(row["draft_type"] for row in turns)))],
            transform=[{"filter": "datum.draft_type == drafter"}],
            about=["tokens_per_forward", "acceptance", "measured_speedup"],
        )
        parts.append(_chart("Cold against warm, turn by turn", spec, panel=320))
    return parts


def _economics(document: Document) -> Built:
    section = document.get("economics")
    if not isinstance(section, Mapping):
        return None
    fits, choices, buckets, predicted, points = (
        _rows(document, "economics", name) for name in ("fits", "choices", "buckets", "predicted", "points")
    )
    advice = section.get("advice") or []
    if not (fits or choices or buckets or predicted or advice):
        return None
    even = [fit for fit in fits if _is_number(fit.get("break_even"))]
    needs = ", ".join(f"{fit['break_even']:.2f} at k = {fit['num_draft_tokens']}" for fit in even)
    lead = (
        f"Drafts of k tokens pay if their acceptance is above the break-even: {needs}."
        if even
        else "Decoding speed by acceptance rate."
    )
    parts = _list("Advice", advice)
    if fits:
        parts += [_fits(fits, points, section.get("plain_tps")), _table("Fits as a table", fits)]
    if len(even) > 1:
        parts.append(_break_evens(even, section.get("beta") or {}))
    if choices:
        parts += [_choices(choices), _table("Choices as a table", choices)]
    if buckets:
        parts.append(_buckets(buckets))
    if predicted:
        parts.append(_predicted(predicted))
    energy = section.get("energy") or {}
    rows = _rows(section, "energy")
    title = f"Energy of {energy.get('measured')}, in joules per token"
    why = f" ({energy['reason']})" if energy.get("reason") else ""
    parts.append(_table(title, rows) if rows else _note(f"Energy: not measured{why}."))
    return lead, [*parts, *([_note(str(section["intervals"]))] if section.get("intervals") else [])]


def _fits(fits: Sequence[Row], points: Sequence[Row], plain: Any) -> Part:
    """Draw speed by acceptance: a mark for each answer, and the fitted line of each draft length."""
    rows = [
        {
            "k": f"k = {row.get('num_draft_tokens')}",
            "drafts": str(row.get("draft_type")),
            "workload": row.get("workload"),
            "acceptance": row["acceptance"],
            "speed": row["speedup"] * plain if _is_number(plain) else row.get("decode_tps"),
        }
        for row in points
        if _is_number(row.get("acceptance")) and _is_number(row.get("speedup")) and not row.get("is_gated")
    ]
    rows += [
        {
            "k": fit["num_draft_tokens"],
            "drafts": "fitted line",
            "acceptance": x,
            "fitted": fit["a"] + fit["b"] * x,
        }
        for fit in fits
        for x in (0, 1)
    ]
    fitted = {
        "transform": [{"filter": "isValid(datum.fitted)"}],
        "mark": {"type": "line", "strokeWidth": 2, "aria": False},
        "encoding": {
            "x": {"field": "acceptance", "type": "quantitative"},
            "y": {"field": "fitted", "type": "quantitative"},
            "color": {"field": "drafts", "type": "nominal"},
        },
    }
    spec = lines(
        rows,
        "acceptance",
        "speed",
        "drafts",
        "k",
        titles=("acceptance", "tokens per second"),
        has_lines=False,
        rules=[fitted, *([rule("y", plain)] if _is_number(plain) else [])],
        about=["workload"],
    )
    note = (
        "Each mark is an answer; the slanted line is the least-squares fit over drafts of controlled "
        "acceptance. It crosses plain decoding, the level line, at the break-even."
    )
    return _chart("Speed by acceptance, for each draft length k", spec, note, panel=320)


def _break_evens(fits: Sequence[Row], beta: Row) -> Part:
    rows = [
        _fits_on_page(fit, ("num_draft_tokens", "break_even", "low", "high")) | {"of": "break-even"}
        for fit in fits
    ]
    shared = {"x": {"field": "num_draft_tokens", "type": "quantitative"}}
    whiskers = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "aria": False},
        "encoding": shared | {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
    }
    rules, note = [whiskers], "Upright lines are 95 % intervals."
    if _is_number(beta.get("r")) and _is_number(beta.get("beta")):
        ends = [row["num_draft_tokens"] for row in (rows[0], rows[-1])]
        rules.append(
            segment([(k, beta["r"] + beta["beta"] * k) for k in ends], ("num_draft_tokens", "break_even"))
        )
        note += f" The fit is acceptance = {beta['r']:.3f} {beta['beta']:+.3f} k."
    spec = lines(
        rows,
        "num_draft_tokens",
        "break_even",
        "of",
        titles=("draft length k", "break-even acceptance"),
        has_lines=False,
        rules=rules,
        about=["low", "high"],
    )
    return _chart("Break-even by draft length", spec, note)


def _choices(choices: list[dict[str, Any]]) -> Part:
    for one in choices:
        one["drafts"] = f"{one.get('draft_type')}{', gated' if one.get('is_gated') else ''}"
        is_open = _is_number(one.get("low")) and _is_number(one.get("high")) and one["low"] < 1 < one["high"]
        one["text"] = (
            f"{one['speedup']:.2f}{'†' if is_open else ''}" if _is_number(one.get("speedup")) else "-"
        )
    spec = cells(
        choices,
        "num_draft_tokens",
        "workload",
        "speedup",
        "drafts",
        text={"field": "text"},
        titles=("maximum draft length", ""),
        about=["low", "high", "acceptance", "n"],
    )
    note = "Blue cells are faster than plain decoding, orange cells slower; † marks an interval around it."
    return _chart("Draft types and lengths", spec, note, panel=330)


def _buckets(buckets: list[dict[str, Any]]) -> Part:
    for one in buckets:
        one["length"] = (
            f"k = {one['num_draft_tokens']}" if _is_number(one.get("num_draft_tokens")) else "auto"
        )
        low, high = (one.get(name) for name in ("from", "to"))
        one["accepted"] = str(one.get("label") or one.get("bucket") or f"{low} to {high}")
        one |= {"speedup_low": one.get("lowest"), "speedup_high": one.get("highest")}
    spec = dots(buckets, "accepted", "length", ["speedup"], about=["n"])
    for layer in spec["layer"][1:]:
        layer["encoding"]["y"]["sort"] = None
    note = "Answers by the acceptance rate of their drafts; the bars run from the slowest to the fastest."
    return _chart("Speedup by acceptance", spec, note)


def _predicted(rows: list[dict[str, Any]]) -> Part:
    known = [
        row | {"drafts": str(row.get("draft_type", "controlled")), "by": f"by the {row.get('by')}"}
        for row in rows
        if _is_number(row.get("predicted")) and _is_number(row.get("measured"))
    ]
    ends = [pick(row[name] for row in known for name in ("predicted", "measured")) for pick in (min, max)]
    spec = lines(
        known,
        "measured",
        "predicted",
        "drafts",
        "by",
        titles=("measured speedup", "predicted speedup"),
        has_lines=False,
        scales=({"zero": False}, {"zero": False}),
        about=["workload", "num_draft_tokens"],
        rules=[segment([(end, end) for end in ends], ("measured", "predicted"))],
    )
    note = "No prediction uses the answer that it predicts. On the slanted line, both agree."
    return _chart("Predicted and measured speedup", spec, note, panel=420)


def _translation(document: Document) -> Built:
    rows = _rows(document, "translation")
    if not rows:
        return None
    for row in rows:
        row["length"] = "adaptive" if row.get("is_adaptive") else f"k = {row.get('num_draft_tokens')}"
        row["chats"] = f"{row.get('workload')}, {row['length']}"
    models = len({row.get("draft_model") for row in rows})
    measures = measures_of(rows, ["acceptance", "speedup", "tokens_per_forward"])
    counts = ["translated", "absorbed", "resynchronised", "skipped"]
    spec = dots(
        rows,
        "chats",
        "strategy",
        measures,
        {"draft_model": "Draft model"},
        ["draft_model_share", *counts, "parity"],
    )
    note = (
        "k: the draft model alone makes drafts of k tokens, and all of them are verified. adaptive: the "
        "engine chooses lengths and may leave drafts out."
    )
    section = document["translation"]
    refused = [
        f"{one.get('draft_model')}, {one.get('strategy')}: skipped: {one.get('reason')}"
        for one in section.get("refused") or ()
    ]
    parts = [
        *_list("Findings", section.get("findings")),
        _chart("Strategies, by workload and draft length", spec, note),
        _table("Translation as a table", rows, ("chats",)),
        *map(_note, refused),
    ]
    return (
        f"{models} draft models, whose vocabularies may differ from the target's, by translation strategy.",
        parts,
    )


def _peers(document: Document) -> Built:
    rows = _rows(document, "peers")
    if not rows:
        return None
    field = next(
        (name for name in ("name", "server", "peer", "side") if any(row.get(name) for row in rows)), "name"
    )
    for row in rows:
        row["peer"] = str(row.get(field))
        streams = f", {row['streams']} streams" if (row.get("streams") or 1) > 1 else ""
        row["chats"] = f"{row.get('workload') or 'all prompts'}{streams}"
    measures = measures_of(rows, ["tokens_per_s", "speedup", "decode_tps", "ttft_ms", "inter_token_ms"])
    best: dict[str, Row] = {}
    for row in rows:
        if (
            measures
            and _is_number(row.get(measures[0]))
            and row[measures[0]] > best.get(row["chats"], {}).get(measures[0], 0)
        ):
            best[row["chats"]] = row
    wins = [row["peer"] for row in best.values()]
    ranks = ", ".join(
        f"{name} was fastest on {wins.count(name)} of {len(wins)}" for name in dict.fromkeys(wins)
    )
    parts = [_table("Peers as a table", rows, ("chats", "peer"))]
    if measures:
        spec = dots(rows, "chats", "peer", measures, about=["requests", "failed", "parity", "error"])
        parts.insert(0, _chart("The same prompts on each peer", spec, f"Ratios are to {rows[0]['peer']}."))
    return f"{len({row['peer'] for row in rows})} peers with the same prompts, alternating. {ranks}.", parts


def _replay(document: Document) -> Built:
    rows = _rows(document, "replay")
    if not rows:
        return None
    for row in rows:
        found = row.get("speedup")
        row["speedups"] = found if isinstance(found, Mapping) else {"cost curve": found}
        row["drafter"] = str(row.get("drafter") or row.get("rule") or row.get("name"))
        row["workload"] = str(row.get("workload") or row.get("corpus") or "all")
        row["by"] = f"{row['drafter']}, {row['used_by']}" if row.get("used_by") else row["drafter"]
    flat = [
        _fits_on_page(
            row,
            ("by", "drafter", "workload", "rule", "tokens_per_forward", "coverage", "drafter_us_per_token"),
        )
        | {
            "curve": curve,
            "speedup": speed,
            "speedup_best": (row.get("slowest") or {}).get(curve)
            if isinstance(row.get("slowest"), Mapping)
            else row.get("slowest"),
        }
        for row in rows
        for curve, speed in row["speedups"].items()
    ]
    # The workload that stands for all comes first, because defaults are chosen by it.
    flat.sort(key=lambda row: row["workload"] != "all")
    measures = measures_of(flat, ["speedup", "tokens_per_forward", "coverage", "drafter_us_per_token"])
    candidates = [
        row for row in rows if not row.get("is_hindsight") and row["workload"] == flat[0]["workload"]
    ]
    curve = next(iter(rows[0]["speedups"]))
    known = [row for row in candidates if _is_number(row["speedups"].get(curve))]
    lead = (
        "Rules for drafting, replayed. These speedups follow from a cost curve; they are not measured times."
    )
    if known:
        best = max(known, key=lambda row: row["speedups"][curve])
        lead += f" The best is {best['drafter']}: {best['speedups'][curve]:.2f} with the costs of {curve}."
    menus = {"workload": "Workload", "curve": "Cost curve"}
    parts = []
    if measures:
        note = "The ticks are the requests with the lowest speedup."
        parts.append(_chart("Rules, best first", dots(flat, "by", "curve", measures, menus, ["rule"]), note))
    if points := _by_position(rows, "workload", "drafter"):
        workloads = list(dict.fromkeys(row["workload"] for row in flat))
        spec = lines(
            points,
            "position",
            "accepted",
            "drafter",
            titles=("position in the draft", "accepted"),
            menus=[menu("workload", "Workload", workloads)],
            transform=[{"filter": "datum.workload == workload"}],
            scales=({}, {"domain": [0, 1]}),
        )
        parts.append(_chart("Acceptance by position, by rule", spec))
    parts.append(_table("Replays as a table", flat, ("by",)))
    return lead, parts + [
        _note("; ".join(str(value) for value in one.values() if isinstance(value, str)))
        for one in _rows(document, "replay", "curves")
    ]


def _sources(documents: Sequence[Document]) -> Part:
    items: list[list[str]] = []
    for one in documents:
        machine, model = one.get("machine") or {}, one.get("model") or {}
        items.append(
            [
                f"{_day(one)}, at a load of {machine.get('load_at_start', 'unknown')}",
                str(one.get("command") or "unknown command"),
            ]
        )
        facts = (
            {"reprise": one.get("reprise")}
            | machine
            | {f"model {name}": value for name, value in model.items()}
        )
        items += [
            [
                name.replace("_", " "),
                f"{value / 2**30:.1f} GiB" if name.endswith("_bytes") and _is_number(value) else str(value),
            ]
            for name, value in facts.items()
            if value is not None
            and name != "load_at_start"
            and not (one is not documents[0] and documents[0].get("machine") == machine)
        ]
    lead = "To reproduce the figures, run these commands on the machines listed with them."
    variant = {"name": "", "lead": lead, "measured": [], "parts": [{"kind": "sources", "items": items}]}
    return {"id": "sources", "title": "Sources", "short": "Sources", "variants": [variant]}


SECTIONS: dict[str, tuple[str, str, Callable[[Document], Built]]] = {
    "speedup": ("Speedup", "Speedup", _speedup),
    "parity": ("Parity", "Parity", _parity),
    "answers": ("The source of each token", "Tokens", _answers),
    "acceptance": ("Acceptance", "Acceptance", _acceptance),
    "sweep": ("Settings", "Settings", _sweep),
    "economics": ("When drafting pays", "Economics", _economics),
    "translation": ("Across vocabularies", "Translation", _translation),
    "peers": ("Compared with others", "Peers", _peers),
    "replay": ("Replayed without a model", "Replay", _replay),
}
"""By id: the title, the name in the table of contents, and the function that builds it from a document."""
