"""The section about settings: the grid, table sizes, gate thresholds, and cold against warm tables."""

from typing import Any

from bench.page.charts import Spec, cells, dots, lines, measures_of, menu, rule
from bench.page.parts import Built, Document, Part, chart, is_number, pick, rows_of, table

ALL = "mean of all"


def sweep(document: Document) -> Built:
    """Return the section on settings."""
    parts = [
        part
        for name, draw in (
            ("grid", _grid),
            ("measured", _measured_grid),
            ("table_sizes", _table_sizes),
            ("ngram_sizes", _ngram_sizes),
            ("gate", _gate),
            ("warm", _warm),
        )
        if (rows := rows_of(document, "sweep", name))
        for part in [*draw(rows), table(f"{name.replace('_', ' ')}, as a table", rows)]
    ]
    if not parts:
        return None
    known = [row for row in rows_of(document, "sweep", "grid") if is_number(row.get("speedup"))]
    lead = "The effect of single settings on the speed."
    if known:
        best = max(known, key=lambda row: row["speedup"])
        lead = (
            f"The best cell of the grid is {best['draft_type']} with drafts of {best['num_draft_tokens']} "
            f"and n-grams of {best.get('ngram_size') or 'any size'}: {best['speedup']:.2f}, on "
            f"{best['workload']}."
        )
    return lead, parts


def _grid(rows: list[dict[str, Any]]) -> list[Part]:
    """Draw the grid, with menus for workload and drafter; brushed cells are shown below by workload."""
    for row in rows:
        row["ngrams"] = row.get("ngram_size") or "any"
    fields = (
        "draft_type", "num_draft_tokens", "ngrams", "workload", "speedup", "tokens_per_forward",
        "acceptance",
    )  # fmt: skip
    known = [pick(row, fields) for row in rows if is_number(row.get("speedup")) and row["speedup"] > 0]
    if not known:
        return []
    workloads = list(dict.fromkeys(str(row["workload"]) for row in known))
    of_drafter = {"filter": "datum.draft_type == drafter"}
    mean = [
        {"calculate": "log(datum.speedup)", "as": "log"},
        {
            "aggregate": [
                {"op": "mean", "field": "log", "as": "log"},
                {"op": "min", "field": "speedup", "as": "lowest"},
            ],
            "groupby": ["num_draft_tokens", "ngrams"],
        },
        {"calculate": "exp(datum.log)", "as": "speedup"},
    ]
    heat = cells(
        known, "num_draft_tokens", "ngrams", "speedup", titles=("maximum draft length", "n-gram size"),
        about=["lowest"],
    )  # fmt: skip
    for axis in ("x", "y"):
        heat["encoding"][axis]["sort"] = "ascending"
    heat["layer"][0]["params"] = [{"name": "brush", "select": {"type": "interval"}}]
    heat["transform"] = [of_drafter, {"filter": f"workload == '{ALL}' || datum.workload == workload"}, *mean]
    below: Spec = {
        "transform": [of_drafter, {"filter": {"param": "brush"}}],
        "height": 24 * len(workloads),
        "mark": {"type": "boxplot", "extent": "min-max", "size": 10},
        "encoding": {
            "x": {
                "field": "speedup",
                "type": "quantitative",
                "scale": {"zero": False},
                "title": "speedup in the brushed cells",
            },
            "y": {"field": "workload", "type": "nominal", "title": None},
        },
    }
    heat.pop("data")
    spec = {
        "data": {"values": known},
        "params": [
            menu("drafter", "Drafts", list(dict.fromkeys(row["draft_type"] for row in known))),
            menu("workload", "Workload", [ALL, *workloads]),
        ],
        "vconcat": [heat, below],
    }
    note = (
        "Speedup over plain decoding, by replays of known answers: blue cells are faster, orange "
        "slower. Drag over cells to see below what they give by workload, from the lowest to the highest."
    )
    return [chart("Draft length by n-gram size", spec, note)]


def _measured_grid(rows: list[dict[str, Any]]) -> list[Part]:
    for row in rows:
        size = f", n = {row['ngram_size']}" if row.get("ngram_size") else ""
        row["setting"] = f"{row.get('draft_type')}, max {row.get('num_draft_tokens')}{size}"
    spec = dots(rows, "workload", "setting", measures_of(rows), about=["parity"])
    return [
        chart("Measured on the engine", spec, "The default and the best configuration of each draft type.")
    ]


_OF_TABLES = (
    "tokens_per_forward", "known", "occupancy", "overwritten", "acceptance", "speedup", "collisions",
)  # fmt: skip


def _swept(rows: list[dict[str, Any]], field: str, title: str, note: str, scale: Spec) -> list[Part]:
    measures = measures_of(rows, _OF_TABLES)
    for row in rows:
        row["traffic"] = str(row.get("workload") or f"{row.get('requests')} requests")
    spec = lines(
        rows, field, "value", "traffic", titles=(field.replace("_", " "), ""), about=measures,
        menus=[menu("measure", "Show", measures, [name.replace("_", " ") for name in measures])],
        transform=[{"calculate": "datum[measure]", "as": "value"}], scales=(scale, {"zero": False}),
    )  # fmt: skip
    spec["layer"][0]["params"].append(
        {"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}
    )
    return [chart(title, spec, note)]


def _table_sizes(rows: list[dict[str, Any]]) -> list[Part]:
    note = "The same requests with tables of different sizes. Drag to move along the axis, scroll to zoom."
    return _swept(rows, "entries", "Size of ngram-mod's table", note, {"type": "log", "base": 2})


def _ngram_sizes(rows: list[dict[str, Any]]) -> list[Part]:
    note = "Short n-grams match more often, and predict worse."
    return _swept(rows, "ngram_size", "Length of ngram-mod's n-grams", note, {"zero": False})


def _gate(rows: list[dict[str, Any]]) -> list[Part]:
    modes = list(dict.fromkeys(str(row.get("gate")) for row in rows))
    spec = lines(
        rows, "threshold", "speedup", "workload", titles=("threshold", "speedup over plain decoding"),
        kind="ordinal", menus=[menu("mode", "Gate", modes)], transform=[{"filter": "datum.gate == mode"}],
        rules=[rule("y", 1)], about=["acceptance", "repetitive"],
    )  # fmt: skip
    note = (
        "How repetitive a prompt must be for the gate to start with long drafts. A low threshold tries "
        "drafts that lose time; a high one misses gains."
    )
    return [chart("Gate threshold", spec, note)]


def _warm(rows: list[dict[str, Any]]) -> list[Part]:
    for row in rows:
        row["chats"] = ", ".join(str(row[name]) for name in ("workload", "pair") if row.get(name))
        row.setdefault("draft_type", "ngram-mod")
    turns = [row for row in rows if row.get("turn") is not None]
    whole = [row for row in rows if row.get("turn") is None]
    parts = []
    if whole:
        measures = measures_of(whole, ["speedup", "tokens_per_forward", "acceptance"])
        spec = dots(whole, "chats", "memory", measures, {"draft_type": "Drafts"}, ["measured_speedup"])
        note = (
            "Warm: the table was filled earlier, by the same model or another one with the same vocabulary."
        )
        parts.append(chart("Cold and warm tables", spec, note))
    if any(row["turn"] > 1 for row in turns):
        spec = lines(
            turns, "turn", "speedup", "memory", "chats", titles=("turn", "speedup"), kind="ordinal",
            menus=[menu("drafter", "Drafts", list(dict.fromkeys(row["draft_type"] for row in turns)))],
            transform=[{"filter": "datum.draft_type == drafter"}],
            about=["tokens_per_forward", "acceptance", "measured_speedup"],
        )  # fmt: skip
        parts.append(chart("Cold against warm, turn by turn", spec, panel=320))
    return parts
