"""Sections that compare: translation strategies, peers, and rules of other projects."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from bench.page.charts import chart, known
from bench.page.parts import (
    Built,
    Document,
    Rows,
    advice,
    extremes,
    label,
    note_part,
    positions,
    rows_of,
    table,
)


def translation(document: Document) -> Built:
    """Return the section on draft models with other vocabularies."""
    rows = rows_of(document, "translation")
    if not rows:
        return None
    as_table = table("Translation as a table", rows)
    for row in rows:
        row["length"] = "adaptive" if row.get("is_adaptive") else f"k = {row.get('num_draft_tokens')}"
    label(rows, "chats", "workload", length="{}")
    dots = chart(
        "Strategies, by workload and draft length", "dots", rows, "value", "chats", "strategy",
        measures=known(rows, "acceptance", "speedup", "tokens_per_forward"),
        menus={"draft_model": "Draft model"},
        about=["draft_model_share", "translated", "absorbed", "resynchronised", "skipped", "parity"],
        note="k: the draft model alone makes drafts of k tokens, and all of them are verified. adaptive: the "
        "engine chooses lengths and may leave drafts out.",
    )  # fmt: skip
    refused = [
        note_part(f"{one.get('draft_model')}, {one.get('strategy')}: skipped: {one.get('reason')}")
        for one in rows_of(document, "translation", "refused")
    ]
    findings = advice("Findings", document["translation"].get("findings"))
    count = len({row.get("draft_model") for row in rows})
    return (
        f"{count} draft models, whose vocabularies may differ from the target's, by translation strategy.",
        [*findings, dots, as_table, *refused],
    )


def peers(document: Document) -> Built:
    """Return the section on other servers and loops."""
    rows = rows_of(document, "peers")
    for row in rows:
        row["peer"] = str(
            next((row[name] for name in ("name", "server", "peer", "side") if row.get(name)), "")
        )
        row["workload"] = row.get("workload") or "all prompts"
    label(rows, "chats", "workload", streams="{} streams")
    return _compared(rows, f"Ratios are to {rows[0]['peer']}.") if rows else None


def serve(document: Document) -> Built:
    """Return the section on servers under load."""
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
    note = "Prompts are random words, and all answers have the same length."
    return _compared(rows, note) if rows else None


def _compared(rows: Rows, note: str) -> Built:
    """Return a section that compares peers on the same chats."""
    lead = f"{len({row['peer'] for row in rows})} peers with the same prompts, alternating. "
    measures = known(rows, "tokens_per_s", "speedup", "decode_tps", "ttft_ms", "inter_token_ms")
    dots = [chart(
        "The same prompts on each peer", "dots", rows, "value", "chats", "peer", measures=measures, note=note,
        about=["requests", "failed", "parity", "error"],
    )] if measures else []  # fmt: skip
    return lead + extremes(rows, "peer", "chats"), [*dots, table("Peers as a table", rows)]


def replay(document: Document) -> Built:
    """Return the section on rules that were replayed without a model."""
    rows = rows_of(document, "replay")
    if not rows:
        return None
    # The workload that stands for all comes first, because defaults are chosen by it.
    rows.sort(key=lambda row: row.get("workload") != "all")
    label(rows, "by", "drafter", used_by="{}")
    speeds = ("speedup", "slowest", "by_curve")
    flat = [
        {name: value for name, value in row.items() if name not in speeds}
        | {"curve": curve, "speedup": speedup, "speedup_best": _by_curve(row, "slowest").get(curve)}
        for row in rows
        for curve, speedup in _by_curve(row, "speedup").items()
    ]
    rules = [row for row in flat if not row.get("is_hindsight") and row["workload"] == flat[0]["workload"]]
    lead = (
        "Rules for drafting, replayed. These speedups follow from a cost curve; they are not measured times. "
    )
    lead += extremes(rules, "drafter", "workload", "curve")
    parts = []
    if measures := known(flat, "speedup", "tokens_per_forward", "coverage", "drafter_us_per_token"):
        parts.append(chart(
            "Rules, best first", "dots", flat, "value", "by", "curve", measures=measures, about=["rule"],
            menus={"workload": "Workload", "curve": "Cost curve"},
            note="The ticks are the requests with the lowest speedup.",
        ))  # fmt: skip
    on_first = [row for row in rows if row.get("curve") in (None, flat[0]["curve"])]
    if points := positions(on_first, "workload", "drafter"):
        parts.append(chart(
            "Acceptance by position, by rule", "lines", points, "position", "accepted", "drafter",
            titles=("position in the draft", "accepted"), menus={"workload": "Workload"},
            scales=({}, {"domain": [0, 1]}),
        ))  # fmt: skip
    notes = [
        note_part("; ".join(value for value in one.values() if isinstance(value, str)))
        for one in rows_of(document, "replay", "curves")
    ]
    return lead, [*parts, table("Replays as a table", flat), *notes]


def _by_curve(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a figure by the names of cost curves; rows of earlier documents are for several curves."""
    value = row.get(name)
    return value if isinstance(value, Mapping) else {row.get("curve", "cost curve"): value}
