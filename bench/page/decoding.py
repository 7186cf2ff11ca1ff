"""Sections about decoding: speedups, equality of tokens, their sources, acceptance, and the cost of steps."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bench.page.charts import (
    MEASURES,
    Row,
    cells,
    dots,
    lines,
    measures_of,
    menu,
    rule,
    segment,
)
from bench.page.parts import (
    Built,
    Document,
    Part,
    by_position,
    chart,
    is_number,
    measured_on,
    pick,
    rows_of,
    table,
)


def decode_rows(document: Document) -> list[dict[str, Any]]:
    """Return the decode rows with a series (draft type, with its length if several occur) and a case."""
    rows = rows_of(document, "decode")
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


def speedup(document: Document) -> Built:
    """Return the section on speedups by workload and draft type."""
    rows = decode_rows(document)
    if not rows:
        return None
    whole = [row for row in rows if row.get("turn") is None] or rows
    known = sorted((row for row in whole if is_number(row.get("speedup"))), key=lambda row: row["speedup"])
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
        "case", "series", "speedup_low", "speedup_high", "speedup_best", "plain_tps", "parity", *measures,
    )  # fmt: skip
    spec = dots(
        [pick(row, fields) for row in whole], "case", "series", measures,
        about=["plain_tps", "parity"],
    )  # fmt: skip
    note = (
        "The upright line is plain decoding, bars are the range of repeated runs, and ticks are "
        "the speedup of the best fixed draft length, in hindsight. Names in the legend can be pressed."
    )
    as_table = table("All figures as a table", rows, ("series", "case", "speedup_best"))
    return lead, [chart("Workloads by speedup", spec, note), as_table]


def parity(document: Document) -> Built:
    """Return the section on whether drafting changed any token."""
    rows = [row for row in decode_rows(document) if row.get("parity")]
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
        [pick(row, fields) for row in whole], "series", "case", "parity",
        text={"field": "verdict"}, color=color, about=["parity_pairs", "parity_differing", "margin"],
    )  # fmt: skip
    note = "Every drafted run is compared with every plain run, token by token."
    return lead, [chart("Drafted answers compared with plain ones", spec, note)]


def answers(document: Document) -> Built:
    """Return the section of sample answers."""
    samples = [
        {
            "name": f"{one.get('workload')}, {one.get('draft_type')}",
            "prompt": str(one.get("prompt") or ""),
            "tokens": [[str(text), str(source or "model")] for text, source in one["tokens"]],
        }
        for one in rows_of(document, "decode", "samples")
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


def acceptance(document: Document) -> Built:
    """Return the section on acceptance by position, and on gains over the turns of a chat."""
    rows = decode_rows(document)
    points = by_position([row for row in rows if row.get("turn") is None], "case", "series")
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
            points, "position", "accepted", "series", "case", titles=("position in the draft", "accepted"),
            scales=({}, {"domain": [0, 1]}),
        )  # fmt: skip
        parts.append(chart("Acceptance by position in the draft", spec, panel=300))
    if turns:
        measures = measures_of(turns, ["speedup", "acceptance", "tokens_per_forward", "drafted_share"])
        spec = lines(
            [pick(row, ("case", "series", "turn", *measures)) for row in turns], "turn", "value",
            "series", "case", titles=("turn", ""), kind="ordinal", about=measures,
            menus=[menu("measure", "Show", measures, [MEASURES[name] for name in measures])],
            transform=[{"calculate": "datum[measure]", "as": "value"}],
        )  # fmt: skip
        note = "Drafters keep what they learned from turn to turn; it is cleared before the next chat."
        parts.append(chart("By turn of the chat", spec, note, panel=300))
    return lead, parts


def costs(documents: Sequence[Document], names: Sequence[str]) -> Part | None:
    """Return the section of cost curves; those of all machines and models share one plot."""
    curves: dict[str, tuple[str, Document, list[dict[str, Any]]]] = {}
    for one, name in zip(documents, names, strict=True):
        curve = [
            p for p in one.get("cost_curve") or () if isinstance(p, Mapping) and is_number(p.get("seconds"))
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
        rows, "width", "cost", "curve",
        titles=("width: tokens in one forward pass", "cost relative to width 1"),
        rules=[rule("y", 1), segment([(1, 1), (min(widest, top), min(widest, top))], ("width", "cost"))],
        scales=({"domain": [1, widest]}, {"domain": [0, top]}), about=["ms"],
    )  # fmt: skip
    note = "Below the slanted line, a fully accepted draft saves time. At 1, additional width is free."
    measured = list(dict.fromkeys(measured_on(one) for _, one, _ in curves.values()))
    variant = {
        "name": "",
        "lead": lead,
        "measured": measured,
        "parts": [chart("c(w): cost of a forward pass by width", spec, note)],
    }
    return {"id": "costs", "title": "Cost curve", "short": "Costs", "variants": [variant]}
