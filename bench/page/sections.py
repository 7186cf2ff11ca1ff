"""The sections about speed: of drafting, of other vocabularies, peers, servers, and replayed rules."""

from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any

from bench.page.charts import chart, line, rule
from bench.page.parts import Document, Parts, Rows, advice, label, note, positions, rows_of, table


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
    rows = _decode_rows(document)
    yield from chart(
        "Workloads by speedup", "dots", rows, "value", "case", "series", about=["plain_tps", "parity"],
        note="The upright line is plain decoding, bars are the range of repeated runs, and ticks are the "
        "speedup of the best fixed draft length, in hindsight. Names in the legend can be pressed.",
    )  # fmt: skip
    yield from table("All figures as a table", rows_of(document, "decode"))


def parity(document: Document) -> Parts:
    """Yield the parts about whether drafting changed any token."""
    rows = [row for row in _decode_rows(document) if row.get("parity")]
    for row in rows:
        first = row.get("first_divergence") or {}
        row["verdict"] = "✓ same" if row["parity"] == "PASS" else f"✗ token {first.get('token', '?')}"
        row["margin"] = first.get("margin")
    yield from chart(
        "Drafted answers compared with plain ones", "cells", rows, "series", "case", "parity", text="verdict",
        about=["parity_pairs", "parity_differing", "margin"],
        note="Every drafted run is compared with every plain run, token by token.",
    )  # fmt: skip


def answers(document: Document) -> Parts:
    """Yield the sample answers, beginning with the one that has the largest drafted share."""
    samples = [one for one in rows_of(document, "decode", "samples") if one.get("tokens")]
    for one in samples:
        one["tokens"] = [(text, source or "model") for text, source in one["tokens"]]
        counts = Counter(source for _, source in one["tokens"])
        sources = sorted(counts, key=lambda source: (source == "model", -counts[source]))
        one["shares"] = {source: counts[source] / len(one["tokens"]) for source in sources}
    if samples:
        samples.sort(key=lambda one: one["shares"].get("model", 0))
        named = [(f"{one['workload']}, {one['draft_type']}", one) for one in samples]
        yield {"kind": "answers", "samples": named}


def acceptance(document: Document) -> Parts:
    """Yield the parts about acceptance by position, and about gains over the turns of a chat."""
    rows = _decode_rows(document, is_whole=False)
    yield from chart(
        "Acceptance by position in the draft", "lines",
        positions([row for row in rows if row.get("turn") is None], "case", "series"),
        "position", "accepted", "series", "case", note="Where the share stays high, long drafts pay.",
    )  # fmt: skip
    yield from chart(
        "By turn of the chat", "lines", [row for row in rows if row.get("turn") is not None],
        "turn:O", "value", "series", "case",
        measures=["speedup", "acceptance", "tokens_per_forward", "drafted_share"],
        note="Drafters keep what they learned from turn to turn; it is cleared before the next chat.",
    )  # fmt: skip


def costs(documents: Mapping[str, Document]) -> Parts:
    """Yield the cost curves of all machines and models in one plot. documents: by what they were made on."""
    # Documents of one session have nearly equal curves; the one with the most widths is drawn.
    curves = {}
    for origin, one in sorted(documents.items(), key=lambda pair: len(pair[1].get("cost_curve") or ())):
        if len(points := one.get("cost_curve") or []) > 1:
            place = (one.get("machine") or {}).get("cpu"), (one.get("model") or {}).get("name")
            curves[place] = origin, points
    rows = [
        {"curve": origin, "width": point["width"], "cost": point["seconds"] / points[0]["seconds"]}
        | {"ms": 1000 * point["seconds"]}
        for origin, points in curves.values()
        for point in points
    ]
    top = max((min(row["width"], row["cost"]) for row in rows), default=1)
    equal = [{"width": end, "cost": end} for end in (1, top)]
    yield from chart(
        "c(w): cost of a forward pass by width", "lines", rows, "width", "cost", "curve", about=["ms"],
        layers=[rule("y", 1), line("width", "cost", data={"values": equal})],
        note="A pass over more tokens pays if it commits more of them than its cost. Below the slanted line, "
        "a fully accepted draft saves time. At 1, additional width is free.",
    )  # fmt: skip


def translation(document: Document) -> Parts:
    """Yield the parts about draft models with other vocabularies."""
    rows = rows_of(document, "translation")
    for row in rows:
        row["length"] = "adaptive" if row.get("is_adaptive") else f"k = {row.get('num_draft_tokens')}"
    yield from advice("Findings", (document.get("translation") or {}).get("findings"))
    yield from chart(
        "Strategies, by workload and draft length", "dots", label(rows, "chats", "workload", length="{}"),
        "value", "chats", "strategy", menus=["draft_model"],
        measures=["acceptance", "speedup", "tokens_per_forward"],
        about=["draft_model_share", "translated", "absorbed", "resynchronised", "skipped", "parity"],
        note="k: the draft model alone makes drafts of k tokens, and all of them are verified. adaptive: the "
        "engine chooses lengths and may leave drafts out.",
    )  # fmt: skip
    yield from table("Translation as a table", rows_of(document, "translation"))
    for one in rows_of(document, "translation", "refused"):
        yield from note(f"{one.get('draft_model')}, {one.get('strategy')}: skipped: {one.get('reason')}")


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
    rows = [row | _level(row) if "side" in row else row for row in rows_of(document, "serve", "levels")]
    for row in rows:
        row |= {
            "peer": row["name"],
            "chats": "1 stream" if row["streams"] == 1 else f"{row['streams']} streams",
        }
    yield from _compared(rows, "Prompts are random words, and all answers have the same length.")


def _level(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of a row of an earlier document by today's names."""
    ttft, inter_token = row["first_token_s"] or {}, row["inter_token_s"] or {}
    return {
        "name": row["side"], "streams": row["concurrency"], "requests": row["num_requests"],
        "failed": row["num_failed"], "tokens_per_s": median(row["tokens_per_s"]),
        "tokens_per_s_low": min(row["tokens_per_s"]), "tokens_per_s_high": max(row["tokens_per_s"]),
        "decode_tps": row["decode_tokens_per_s"], "ttft_ms": ttft and 1000 * ttft["p50"],
        "inter_token_ms": inter_token and 1000 * inter_token["p50"],
    }  # fmt: skip


def _compared(rows: Rows, note: str) -> Parts:
    """Yield the parts that compare peers on the same chats."""
    yield from chart(
        "The same prompts on each peer", "dots", rows, "value", "chats", "peer", note=note,
        measures=["tokens_per_s", "speedup", "decode_tps", "ttft_ms", "inter_token_ms"],
        about=["requests", "failed", "parity", "error"],
    )  # fmt: skip
    yield from table("Peers as a table", rows)


def replay(document: Document) -> Parts:
    """Yield the parts about rules that were replayed without a model."""
    rows = rows_of(document, "replay")
    # The workload that stands for all comes first, because defaults are chosen by it.
    rows.sort(key=lambda row: row.get("workload") != "all")
    label(rows, "by", "drafter", used_by="{}")
    flat = [
        {name: value for name, value in row.items() if name not in ("speedup", "slowest", "by_curve")}
        | {"curve": curve, "speedup": speedup, "speedup_best": _by_curve(row, "slowest").get(curve)}
        for row in rows
        for curve, speedup in _by_curve(row, "speedup").items()
    ]
    yield from chart(
        "Rules, best first", "dots", flat, "value", "by", "curve", menus=["workload", "curve"],
        measures=["speedup", "tokens_per_forward", "coverage", "drafter_us_per_token"], about=["rule"],
        note="Speedups follow from a cost curve; they are not measured. Ticks are the slowest requests.",
    )  # fmt: skip
    on_first = [row for row in rows if row.get("curve") in (None, flat[0]["curve"])]
    yield from chart(
        "Acceptance by position, by rule", "lines", positions(on_first, "workload", "drafter"),
        "position", "accepted", "drafter", menus=["workload"],
    )  # fmt: skip
    yield from table("Replays as a table", flat)
    for one in rows_of(document, "replay", "curves"):
        yield from note("; ".join(value for value in one.values() if isinstance(value, str)))


def _by_curve(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a figure by the names of cost curves; rows of earlier documents are for several curves."""
    value = row.get(name)
    return value if isinstance(value, Mapping) else {row.get("curve", "cost curve"): value}
