"""Sections that compare: translation strategies, peers, and rules of other projects."""

from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any

from bench.page.charts import chart, is_number, known
from bench.page.parts import Built, Document, advice, by_position, note_part, rows_of, table


def translation(document: Document) -> Built:
    """Return the section on draft models with other vocabularies."""
    rows = rows_of(document, "translation")
    if not rows:
        return None
    for row in rows:
        row["length"] = "adaptive" if row.get("is_adaptive") else f"k = {row.get('num_draft_tokens')}"
        row["chats"] = f"{row.get('workload')}, {row['length']}"
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
        [*findings, dots, table("Translation as a table", rows, ("chats",)), *refused],
    )


def peers(document: Document) -> Built:
    """Return the section on other servers and loops."""
    rows = rows_of(document, "peers")
    fields = ("name", "server", "peer", "side")
    field = next((name for name in fields if any(row.get(name) for row in rows)), "name")
    for row in rows:
        row["peer"] = str(row.get(field))
        streams = f", {row['streams']} streams" if (row.get("streams") or 1) > 1 else ""
        row["chats"] = f"{row.get('workload') or 'all prompts'}{streams}"
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


def _compared(rows: list[dict[str, Any]], note: str) -> Built:
    """Return a section that compares peers on the same chats."""
    as_table = table("Peers as a table", rows, ("name", "workload", "streams"))
    lead = f"{len({row['peer'] for row in rows})} peers with the same prompts, alternating."
    measures = known(rows, "tokens_per_s", "speedup", "decode_tps", "ttft_ms", "inter_token_ms")
    if not measures:
        return lead, [as_table]
    fastest: dict[str, dict[str, Any]] = {}
    for row in rows:
        if is_number(row.get(measures[0])):
            fastest[row["chats"]] = max(
                fastest.get(row["chats"], row), row, key=lambda one: float(one[measures[0]])
            )
    wins = Counter(row["peer"] for row in fastest.values())
    lead += "".join(f" {name} was fastest on {count} of {len(fastest)}." for name, count in wins.items())
    dots = chart(
        "The same prompts on each peer", "dots", rows, "value", "chats", "peer", measures=measures, note=note,
        about=["requests", "failed", "parity", "error"],
    )  # fmt: skip
    return lead, [dots, as_table]


def replay(document: Document) -> Built:
    """Return the section on rules that were replayed without a model."""
    rows, flat = rows_of(document, "replay"), []
    for row in rows:
        speedups, slowest = row.get("speedup"), row.get("slowest")
        row["drafter"] = str(row.get("drafter") or row.get("rule") or row.get("name"))
        row["workload"] = str(row.get("workload") or row.get("corpus") or "all")
        row["by"] = f"{row['drafter']}, {row['used_by']}" if row.get("used_by") else row["drafter"]
        names = (
            "by",
            "drafter",
            "workload",
            "rule",
            "tokens_per_forward",
            "coverage",
            "drafter_us_per_token",
        )
        for curve, speed in (speedups if isinstance(speedups, Mapping) else {"cost curve": speedups}).items():
            least = slowest.get(curve) if isinstance(slowest, Mapping) else slowest
            figures = {"curve": curve, "speedup": speed, "speedup_best": least}
            own = {name: row[name] for name in names if name in row}
            flat.append(own | figures | {"is_hindsight": bool(row.get("is_hindsight"))})
    if not rows:
        return None
    # The workload that stands for all comes first, because defaults are chosen by it.
    flat.sort(key=lambda row: row["workload"] != "all")
    lead = (
        "Rules for drafting, replayed. These speedups follow from a cost curve; they are not measured times."
    )
    candidates = [
        row
        for row in flat
        if not row.pop("is_hindsight") and is_number(row["speedup"])
        and (row["workload"], row["curve"]) == (flat[0]["workload"], flat[0]["curve"])
    ]  # fmt: skip
    if candidates:
        best = max(candidates, key=lambda row: row["speedup"])
        lead += f" The best is {best['drafter']}: {best['speedup']:.2f} with the costs of {best['curve']}."
    parts = []
    if measures := known(flat, "speedup", "tokens_per_forward", "coverage", "drafter_us_per_token"):
        parts.append(chart(
            "Rules, best first", "dots", flat, "value", "by", "curve", measures=measures, about=["rule"],
            menus={"workload": "Workload", "curve": "Cost curve"},
            note="The ticks are the requests with the lowest speedup.",
        ))  # fmt: skip
    rows.sort(key=lambda row: row["workload"] != "all")
    if points := by_position(rows, "workload", "drafter"):
        parts.append(chart(
            "Acceptance by position, by rule", "lines", points, "position", "accepted", "drafter",
            titles=("position in the draft", "accepted"), menus={"workload": "Workload"},
            scales=({}, {"domain": [0, 1]}),
        ))  # fmt: skip
    notes = [
        note_part("; ".join(value for value in one.values() if isinstance(value, str)))
        for one in rows_of(document, "replay", "curves")
    ]
    return lead, [*parts, table("Replays as a table", flat, ("by",)), *notes]
