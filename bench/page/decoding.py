"""Sections about decoding: speedups, equality of tokens, their sources, acceptance, and the cost of steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.page.charts import Row, chart, is_number, known, line, rule
from bench.page.parts import Built, Document, Part, Rows, extremes, label, positions, rows_of, table


def decode_rows(document: Document, is_whole: bool = False) -> Rows:
    """Return the decode rows with a series (draft type, with its length if several occur) and a case.

    is_whole: only those over all turns, if there are any.
    """
    rows = rows_of(document, "decode")
    label(rows, "series", "draft_type", num_draft_tokens="max {}")
    label(rows, "case", "workload", prompt_tokens="{}-token prompt", streams="{} streams")
    for row in rows:
        row["speedup_best"] = row.get("best_width_speedup")
    return [row for row in rows if is_whole and row.get("turn") is None] or rows


def speedup(document: Document) -> Built:
    """Return the section on speedups by workload and draft type."""
    rows = decode_rows(document, is_whole=True)
    if not rows:
        return None
    lead = "Each dot is a workload with one draft type, compared with plain decoding of the same prompts. "
    dots = chart(
        "Workloads by speedup", "dots", rows, "value", "case", "series", measures=known(rows),
        about=["plain_tps", "parity"],
        note="The upright line is plain decoding, bars are the range of repeated runs, and ticks are the "
        "speedup of the best fixed draft length, in hindsight. Names in the legend can be pressed.",
    )  # fmt: skip
    as_table = table("All figures as a table", rows_of(document, "decode"))
    return lead + extremes(rows, "case", "series"), [dots, as_table]


def parity(document: Document) -> Built:
    """Return the section on whether drafting changed any token."""
    rows = [row for row in decode_rows(document, is_whole=True) if row.get("parity")]
    if not rows:
        return None
    failed = sum(row["parity"] != "PASS" for row in rows)
    for row in rows:
        first = row.get("first_divergence") or {}
        row["verdict"] = "✓ same" if row["parity"] == "PASS" else f"✗ token {first.get('token', '?')}"
        row["margin"] = first.get("margin")
    lead = (
        f"{failed} of {len(rows)} comparisons found a token that differs; tooltips have the margin there."
        if failed
        else f"All {len(rows)} comparisons with plain decoding found equal tokens."
    )
    tint = {"type": "nominal", "scale": {"domain": ["PASS", "FAIL"], "range": ["#bfdcf3", "#f2914f"]}}
    cells = chart(
        "Drafted answers compared with plain ones", "cells", rows, "series", "case", "parity",
        text="verdict", tint=tint, about=["parity_pairs", "parity_differing", "margin"],
        note="Every drafted run is compared with every plain run, token by token.",
    )  # fmt: skip
    return lead, [cells]


def answers(document: Document) -> Built:
    """Return the section of sample answers, beginning with the one that has the largest drafted share."""
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
        "Plain text was decoded by the model alone; tinted text was drafted. The largest drafted share is in "
        f"{samples[0]['name']}: {100 * drafted(samples[0]):.0f} % of its tokens."
    )
    return lead, [{"kind": "tokens", "samples": samples}]


def acceptance(document: Document) -> Built:
    """Return the section on acceptance by position, and on gains over the turns of a chat."""
    rows = decode_rows(document)
    points = positions([row for row in rows if row.get("turn") is None], "case", "series")
    turns = [row for row in rows if row.get("turn") is not None]
    if not points and not turns:
        return None
    parts = []
    if points:
        parts.append(chart(
            "Acceptance by position in the draft", "lines", points, "position", "accepted", "series", "case",
            titles=("position in the draft", "accepted"), scales=({}, {"domain": [0, 1]}), width=300,
        ))  # fmt: skip
    if turns:
        parts.append(chart(
            "By turn of the chat", "lines", turns, "turn", "value", "series", "case", width=300,
            measures=known(turns, "speedup", "acceptance", "tokens_per_forward", "drafted_share"),
            titles=("turn", None), x_type="ordinal",
            note="Drafters keep what they learned from turn to turn; it is cleared before the next chat.",
        ))  # fmt: skip
    lead = "Where the accepted share stays high over the positions of a draft, long drafts pay."
    return lead, parts


def costs(
    documents: Sequence[Document], names: Sequence[str]
) -> tuple[str, list[Part], list[Document]] | None:
    """Return the section of cost curves, and where they are from; those of all machines share one plot."""
    curves: dict[tuple[Any, Any], tuple[str, Document, list[Row]]] = {}
    for one, name in zip(documents, names, strict=True):
        points = [
            p for p in one.get("cost_curve") or () if isinstance(p, Mapping) and is_number(p.get("seconds"))
        ]
        points.sort(key=lambda point: point["width"])
        place = (one.get("machine") or {}).get("cpu"), (one.get("model") or {}).get("name")
        # Documents of one session have nearly equal curves; the one with the most widths is drawn.
        least = len(curves[place][2]) if place in curves else 1
        if len(points) > least and points[0]["width"] == 1:
            curves[place] = name, one, points
    rows = [
        {"curve": name, "width": p["width"], "cost": p["seconds"] / points[0]["seconds"]}
        | {"ms": 1000 * p["seconds"]}
        for name, _, points in curves.values()
        for p in points
    ]
    if not rows:
        return None
    widest, top = max(row["width"] for row in rows), 1.1 * max(row["cost"] for row in rows)
    equal = [{"width": end, "cost": end} for end in (1, min(widest, top))]
    drawn = chart(
        "c(w): cost of a forward pass by width", "lines", rows, "width", "cost", "curve", about=["ms"],
        titles=("width: tokens in one forward pass", "cost relative to width 1"),
        layers=[rule("y", 1), {"data": {"values": equal}, **line("width", "cost")}],
        scales=({"domain": [1, widest]}, {"domain": [0, top]}),
        note="Below the slanted line, a fully accepted draft saves time. At 1, additional width is free.",
    )  # fmt: skip
    lead = "A forward pass over more tokens pays if it commits more tokens on average than its relative cost."
    return lead, [drawn], [one for _, one, _ in curves.values()]
