"""The section about settings: the grid, table sizes, gate thresholds, and cold against warm tables."""

from collections.abc import Callable
from functools import partial
from typing import Any

from bench.page.charts import chart, is_number, known, menu, rule
from bench.page.parts import Built, Document, Part, Rows, extremes, label, rows_of, table

ALL = "mean of all"
_OF_TABLES = (
    "tokens_per_forward", "known", "occupancy", "overwritten", "acceptance", "speedup", "collisions",
)  # fmt: skip


def sweep(document: Document) -> Built:
    """Return the section on settings."""
    parts = []
    for name, draw in _PARTS.items():
        if rows := rows_of(document, "sweep", name):
            parts += [*draw(rows), table(f"{name.replace('_', ' ')}, as a table", rows)]
    if not parts:
        return None
    lead = extremes(
        rows_of(document, "sweep", "grid"), "draft_type", "num_draft_tokens", "ngram_size", "workload"
    )
    return lead or "The effect of single settings on the speed.", parts


def _grid(rows: Rows) -> list[Part]:
    """Draw the grid, with menus for workload and drafter; brushed cells are shown below by workload."""
    for row in rows:
        row["ngrams"] = row.get("ngram_size") or "any"
    cells = [row for row in rows if is_number(row.get("speedup")) and row["speedup"] > 0]
    if not cells:
        return []
    part = chart(
        "Draft length by n-gram size", "cells", cells, "num_draft_tokens", "ngrams", "speedup",
        sort="ascending", about=["lowest"], titles=("maximum draft length", "n-gram size"),
        note="Speedup over plain decoding, by replays of known answers: blue cells are faster, orange "
        "slower. Drag over cells to see below what they give by workload, from the lowest to the highest.",
    )  # fmt: skip
    heat = part["spec"]
    heat["layer"][0]["params"] = [{"name": "brush", "select": {"type": "interval"}}]
    of_drafter = {"filter": "datum.draft_type == drafter"}
    lowest = [{"op": op, "field": field, "as": field} for op, field in (("mean", "log"), ("min", "lowest"))]
    heat["transform"] = [
        of_drafter, {"filter": f"workload == '{ALL}' || datum.workload == workload"},
        {"calculate": "log(datum.speedup)", "as": "log"}, {"calculate": "datum.speedup", "as": "lowest"},
        {"aggregate": lowest, "groupby": ["num_draft_tokens", "ngrams"]},
        {"calculate": "exp(datum.log)", "as": "speedup"},
    ]  # fmt: skip
    title = "speedup in the brushed cells"
    below = {
        "transform": [of_drafter, {"filter": {"param": "brush"}}],
        "height": 24 * len({row["workload"] for row in cells}),
        "mark": {"type": "boxplot", "extent": "min-max", "size": 10},
        "encoding": {
            "x": {"field": "speedup", "type": "quantitative", "scale": {"zero": False}, "title": title},
            "y": {"field": "workload", "type": "nominal", "title": None},
        },
    }
    workloads = menu("workload", "Workload", [{"workload": ALL}, *cells], "workload")
    menus = [menu("drafter", "Drafts", cells, "draft_type"), workloads]
    part["spec"] = {"data": heat.pop("data"), "params": menus, "vconcat": [heat, below]}
    return [part]


def _measured(rows: Rows) -> list[Part]:
    label(rows, "setting", "draft_type", num_draft_tokens="max {}", ngram_size="n = {}")
    return [
        chart(
            "Measured on the engine", "dots", rows, "value", "workload", "setting", measures=known(rows),
            about=["replayed_speedup", "parity"], note="The default and the best of each draft type.",
        )
    ]  # fmt: skip


def _swept(rows: Rows, field: str, title: str, note: str, scale: dict[str, Any]) -> list[Part]:
    part = chart(
        title, "lines", rows, field, "value", "requests", measures=known(rows, *_OF_TABLES), note=note,
        titles=(field.replace("_", " "), None), scales=(scale, {"zero": False}),
    )  # fmt: skip
    zoom = {"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}
    part["spec"]["layer"][0]["params"].append(zoom)
    return [part]


def _gate(rows: Rows) -> list[Part]:
    return [
        chart(
            "Gate threshold", "lines", rows, "threshold", "speedup", "workload", menus={"gate": "Gate"},
            titles=("threshold", "speedup over plain decoding"), x_type="ordinal", layers=[rule("y", 1)],
            about=["acceptance", "repetitive"],
            note="How repetitive a prompt must be for the gate to start with long drafts. A low threshold "
            "tries drafts that lose time; a high one misses gains.",
        )
    ]  # fmt: skip


def _warm(rows: Rows) -> list[Part]:
    label(rows, "chats", "workload", pair="{}")
    turns = [row for row in rows if row.get("turn") is not None]
    whole = [row for row in rows if row.get("turn") is None]
    menus, parts = {"draft_type": "Drafts"}, []
    if whole:
        parts.append(chart(
            "Cold and warm tables", "dots", whole, "value", "chats", "memory", menus=menus,
            measures=known(whole, "speedup", "tokens_per_forward", "acceptance"), about=["measured_speedup"],
            note="Warm: the table was filled earlier, by the same model or another one with the same "
            "vocabulary.",
        ))  # fmt: skip
    if any(row["turn"] > 1 for row in turns):
        parts.append(chart(
            "Cold against warm, turn by turn", "lines", turns, "turn", "speedup", "memory", "chats",
            menus=menus, titles=("turn", "speedup"), x_type="ordinal", width=320,
            about=["tokens_per_forward", "acceptance", "measured_speedup"],
        ))  # fmt: skip
    return parts


_PARTS: dict[str, Callable[[Rows], list[Part]]] = {
    "grid": _grid,
    "measured": _measured,
    "table_sizes": partial(
        _swept, field="entries", title="Size of ngram-mod's table", scale={"type": "log", "base": 2},
        note="A line for each number of requests. Drag to move along the axis, scroll to zoom.",
    ),
    "ngram_sizes": partial(
        _swept, field="ngram_size", title="Length of ngram-mod's n-grams", scale={"zero": False},
        note="Short n-grams match more often, and predict worse.",
    ),
    "gate": _gate,
    "warm": _warm,
}  # fmt: skip
"""By the name of a part of the section: what draws its rows."""
