"""The sections about settings: what a sweep found, and when drafting pays."""

from statistics import geometric_mean

from bench.experiment import grouped
from bench.page.charts import Document, Parts, Row, Rows, advice, chart, label, line, rows_of, rule, tables

ALL = "mean of all"


def sweep(document: Document) -> Parts:
    """Yield the parts about the grid, table sizes, gate thresholds, and cold against warm tables."""
    names = "grid", "measured", "table_sizes", "ngram_sizes", "gate", "warm"
    grid, measured, sizes, ngrams, gate, warm = (rows_of(document, "sweep", name) for name in names)
    yield from _grid(grid)
    label(measured, "setting", "draft_type", num_draft_tokens="max {}", ngram_size="n = {}")
    yield chart("Measured on the engine", "dots", measured, "value", "workload", "setting")
    yield chart("Size of ngram-mod's table", "lines", sizes, "entries", "value", "requests")
    yield chart("Length of ngram-mod's n-grams", "lines", ngrams, "ngram_size", "value", "requests")
    yield chart(
        "Gate threshold", "lines", gate, "threshold", "speedup", "workload", menus=["gate"],
        layers=[rule("y", 1)],
        note="How repetitive a prompt must be to start with long drafts. Low: time is lost; high: gains are.",
    )  # fmt: skip
    label(warm, "chats", "workload", pair="{}")
    yield chart(
        "Cold and warm tables", "dots", [row for row in warm if row.get("turn") is None], "value", "chats",
        "memory", menus=["draft_type"],
        note="Warm: filled earlier, by the same model or another one with the same vocabulary.",
    )  # fmt: skip
    turns = [row for row in warm if row.get("turn") is not None]
    yield chart(
        "Cold against warm, turn by turn", "lines", turns if any(row["turn"] > 1 for row in turns) else (),
        "turn", "speedup", "memory", "chats", menus=["draft_type"],
    )  # fmt: skip
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
        "Draft length by n-gram size", "cells", cells, "num_draft_tokens", "ngrams", "speedup",
        menus=["draft_type", "workload"],
        note="Replayed speedup. Drag over cells to see below what they give by workload, lowest to highest.",
    )  # fmt: skip
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
        "Speed by acceptance, for each draft length k", "points",
        [row for row in points if row.get("acceptance") is not None and not row.get("is_gated")],
        "acceptance", "speedup", "drafts", "k",
        layers=[line("acceptance", "speedup", "datum.draft_type == 'controlled'", "k"), rule("y", 1)],
        note="A mark is an answer. The fit of controlled drafts crosses plain decoding at the break-even.",
    )  # fmt: skip
    evens = [fit for fit in fits if fit.get("break_even") is not None]
    yield chart(
        "Break-even by draft length", "points", evens if len(evens) > 1 else (), "num_draft_tokens",
        "break_even", "drafts", layers=[line("num_draft_tokens", "break_even")],
        note="Upright lines are 95 % intervals; the slanted one is the least-squares fit.",
    )  # fmt: skip
    yield chart(
        "Draft types and lengths", "cells", choices, "num_draft_tokens", "workload", "speedup", "drafts",
        note="Blue cells are faster than plain decoding, orange cells slower; † marks an interval around it.",
    )  # fmt: skip
    yield chart(
        "Speedup by acceptance", "dots", buckets, "value", "label", "k",
        note="Answers by the acceptance rate of their drafts; the bars run from the slowest to the fastest.",
    )  # fmt: skip
    yield chart(
        "Predicted and measured speedup", "points", predicted, "measured", "predicted", "drafts", "by",
        layers=[line("measured", "measured", group="by")],
        note="No prediction uses the answer that it predicts. On the slanted line, both agree.",
    )  # fmt: skip
    listed = "fits", "choices", "errors"
    yield from tables(**{name: rows_of(document, "economics", name) for name in listed})
    energy = section.get("energy") or {}
    yield advice("Energy in joules per token", [energy.get("measured"), energy.get("reason")])
    yield from tables(energy=rows_of(section, "energy"))
    yield advice("Intervals", [section.get("intervals")])


def _named(row: Row) -> Row:
    """Return what charts need besides the fields of a row; buckets of earlier documents had other names."""
    kind, speedup = row.get("draft_type", "controlled"), row.get("speedup") or 0
    is_open = (row.get("low") or 1) < 1 < (row.get("high") or 1)
    return {
        "drafts": f"{kind}, gated" if row.get("is_gated") else kind,
        "k": f"k = {row.get('num_draft_tokens') or 'auto'}",
        "text": f"{speedup:.2f}{'†' if is_open else ''}", "label": row.get("label") or row.get("bucket"),
        "speedup_low": row.get("lowest"), "speedup_high": row.get("highest"),
    }  # fmt: skip
