"""The sections about speed: of drafting, of other vocabularies, peers, servers, and replayed rules."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from bench.page.charts import chart, is_number, known, line, rule
from bench.page.parts import Document, Parts, Rows, advice, extremes, label, positions, rows_of, table, text
from bench.page.tuning import TURN

POSITION = {"field": "position", "title": "position in the draft"}
ACCEPTED = {"field": "accepted", "scale": {"domain": [0, 1]}}


def _decode_rows(document: Document, is_whole: bool = True) -> Rows:
    """Return the decode rows with a series (draft type, with its length if several occur) and a case.

    is_whole: only those over all turns, if there are any.
    """
    rows = label(rows_of(document, "decode"), "series", "draft_type", num_draft_tokens="max {}")
    label(rows, "case", "workload", prompt_tokens="{}-token prompt", streams="{} streams")
    for row in rows:
        row["speedup_best"] = row.get("best_width_speedup")
    return [row for row in rows if is_whole and row.get("turn") is None] or rows


def speedup(document: Document) -> Parts:
    """Yield the parts about speedups by workload and draft type."""
    if rows := _decode_rows(document):
        lead = "Each dot is a workload with one draft type, compared with plain decoding of the same prompts."
        yield text("lead", lead, extremes(rows, "case", "series"))
        yield chart(
            "Workloads by speedup", "dots", rows, "value", "case", "series", measures=known(rows),
            about=["plain_tps", "parity"],
            note="The upright line is plain decoding, bars are the range of repeated runs, and ticks are the "
            "speedup of the best fixed draft length, in hindsight. Names in the legend can be pressed.",
        )  # fmt: skip
        yield from table("All figures as a table", rows_of(document, "decode"))


def parity(document: Document) -> Parts:
    """Yield the parts about whether drafting changed any token."""
    rows = [row for row in _decode_rows(document) if row.get("parity")]
    if not rows:
        return
    failed = sum(row["parity"] != "PASS" for row in rows)
    for row in rows:
        first = row.get("first_divergence") or {}
        row["verdict"] = "✓ same" if row["parity"] == "PASS" else f"✗ token {first.get('token', '?')}"
        row["margin"] = first.get("margin")
    different = f"{failed} of {len(rows)} comparisons found a token that differs; tooltips have the margin."
    equal = f"All {len(rows)} comparisons with plain decoding found equal tokens."
    yield text("lead", different if failed else equal)
    yield chart(
        "Drafted answers compared with plain ones", "cells", rows, {"field": "series", "title": None},
        {"field": "case", "title": None}, "parity", text="verdict",
        tint={"type": "nominal", "scale": {"domain": ["PASS", "FAIL"], "range": ["#bfdcf3", "#f2914f"]}},
        about=["parity_pairs", "parity_differing", "margin"],
        note="Every drafted run is compared with every plain run, token by token.",
    )  # fmt: skip


def answers(document: Document) -> Parts:
    """Yield the sample answers, beginning with the one that has the largest drafted share."""
    samples = []
    for one in rows_of(document, "decode", "samples"):
        tokens = [(token, source or "model") for token, source in one.get("tokens") or ()]
        counts = Counter(source for _, source in tokens).most_common()
        drafted = [source for source, _ in counts if source != "model"]
        samples.append({
            "name": f"{one.get('workload')}, {one.get('draft_type')}", "prompt": one.get("prompt"),
            "tokens": tokens, "shares": [(source, f"{count / len(tokens):.0%}") for source, count in counts],
            "colors": {source: at % 8 for at, source in enumerate(drafted)},
            "drafted": 1 - dict(counts).get("model", 0) / len(tokens) if tokens else 0,
        })  # fmt: skip
    samples = sorted((one for one in samples if one["tokens"]), key=lambda one: -one["drafted"])
    if samples:
        lead = "Plain text was decoded by the model alone; tinted text was drafted. The largest drafted share"
        yield text("lead", lead, f"is in {samples[0]['name']}: {samples[0]['drafted']:.0%} of its tokens.")
        yield {"kind": "answers", "samples": samples}


def acceptance(document: Document) -> Parts:
    """Yield the parts about acceptance by position, and about gains over the turns of a chat."""
    rows = _decode_rows(document, is_whole=False)
    points = positions([row for row in rows if row.get("turn") is None], "case", "series")
    turns = [row for row in rows if row.get("turn") is not None]
    if points or turns:
        yield text("lead", "Where the accepted share stays high over a draft, long drafts pay.")
    if points:
        yield chart(
            "Acceptance by position in the draft", "lines", points, POSITION, ACCEPTED, "series", "case",
            width=300,
        )  # fmt: skip
    if turns:
        yield chart(
            "By turn of the chat", "lines", turns, TURN, "value", "series", "case", width=300,
            measures=known(turns, "speedup", "acceptance", "tokens_per_forward", "drafted_share"),
            note="Drafters keep what they learned from turn to turn; it is cleared before the next chat.",
        )  # fmt: skip


def costs(documents: Sequence[Document], names: Sequence[str]) -> tuple[list[Document], Parts]:
    """Return the documents whose cost curves are drawn, and the part with all of them in one plot."""
    curves: dict[tuple[Any, Any], tuple[str, Document, Rows]] = {}
    for one, name in zip(documents, names, strict=True):
        points = [point for point in one.get("cost_curve") or () if is_number(point.get("seconds"))]
        points.sort(key=lambda point: point["width"])
        place = (one.get("machine") or {}).get("cpu"), (one.get("model") or {}).get("name")
        # Documents of one session have nearly equal curves; the one with the most widths is drawn.
        least = len(curves[place][2]) if place in curves else 1
        if len(points) > least and points[0]["width"] == 1:
            curves[place] = name, one, points
    rows = [
        {"curve": name, "width": point["width"], "cost": point["seconds"] / points[0]["seconds"]}
        | {"ms": 1000 * point["seconds"]}
        for name, _, points in curves.values()
        for point in points
    ]
    return [one for _, one, _ in curves.values()], _costs(rows)


def _costs(rows: Rows) -> Parts:
    if not rows:
        return
    widest, top = max(row["width"] for row in rows), 1.1 * max(row["cost"] for row in rows)
    equal = [{"width": end, "cost": end} for end in (1, min(widest, top))]
    yield text("lead", "A forward pass over more tokens pays if it commits more than its relative cost.")
    yield chart(
        "c(w): cost of a forward pass by width", "lines", rows,
        {"field": "width", "title": "width: tokens in one forward pass", "scale": {"domain": [1, widest]}},
        {"field": "cost", "title": "cost relative to width 1", "scale": {"domain": [0, top]}}, "curve",
        layers=[rule("y", 1), {"data": {"values": equal}, **line("width", "cost")}], about=["ms"],
        note="Below the slanted line, a fully accepted draft saves time. At 1, additional width is free.",
    )  # fmt: skip


def translation(document: Document) -> Parts:
    """Yield the parts about draft models with other vocabularies."""
    rows = rows_of(document, "translation")
    if not rows:
        return
    count = len({row.get("draft_model") for row in rows})
    lead = "draft models, whose vocabularies may differ from the target's, by translation strategy."
    yield text("lead", f"{count} {lead}")
    yield from advice("Findings", document["translation"].get("findings"))
    for row in rows:
        row["length"] = "adaptive" if row.get("is_adaptive") else f"k = {row.get('num_draft_tokens')}"
    label(rows, "chats", "workload", length="{}")
    yield chart(
        "Strategies, by workload and draft length", "dots", rows, "value", "chats", "strategy",
        measures=known(rows, "acceptance", "speedup", "tokens_per_forward"),
        menus={"draft_model": "Draft model"},
        about=["draft_model_share", "translated", "absorbed", "resynchronised", "skipped", "parity"],
        note="k: the draft model alone makes drafts of k tokens, and all of them are verified. adaptive: the "
        "engine chooses lengths and may leave drafts out.",
    )  # fmt: skip
    yield from table("Translation as a table", rows_of(document, "translation"))
    for one in rows_of(document, "translation", "refused"):
        yield text("note", f"{one.get('draft_model')}, {one.get('strategy')}: skipped: {one.get('reason')}")


def peers(document: Document) -> Parts:
    """Yield the parts about other servers and loops."""
    rows = rows_of(document, "peers")
    for row in rows:
        names = (row.get(name) for name in ("name", "server", "peer", "side"))
        row["peer"] = next(filter(None, names), "")
        row["workload"] = row.get("workload") or "all prompts"
    label(rows, "chats", "workload", streams="{} streams")
    yield from _compared(rows, f"Ratios are to {rows[0]['peer']}." if rows else "")


def serve(document: Document) -> Parts:
    """Yield the parts about servers under load."""
    rows = [
        {
            "chats": "1 stream" if row["concurrency"] == 1 else f"{row['concurrency']} streams",
            "peer": row["side"], "requests": row["num_requests"], "failed": row["num_failed"],
            "tokens_per_s": median(row["tokens_per_s"]), "tokens_per_s_low": min(row["tokens_per_s"]),
            "tokens_per_s_high": max(row["tokens_per_s"]), "decode_tps": row["decode_tokens_per_s"],
            **{f"ttft_{name}_ms": 1000 * value for name, value in (row["first_token_s"] or {}).items()},
            "ttft_ms": row["first_token_s"] and 1000 * row["first_token_s"]["p50"],
            "inter_token_ms": row["inter_token_s"] and 1000 * row["inter_token_s"]["p50"],
        }
        for row in rows_of(document, "serve", "levels")
    ]  # fmt: skip
    yield from _compared(rows, "Prompts are random words, and all answers have the same length.")


def _compared(rows: Rows, note: str) -> Parts:
    """Yield the parts that compare peers on the same chats."""
    if not rows:
        return
    count = len({row["peer"] for row in rows})
    yield text("lead", f"{count} peers with the same prompts, alternating.", extremes(rows, "peer", "chats"))
    measures = known(rows, "tokens_per_s", "speedup", "decode_tps", "ttft_ms", "inter_token_ms")
    if measures:
        yield chart(
            "The same prompts on each peer", "dots", rows, "value", "chats", "peer", measures=measures,
            note=note, about=["requests", "failed", "parity", "error"],
        )  # fmt: skip
    yield from table("Peers as a table", rows)


def replay(document: Document) -> Parts:
    """Yield the parts about rules that were replayed without a model."""
    rows = rows_of(document, "replay")
    if not rows:
        return
    # The workload that stands for all comes first, because defaults are chosen by it.
    rows.sort(key=lambda row: row.get("workload") != "all")
    label(rows, "by", "drafter", used_by="{}")
    flat = [
        {name: value for name, value in row.items() if name not in ("speedup", "slowest", "by_curve")}
        | {"curve": curve, "speedup": speedup, "speedup_best": _by_curve(row, "slowest").get(curve)}
        for row in rows
        for curve, speedup in _by_curve(row, "speedup").items()
    ]
    rules = [row for row in flat if not row.get("is_hindsight") and row["workload"] == flat[0]["workload"]]
    lead = "Rules for drafting, replayed. These speedups follow from a cost curve; they are not measured."
    yield text("lead", lead, extremes(rules, "drafter", "workload", "curve"))
    if measures := known(flat, "speedup", "tokens_per_forward", "coverage", "drafter_us_per_token"):
        yield chart(
            "Rules, best first", "dots", flat, "value", "by", "curve", measures=measures, about=["rule"],
            menus={"workload": "Workload", "curve": "Cost curve"},
            note="The ticks are the requests with the lowest speedup.",
        )  # fmt: skip
    on_first = [row for row in rows if row.get("curve") in (None, flat[0]["curve"])]
    if points := positions(on_first, "workload", "drafter"):
        yield chart(
            "Acceptance by position, by rule", "lines", points, POSITION, ACCEPTED, "drafter",
            menus={"workload": "Workload"},
        )  # fmt: skip
    yield from table("Replays as a table", flat)
    for one in rows_of(document, "replay", "curves"):
        yield text("note", "; ".join(value for value in one.values() if isinstance(value, str)))


def _by_curve(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a figure by the names of cost curves; rows of earlier documents are for several curves."""
    value = row.get(name)
    return value if isinstance(value, Mapping) else {row.get("curve", "cost curve"): value}
