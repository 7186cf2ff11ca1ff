"""The sections about settings: what a sweep found, and when drafting pays."""

from typing import Any

from bench.page.charts import Row, chart, is_number, line, menu, rule
from bench.page.parts import Document, Parts, Rows, advice, label, note, rows_of, table

ALL = "mean of all"
_OF_TABLES = (
    "tokens_per_forward", "known", "occupancy", "overwritten", "acceptance", "speedup", "collisions",
)  # fmt: skip


def sweep(document: Document) -> Parts:
    """Yield the parts about the grid, table sizes, gate thresholds, and cold against warm tables."""
    names = "grid", "measured", "table_sizes", "ngram_sizes", "gate", "warm"
    grid, measured, tables, ngrams, gate, warm = (rows_of(document, "sweep", name) for name in names)
    yield from _grid([row for row in grid if (row["speedup"] or 0) > 0])
    label(measured, "setting", "draft_type", num_draft_tokens="max {}", ngram_size="n = {}")
    yield from chart(
        "Measured on the engine", "dots", measured, "value", "workload", "setting",
        about=["replayed_speedup", "parity"], note="The default and the best of each draft type.",
    )  # fmt: skip
    yield from _zoomed("Size of ngram-mod's table", tables, "entries")
    yield from _zoomed("Length of ngram-mod's n-grams", ngrams, "ngram_size")
    yield from chart(
        "Gate threshold", "lines", gate, "threshold:O", "speedup", "workload", menus=["gate"],
        layers=[rule("y", 1)], about=["acceptance", "repetitive"],
        note="How repetitive a prompt must be for the gate to start with long drafts. A low threshold "
        "tries drafts that lose time; a high one misses gains.",
    )  # fmt: skip
    label(warm, "chats", "workload", pair="{}")
    yield from chart(
        "Cold and warm tables", "dots", [row for row in warm if row.get("turn") is None], "value", "chats",
        "memory", menus=["draft_type"], about=["measured_speedup"],
        measures=["speedup", "tokens_per_forward", "acceptance"],
        note="Warm: filled earlier, by the same model or another one with the same vocabulary.",
    )  # fmt: skip
    turns = [row for row in warm if row.get("turn") is not None]
    yield from chart(
        "Cold against warm, turn by turn", "lines", turns if any(row["turn"] > 1 for row in turns) else (),
        "turn:O", "speedup", "memory", "chats", menus=["draft_type"],
        about=["tokens_per_forward", "acceptance", "measured_speedup"],
    )  # fmt: skip
    for name in names:
        yield from table(f"{name.replace('_', ' ')}, as a table", rows_of(document, "sweep", name))


def _grid(rows: Rows) -> Parts:
    """Draw the grid, with menus for workload and drafter; brushed cells are shown below by workload."""
    cells = [row | {"ngrams": row.get("ngram_size") or "any"} for row in rows]
    for part in chart(
        "Draft length by n-gram size", "cells", cells, "num_draft_tokens", "ngrams", "speedup",
        note="Speedup over plain decoding, by replays of known answers: blue cells are faster, orange "
        "slower. Drag over cells to see below what they give by workload, from the lowest to the highest.",
    ):  # fmt: skip
        heat = part["spec"]
        of_drafter = {"filter": "datum.draft_type == drafter"}
        mean = {"op": "mean", "field": "log", "as": "mean"}
        heat["layer"][0]["params"] = [{"name": "brush", "select": {"type": "interval"}}]
        heat["transform"] = [
            of_drafter, {"filter": f"workload == '{ALL}' || datum.workload == workload"},
            {"calculate": "log(datum.speedup)", "as": "log"},
            {"aggregate": [mean], "groupby": ["num_draft_tokens", "ngrams"]},
            {"calculate": "exp(datum.mean)", "as": "speedup"},
        ]  # fmt: skip
        x = {"field": "speedup", "type": "quantitative", "scale": {"zero": False}}
        brushed = {
            "transform": [of_drafter, {"filter": {"param": "brush"}}],
            "mark": {"type": "boxplot", "extent": "min-max", "size": 10},
            "encoding": {"x": x, "y": {"field": "workload", "type": "nominal", "title": None}},
        }
        params = [
            menu("drafter", "draft type", (row["draft_type"] for row in rows)),
            menu("workload", "workload", [ALL, *(row["workload"] for row in rows)]),
        ]
        data = heat.pop("data")
        plots = [plot | {"width": 480} for plot in (heat, brushed)]
        yield part | {"spec": {"data": data, "params": params, "vconcat": plots}}


def _zoomed(title: str, rows: Rows, field: str) -> Parts:
    """Draw figures of tables with a line for each number of requests."""
    note = "A line for each number of requests. Drag to move along the axis, scroll to zoom."
    for part in chart(title, "lines", rows, field, "value", "requests", measures=_OF_TABLES, note=note):
        layer, select = part["spec"]["layer"][0], {"type": "interval", "encodings": ["x"]}
        layer["params"].append({"name": "zoom", "select": select, "bind": "scales"})
        if field == "entries":
            layer["encoding"]["x"]["scale"] = {"type": "log", "base": 2}
        yield part


def economics(document: Document) -> Parts:
    """Yield the parts about fits, break-evens, choices, and predictions."""
    section = document.get("economics") or {}
    points, fits, choices, buckets, predicted = (
        [row | _named(row) for row in rows_of(document, "economics", name)]
        for name in ("points", "fits", "choices", "buckets", "predicted")
    )
    yield from advice("Advice", section.get("advice"))
    plain = section.get("plain_tps") or 1
    for row in points:
        row["speed"] = (row["speedup"] or 0) * plain
    yield from chart(
        "Speed by acceptance, for each draft length k", "points",
        [row for row in points if is_number(row.get("acceptance")) and not row.get("is_gated")],
        "acceptance", "speed", "drafts", "k", about=["workload"],
        layers=[line("acceptance", "speed", "datum.draft_type == 'controlled'", "k"), rule("y", plain)],
        note="Each mark is an answer; the slanted line is the least-squares fit over drafts of "
        "controlled acceptance. It crosses plain decoding, the level line, at the break-even.",
    )  # fmt: skip
    yield from table("Fits as a table", rows_of(document, "economics", "fits"))
    evens = [fit for fit in fits if is_number(fit.get("break_even"))]
    ends = line("num_draft_tokens", "low") | {"transform": [], "mark": {"type": "rule", "aria": False}}
    ends["encoding"]["y2"] = {"field": "high"}
    yield from chart(
        "Break-even by draft length", "points", evens if len(evens) > 1 else (), "num_draft_tokens",
        "break_even", "drafts", about=["low", "high"], layers=[ends, line("num_draft_tokens", "break_even")],
        note="Upright lines are 95 % intervals; the slanted one is the least-squares fit.",
    )  # fmt: skip
    yield from chart(
        "Draft types and lengths", "cells", choices, "num_draft_tokens", "workload", "speedup", "drafts",
        about=["low", "high", "acceptance", "n"], text="text",
        note="Blue cells are faster than plain decoding, orange cells slower; † marks an interval around it.",
    )  # fmt: skip
    yield from table("Choices as a table", rows_of(document, "economics", "choices"))
    yield from chart(
        "Speedup by acceptance", "dots", buckets, "value", "label", "k", measures=["speedup"], about=["n"],
        note="Answers by the acceptance rate of their drafts; the bars run from the slowest to the fastest.",
    )  # fmt: skip
    equal = [{"measured": row["measured"], "predicted": row["measured"]} for row in predicted]
    yield from chart(
        "Predicted and measured speedup", "points", predicted, "measured", "predicted", "drafts", "by",
        about=["workload", "num_draft_tokens"],
        layers=[line("measured", "predicted", data={"values": equal})],
        note="No prediction uses the answer that it predicts. On the slanted line, both agree.",
    )  # fmt: skip
    yield from table("Errors of predictions as a table", rows_of(document, "economics", "errors"))
    energy = section.get("energy") or {}
    yield from table(f"Energy of {energy.get('measured')}, in joules per token", rows_of(section, "energy"))
    if energy and not energy.get("rows"):
        yield from note(f"Energy: not measured ({energy.get('reason') or 'no reason given'}).")
    yield from note(section.get("intervals"))


def _named(row: Row) -> dict[str, Any]:
    """Return what charts need besides the fields of a row; buckets of earlier documents had other names."""
    kind = row.get("draft_type", "controlled")
    is_open = (row.get("low") or 1) < 1 < (row.get("high") or 1)
    return {
        "drafts": f"{kind}, gated" if row.get("is_gated") else kind,
        "k": f"k = {row.get('num_draft_tokens') or 'auto'}",
        "text": f"{row.get('speedup') or 0:.2f}{'†' if is_open else ''}",
        "label": row.get("label") or row.get("bucket"),
        "speedup_low": row.get("lowest"), "speedup_high": row.get("highest"),
    }  # fmt: skip
