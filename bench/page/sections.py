"""The sections of the page: each yields its charts, tables and advice from a document."""

from collections import Counter
from statistics import geometric_mean

from reprise.bench.experiment import grouped
from reprise.bench.page.charts import (
    Axes,
    Document,
    Parts,
    Row,
    Rows,
    advice,
    chart,
    label,
    line,
    rows_of,
    rule,
    tables,
)

ALL = "mean of all"


def _decode_rows(document: Document, is_whole: bool = True) -> Rows:
    """Return the rows of decode with a series and a case. is_whole: those of all turns, or of single ones."""
    rows = [row for row in rows_of(document, "decode") if (row.get("turn") is None) == is_whole]
    for row in rows:
        row["speedup_best"] = row.get("best_width_speedup")
    label(rows, "series", "draft_type", num_draft_tokens="max {}")
    return label(rows, "case", "workload", prompt_tokens="{}-token prompt", streams="{} streams")


def speedup(document: Document) -> Parts:
    """Yield the parts about speedups by workload and draft type."""
    yield chart(
        "Workloads by speedup",
        "dots",
        _decode_rows(document),
        Axes("value", "case", "series"),
        note="At 1: plain decoding. Bars: repeated runs. Ticks: the best fixed draft length, in hindsight.",
    )
    yield from tables(all_figures=rows_of(document, "decode"))


def parity(document: Document) -> Parts:
    """Yield the parts about whether drafting changed any token."""
    rows = [row for row in _decode_rows(document) if row.get("parity")]
    for row in rows:
        first = row.get("first_divergence") or {}
        row["text"] = "✓ same" if row["parity"] == "PASS" else f"✗ token {first.get('token', '?')}"
        row["margin"] = first.get("margin")
    yield chart(
        "Each drafted run compared with each plain run", "cells", rows, Axes("series", "case", "parity")
    )


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
        "Acceptance by position in the draft",
        "lines",
        positions,
        Axes("position", "accepted", "series", "case"),
    )
    turns = _decode_rows(document, is_whole=False)
    yield chart("By turn of the chat", "lines", turns, Axes("turn", "value", "series", "case"))


def _positions(rows: Rows, *names: str) -> Rows:
    """Return a point for each position in the draft, with some fields of its row."""
    return [
        {name: row[name] for name in names} | {"position": at, "accepted": share}
        for row in rows
        for at, share in enumerate(row.get("acceptance_by_position") or (), 1)
        if share is not None
    ]


def sweep(document: Document) -> Parts:
    """Yield the parts about the grid, table sizes, gate thresholds, and cold against warm tables."""
    names = "grid", "measured", "table_sizes", "ngram_sizes", "gate", "warm"
    grid, measured, sizes, ngrams, gate, warm = (rows_of(document, "sweep", name) for name in names)
    yield from _grid(grid)
    label(measured, "setting", "draft_type", num_draft_tokens="max {}", ngram_size="n = {}")
    yield chart("Measured on the engine", "dots", measured, Axes("value", "workload", "setting"))
    yield chart("Size of ngram-mod's table", "lines", sizes, Axes("entries", "value", "requests"))
    yield chart("Length of ngram-mod's n-grams", "lines", ngrams, Axes("ngram_size", "value", "requests"))
    yield chart(
        "Gate threshold",
        "lines",
        gate,
        Axes("threshold", "speedup", "workload", menus=["gate"]),
        layers=[rule("y", 1)],
        note="How repetitive a prompt must be to start with long drafts. Low: time is lost; high: gains are.",
    )
    label(warm, "chats", "workload", pair="{}")
    yield chart(
        "Cold and warm tables",
        "dots",
        [row for row in warm if row.get("turn") is None],
        Axes("value", "chats", "memory", menus=["draft_type"]),
        note="Warm: filled earlier, by the same model or another one with the same vocabulary.",
    )
    turns = [row for row in warm if row.get("turn") is not None]
    yield chart(
        "Cold against warm, turn by turn",
        "lines",
        turns if any(row["turn"] > 1 for row in turns) else (),
        Axes("turn", "speedup", "memory", "chats", menus=["draft_type"]),
    )
    yield from tables(**{name: rows_of(document, "sweep", name) for name in names})


def _grid(rows: Rows) -> Parts:
    """Draw the grid, with menus for workload and drafter; brushed cells are shown below by workload."""
    rows = [row | {"ngrams": row.get("ngram_size") or "any"} for row in rows if (row["speedup"] or 0) > 0]
    means = [
        {**same[0], "workload": ALL, "speedup": geometric_mean(row["speedup"] for row in same)}
        for same in grouped(rows, "draft_type", "num_draft_tokens", "ngrams").values()
    ]
    cells = [row | {"text": f"{row['speedup']:.2f}"} for row in [*means, *rows]]
    part = chart(
        "Draft length by n-gram size",
        "cells",
        cells,
        Axes("num_draft_tokens", "ngrams", "speedup", menus=["draft_type", "workload"]),
        note="Replayed speedup. Drag over cells to see below what they give by workload, lowest to highest.",
    )
    if part:
        heat = part["spec"]
        above = {name: heat.pop(name) for name in ("data", "params")}
        heat["layer"][0]["params"] = [{"name": "brush", "select": {"type": "interval"}}]
        shown = heat["transform"][0], {"filter": f"datum.workload != '{ALL}'"}, {"filter": {"param": "brush"}}
        x = {"field": "speedup", "type": "quantitative", "scale": {"zero": False}}
        brushed = {
            "transform": shown, "mark": {"type": "boxplot", "extent": "min-max", "size": 10},
            "encoding": {"x": x, "y": {"field": "workload", "type": "nominal", "title": None}},
        }  # fmt: skip
        part["spec"] = above | {"vconcat": [plot | {"width": 480} for plot in (heat, brushed)]}
    yield part


def economics(document: Document) -> Parts:
    """Yield the parts about fits, break-evens, choices, and predictions."""
    section = document.get("economics") or {}
    points, fits, choices, buckets, predicted = (
        [row | _named(row) for row in rows_of(document, "economics", name)]
        for name in ("points", "fits", "choices", "buckets", "predicted")
    )
    yield advice("Advice", section.get("advice"))
    yield chart(
        "Speed by acceptance, for each draft length k",
        "points",
        [row for row in points if row.get("acceptance") is not None and not row.get("is_gated")],
        Axes("acceptance", "speedup", "drafts", "k"),
        layers=[line("acceptance", "speedup", "datum.draft_type == 'controlled'", "k"), rule("y", 1)],
        note="A mark is an answer. The fit of controlled drafts crosses plain decoding at the break-even.",
    )
    evens = [fit for fit in fits if fit.get("break_even") is not None]
    yield chart(
        "Break-even by draft length",
        "points",
        evens if len(evens) > 1 else (),
        Axes("num_draft_tokens", "break_even", "drafts"),
        layers=[line("num_draft_tokens", "break_even")],
        note="Upright lines are 95 % intervals; the slanted one is the least-squares fit.",
    )
    yield chart(
        "Draft types and lengths",
        "cells",
        choices,
        Axes("num_draft_tokens", "workload", "speedup", "drafts"),
        note="Blue cells are faster than plain decoding, orange cells slower; † marks an interval around it.",
    )
    yield chart(
        "Speedup by acceptance",
        "dots",
        buckets,
        Axes("value", "label", "k"),
        note="Answers by the acceptance rate of their drafts; the bars run from the slowest to the fastest.",
    )
    yield chart(
        "Predicted and measured speedup",
        "points",
        predicted,
        Axes("measured", "predicted", "drafts", "by"),
        layers=[line("measured", "measured", group="by")],
        note="No prediction uses the answer that it predicts. On the slanted line, both agree.",
    )
    listed = "fits", "choices", "errors"
    yield from tables(**{name: rows_of(document, "economics", name) for name in listed})
    energy = section.get("energy") or {}
    yield advice("Energy in joules per token", [energy.get("measured"), energy.get("reason")])
    yield from tables(energy=rows_of(section, "energy"))
    yield advice("Intervals", [section.get("intervals")])


def _named(row: Row) -> Row:
    """Return the further fields that charts need of a row."""
    kind, speedup = row.get("draft_type", "controlled"), row.get("speedup") or 0
    is_open = (row.get("low") or 1) < 1 < (row.get("high") or 1)
    return {
        "drafts": f"{kind}, gated" if row.get("is_gated") else kind,
        "k": f"k = {row.get('num_draft_tokens') or 'auto'}",
        "text": f"{speedup:.2f}{'†' if is_open else ''}",
        "speedup_low": row.get("lowest"), "speedup_high": row.get("highest"),
    }  # fmt: skip


def translation(document: Document) -> Parts:
    """Yield the parts about draft models with other vocabularies."""
    rows = rows_of(document, "translation")
    for row in rows:
        row["length"] = "adaptive" if row.get("is_adaptive") else f"k = {row.get('num_draft_tokens')}"
    yield chart(
        "Strategies, by workload and draft length",
        "dots",
        label(rows, "chats", "workload", length="{}"),
        Axes("value", "chats", "strategy", menus=["draft_model"]),
        note="k: all drafts have k tokens. adaptive: the engine chooses lengths and may leave drafts out.",
    )
    yield from tables(translation=rows)


def serve(document: Document) -> Parts:
    """Yield the parts that compare peers on the same chats."""
    rows = rows_of(document, "serve", "levels")
    for row in rows:
        row["workload"] = row.get("workload") or row.get("model") or "random words"
    label(rows, "chats", "workload", streams="{} at a time")
    note = f"Ratios are to {rows[0]['name']}." if rows else ""
    yield chart("The same prompts on each peer", "dots", rows, Axes("value", "chats", "name"), note=note)
    yield from tables(peers=rows)


def replay(document: Document) -> Parts:
    """Yield the parts about rules that were replayed without a model."""
    rows = [row | {"speedup_best": row.pop("slowest", None)} for row in rows_of(document, "replay")]
    # The workload that stands for all comes first, because menus show their first value.
    rows.sort(key=lambda row: row.get("workload") != "all")
    yield chart(
        "Rules, best first",
        "dots",
        rows,
        Axes("value", "drafter", "curve", menus=["workload", "curve"]),
        note="Speedups follow from a cost curve; they are not measured. Ticks are the slowest requests.",
    )
    on_first = [row for row in rows if row["curve"] == rows[0]["curve"]]
    yield chart(
        "Acceptance by position, by rule",
        "lines",
        _positions(on_first, "workload", "drafter"),
        Axes("position", "accepted", "drafter", menus=["workload"]),
    )
    yield from tables(replays=rows, cost_curves=rows_of(document, "replay", "curves"))
