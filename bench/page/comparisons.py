"""Sections that compare: translation strategies, peers, and rules of other projects."""

from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any

from bench.page.charts import dots, lines, measures_of, menu
from bench.page.parts import (
    Built,
    Document,
    advice,
    by_position,
    chart,
    is_number,
    note_part,
    pick,
    rows_of,
    table,
)


def translation(document: Document) -> Built:
    """Return the section on draft models with other vocabularies."""
    rows = rows_of(document, "translation")
    if not rows:
        return None
    for row in rows:
        row["length"] = "adaptive" if row.get("is_adaptive") else f"k = {row.get('num_draft_tokens')}"
        row["chats"] = f"{row.get('workload')}, {row['length']}"
    models = len({row.get("draft_model") for row in rows})
    measures = measures_of(rows, ["acceptance", "speedup", "tokens_per_forward"])
    counts = ["translated", "absorbed", "resynchronised", "skipped"]
    spec = dots(
        rows, "chats", "strategy", measures, {"draft_model": "Draft model"},
        ["draft_model_share", *counts, "parity"],
    )  # fmt: skip
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
        *advice("Findings", section.get("findings")),
        chart("Strategies, by workload and draft length", spec, note),
        table("Translation as a table", rows, ("chats",)),
        *map(note_part, refused),
    ]
    return (
        f"{models} draft models, whose vocabularies may differ from the target's, by translation strategy.",
        parts,
    )


def peers(document: Document) -> Built:
    """Return the section on other servers and loops."""
    rows = rows_of(document, "peers")
    if not rows:
        return None
    field = next(
        (name for name in ("name", "server", "peer", "side") if any(row.get(name) for row in rows)), "name"
    )
    for row in rows:
        row["peer"] = str(row.get(field))
        streams = f", {row['streams']} streams" if (row.get("streams") or 1) > 1 else ""
        row["chats"] = f"{row.get('workload') or 'all prompts'}{streams}"
    return _compared(rows, f"Ratios are to {rows[0]['peer']}.")


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
    return (
        _compared(rows, "Prompts are random words, and all answers have the same length.") if rows else None
    )


def _compared(rows: list[dict[str, Any]], note: str) -> Built:
    """Return a section that compares peers on the same chats."""
    measures = measures_of(rows, ["tokens_per_s", "speedup", "decode_tps", "ttft_ms", "inter_token_ms"])
    parts = [table("Peers as a table", rows, ("name", "workload", "streams"))]
    lead = f"{len({row['peer'] for row in rows})} peers with the same prompts, alternating."
    if measures:
        spec = dots(rows, "chats", "peer", measures, about=["requests", "failed", "parity", "error"])
        parts.insert(0, chart("The same prompts on each peer", spec, note))
        known = [row for row in rows if is_number(row.get(measures[0]))]
        chats = dict.fromkeys(row["chats"] for row in known)
        fastest = [
            max((row for row in known if row["chats"] == one), key=lambda row: row[measures[0]])
            for one in chats
        ]
        wins = Counter(row["peer"] for row in fastest)
        lead += "".join(f" {name} was fastest on {count} of {len(chats)}." for name, count in wins.items())
    return lead, parts


def replay(document: Document) -> Built:
    """Return the section on rules that were replayed without a model."""
    rows = rows_of(document, "replay")
    if not rows:
        return None
    for row in rows:
        found = row.get("speedup")
        row["speedups"] = found if isinstance(found, Mapping) else {"cost curve": found}
        row["drafter"] = str(row.get("drafter") or row.get("rule") or row.get("name"))
        row["workload"] = str(row.get("workload") or row.get("corpus") or "all")
        row["by"] = f"{row['drafter']}, {row['used_by']}" if row.get("used_by") else row["drafter"]
    flat = [
        pick(
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
    known = [row for row in candidates if is_number(row["speedups"].get(curve))]
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
        parts.append(chart("Rules, best first", dots(flat, "by", "curve", measures, menus, ["rule"]), note))
    if points := by_position(rows, "workload", "drafter"):
        workloads = list(dict.fromkeys(row["workload"] for row in flat))
        spec = lines(
            points, "position", "accepted", "drafter", titles=("position in the draft", "accepted"),
            menus=[menu("workload", "Workload", workloads)],
            transform=[{"filter": "datum.workload == workload"}], scales=({}, {"domain": [0, 1]}),
        )  # fmt: skip
        parts.append(chart("Acceptance by position, by rule", spec))
    parts.append(table("Replays as a table", flat, ("by",)))
    return lead, parts + [
        note_part("; ".join(str(value) for value in one.values() if isinstance(value, str)))
        for one in rows_of(document, "replay", "curves")
    ]
