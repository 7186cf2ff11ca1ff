"""The sections about speed: of drafting, of other vocabularies, peers, servers, and replayed rules."""

from collections import Counter
from collections.abc import Mapping
from statistics import median

from bench.page.charts import Document, Parts, Row, Rows, advice, chart, label, line, rows_of, rule, tables


def _decode_rows(document: Document, is_whole: bool = True) -> Rows:
    """Return the rows of decode with a series and a case. is_whole: those of all turns, or of single ones."""
    rows = label(rows_of(document, "decode"), "series", "draft_type", num_draft_tokens="max {}")
    label(rows, "case", "workload", prompt_tokens="{}-token prompt", streams="{} streams")
    return [
        row | {"speedup_best": row.get("best_width_speedup")}
        for row in rows
        if (row.get("turn") is None) == is_whole
    ]


def speedup(document: Document) -> Parts:
    """Yield the parts about speedups by workload and draft type."""
    yield chart(
        "Workloads by speedup", "dots", _decode_rows(document), "value", "case", "series",
        note="At 1: plain decoding. Bars: repeated runs. Ticks: the best fixed draft length, in hindsight.",
    )  # fmt: skip
    yield from tables(all_figures=rows_of(document, "decode"))


def parity(document: Document) -> Parts:
    """Yield the parts about whether drafting changed any token."""
    rows = [row for row in _decode_rows(document) if row.get("parity")]
    for row in rows:
        first = row.get("first_divergence") or {}
        row["text"] = "✓ same" if row["parity"] == "PASS" else f"✗ token {first.get('token', '?')}"
        row["margin"] = first.get("margin")
    yield chart("Each drafted run compared with each plain run", "cells", rows, "series", "case", "parity")


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
    """Yield the parts about acceptance by position, and about gains over the turns of a chat."""
    positions = _positions(_decode_rows(document), "case", "series")
    yield chart(
        "Acceptance by position in the draft", "lines", positions, "position", "accepted", "series", "case"
    )
    turns = _decode_rows(document, is_whole=False)
    yield chart("By turn of the chat", "lines", turns, "turn", "value", "series", "case")


def _positions(rows: Rows, *names: str) -> Rows:
    """Return a point for each position in the draft, with some fields of its row."""
    return [
        {name: row[name] for name in names} | {"position": at, "accepted": share}
        for row in rows
        for at, share in enumerate(row.get("acceptance_by_position") or (), 1)
        if share is not None
    ]


def place(document: Document) -> str:
    """Say where and with which model a document was made."""
    machine, model = document.get("machine") or {}, document.get("model") or {}
    with_model = f"; model {model['name']}" if model.get("name") else ""
    return f"{machine.get('cpu') or 'an unknown machine'}{with_model}"


def costs(*documents: Document) -> Parts:
    """Yield the cost curves of all machines and models in one plot; of each place the last one."""
    curves = {place(one): one["cost_curve"] for one in documents if one.get("cost_curve")}
    rows = [
        {"curve": name, "width": point["width"], "ms": 1000 * point["seconds"]}
        | {"cost": point["seconds"] / points[0]["seconds"]}
        for name, points in curves.items()
        for point in points
    ]
    top = max((row["cost"] for row in rows), default=1)
    yield chart(
        "c(w): cost of a forward pass by width", "lines", rows, "width", "cost", "curve",
        layers=[rule("y", 1), line("width", "width", f"datum.width <= {top}")],
        note="Below the slanted line, a fully accepted draft saves time. At 1, additional width is free.",
    )  # fmt: skip


def translation(document: Document) -> Parts:
    """Yield the parts about draft models with other vocabularies."""
    rows = rows_of(document, "translation")
    for row in rows:
        row["length"] = "adaptive" if row.get("is_adaptive") else f"k = {row.get('num_draft_tokens')}"
    yield advice("Findings", (document.get("translation") or {}).get("findings"))
    yield chart(
        "Strategies, by workload and draft length", "dots", label(rows, "chats", "workload", length="{}"),
        "value", "chats", "strategy", menus=["draft_model"],
        note="k: all drafts have k tokens. adaptive: the engine chooses lengths and may leave drafts out.",
    )  # fmt: skip
    refused = rows_of(document, "translation", "refused")
    yield from tables(translation=rows_of(document, "translation"), refused=refused)


def peers(document: Document) -> Parts:
    """Yield the parts about other servers and loops."""
    return _compared(document, "peers", "rows")


def serve(document: Document) -> Parts:
    """Yield the parts about servers under load."""
    return _compared(document, "serve", "levels")


def _compared(document: Document, section: str, part: str) -> Parts:
    """Yield the parts that compare peers on the same chats. Fields had other names in earlier documents."""
    rows = [row | _level(row) if "concurrency" in row else row for row in rows_of(document, section, part)]
    for row in rows:
        row["peer"] = next(filter(None, map(row.get, ("name", "server", "peer", "side"))), "")
        row["workload"] = row.get("workload") or row.get("model") or "all prompts"
    label(rows, "chats", "workload", streams="{} at a time")
    note = f"Ratios are to {rows[0]['peer']}." if rows else ""
    yield chart("The same prompts on each peer", "dots", rows, "value", "chats", "peer", note=note)
    yield from tables(peers=rows)


def _level(row: Row) -> Row:
    """Return the figures of a row of an earlier document by today's names."""
    ttft, inter_token = row["first_token_s"] or {}, row["inter_token_s"] or {}
    return {
        "streams": row["concurrency"], "requests": row["num_requests"], "failed": row["num_failed"],
        "tokens_per_s": median(row["tokens_per_s"]),
        "tokens_per_s_low": min(row["tokens_per_s"]), "tokens_per_s_high": max(row["tokens_per_s"]),
        "decode_tps": row["decode_tokens_per_s"], "ttft_ms": ttft and 1000 * ttft["p50"],
        "inter_token_ms": inter_token and 1000 * inter_token["p50"],
    }  # fmt: skip


def replay(document: Document) -> Parts:
    """Yield the parts about rules that were replayed without a model."""
    rows = [one for row in rows_of(document, "replay") for one in _by_curve(row)]
    # The workload that stands for all comes first, because menus show their first value.
    rows.sort(key=lambda row: row.get("workload") != "all")
    label(rows, "by", "drafter", used_by="{}")
    yield chart(
        "Rules, best first", "dots", rows, "value", "by", "curve", menus=["workload", "curve"],
        note="Speedups follow from a cost curve; they are not measured. Ticks are the slowest requests.",
    )  # fmt: skip
    on_first = [row for row in rows if row["curve"] == rows[0]["curve"]]
    yield chart(
        "Acceptance by position, by rule", "lines", _positions(on_first, "workload", "drafter"),
        "position", "accepted", "drafter", menus=["workload"],
    )  # fmt: skip
    yield from tables(replays=rows, cost_curves=rows_of(document, "replay", "curves"))


def _by_curve(row: Row) -> Rows:
    """Return a row for each cost curve; rows of earlier documents are for several of them."""
    speedups, slowest = row.get("speedup"), row.pop("slowest", None)
    if not isinstance(speedups, Mapping):
        return [{"curve": "cost curve", **row, "speedup_best": slowest}]
    return [
        row | {"curve": name, "speedup": speedup, "speedup_best": (slowest or {}).get(name)}
        for name, speedup in speedups.items()
    ]
