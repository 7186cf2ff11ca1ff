"""The sections about settings: what a sweep found, and when drafting pays."""

from collections.abc import Callable
from functools import partial

from bench.page.charts import Row, Spec, chart, is_number, known, line, menu, rule
from bench.page.parts import Document, Parts, Rows, advice, extremes, label, rows_of, table, text

ALL = "mean of all"
_OF_TABLES = (
    "tokens_per_forward", "known", "occupancy", "overwritten", "acceptance", "speedup", "collisions",
)  # fmt: skip


def sweep(document: Document) -> Parts:
    """Yield the parts about the grid, table sizes, gate thresholds, and cold against warm tables."""
    drawn = [
        part
        for name, draw in _OF_SWEEP.items()
        if (rows := rows_of(document, "sweep", name))
        for part in (*draw(rows), *table(f"{name.replace('_', ' ')}, as a table", rows))
    ]
    if drawn:
        grid = rows_of(document, "sweep", "grid")
        best = extremes(grid, "draft_type", "num_draft_tokens", "ngram_size", "workload")
        yield text("lead", best or "The effect of single settings on the speed.")
        yield from drawn


def _grid(rows: Rows) -> Parts:
    """Draw the grid, with menus for workload and drafter; brushed cells are shown below by workload."""
    cells = [row | {"ngrams": row.get("ngram_size") or "any"} for row in rows if (row["speedup"] or 0) > 0]
    if not cells:
        return
    drawn = chart(
        "Draft length by n-gram size", "cells", cells,
        {"field": "num_draft_tokens", "title": "maximum draft length", "sort": "ascending"},
        {"field": "ngrams", "title": "n-gram size", "sort": "ascending"}, "speedup", about=["lowest"],
        note="Speedup over plain decoding, by replays of known answers: blue cells are faster, orange "
        "slower. Drag over cells to see below what they give by workload, from the lowest to the highest.",
    )  # fmt: skip
    heat = drawn["spec"]
    heat["layer"][0]["params"] = [{"name": "brush", "select": {"type": "interval"}}]
    of_drafter = {"filter": "datum.draft_type == drafter"}
    lowest = [{"op": op, "field": field, "as": field} for op, field in (("mean", "log"), ("min", "lowest"))]
    heat["transform"] = [
        of_drafter, {"filter": f"workload == '{ALL}' || datum.workload == workload"},
        {"calculate": "log(datum.speedup)", "as": "log"}, {"calculate": "datum.speedup", "as": "lowest"},
        {"aggregate": lowest, "groupby": ["num_draft_tokens", "ngrams"]},
        {"calculate": "exp(datum.log)", "as": "speedup"},
    ]  # fmt: skip
    speedup = {"field": "speedup", "type": "quantitative", "scale": {"zero": False}}
    workloads = [row["workload"] for row in cells]
    below = {
        "transform": [of_drafter, {"filter": {"param": "brush"}}], "height": 24 * len({*workloads}),
        "mark": {"type": "boxplot", "extent": "min-max", "size": 10},
        "encoding": {
            "x": speedup | {"title": "speedup in the brushed cells"},
            "y": {"field": "workload", "type": "nominal", "title": None},
        },
    }  # fmt: skip
    drafters = menu("drafter", "Drafts", [row["draft_type"] for row in cells])
    menus = [drafters, menu("workload", "Workload", [ALL, *workloads])]
    yield drawn | {"spec": {"data": heat.pop("data"), "params": menus, "vconcat": [heat, below]}}


def _measured(rows: Rows) -> Parts:
    label(rows, "setting", "draft_type", num_draft_tokens="max {}", ngram_size="n = {}")
    yield chart(
        "Measured on the engine", "dots", rows, "value", "workload", "setting", measures=known(rows),
        about=["replayed_speedup", "parity"], note="The default and the best of each draft type.",
    )  # fmt: skip


def _swept(rows: Rows, field: str, title: str, note: str, scale: Spec) -> Parts:
    x = {"field": field, "title": field.replace("_", " "), "scale": scale}
    drawn = chart(title, "lines", rows, x, "value", "requests", measures=known(rows, *_OF_TABLES), note=note)
    zoom = {"name": "zoom", "select": {"type": "interval", "encodings": ["x"]}, "bind": "scales"}
    drawn["spec"]["layer"][0]["params"].append(zoom)
    yield drawn


def _gate(rows: Rows) -> Parts:
    yield chart(
        "Gate threshold", "lines", rows, {"field": "threshold", "type": "ordinal"},
        {"field": "speedup", "title": "speedup over plain decoding"}, "workload", menus={"gate": "Gate"},
        layers=[rule("y", 1)], about=["acceptance", "repetitive"],
        note="How repetitive a prompt must be for the gate to start with long drafts. A low threshold "
        "tries drafts that lose time; a high one misses gains.",
    )  # fmt: skip


def _warm(rows: Rows) -> Parts:
    label(rows, "chats", "workload", pair="{}")
    turns = [row for row in rows if row.get("turn") is not None]
    if whole := [row for row in rows if row.get("turn") is None]:
        yield chart(
            "Cold and warm tables", "dots", whole, "value", "chats", "memory", menus={"draft_type": "Drafts"},
            measures=known(whole, "speedup", "tokens_per_forward", "acceptance"), about=["measured_speedup"],
            note="Warm: the table was filled earlier, by the same model or another one with the same "
            "vocabulary.",
        )  # fmt: skip
    if any(row["turn"] > 1 for row in turns):
        yield chart(
            "Cold against warm, turn by turn", "lines", turns, TURN, "speedup", "memory", "chats", width=320,
            menus={"draft_type": "Drafts"}, about=["tokens_per_forward", "acceptance", "measured_speedup"],
        )  # fmt: skip


TURN = {"field": "turn", "type": "ordinal"}
_OF_SWEEP = {
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


def economics(document: Document) -> Parts:
    """Yield the parts about fits, break-evens, choices, and predictions."""
    section = document.get("economics") or {}
    found = {name: rows_of(document, "economics", name) for name in ("points", *_OF_ECONOMICS)}
    if not any(found.values()) and not section.get("advice"):
        return
    evens = [fit for fit in found["fits"] if is_number(fit.get("break_even"))]
    needs = ", ".join(f"{fit['break_even']:.2f} at k = {fit['num_draft_tokens']}" for fit in evens)
    pays = f"Drafts of k tokens pay if their acceptance is above the break-even: {needs}."
    yield text("lead", pays if evens else "Decoding speed by acceptance rate.")
    yield from advice("Advice", section.get("advice"))
    yield from _speeds(found["points"], section.get("plain_tps") or 1)
    for name, draw in _OF_ECONOMICS.items():
        yield from draw(found[name]) if found[name] else ()
    energy = section.get("energy") or {}
    yield from table(f"Energy of {energy.get('measured')}, in joules per token", rows_of(section, "energy"))
    if not energy.get("rows"):
        yield text("note", f"Energy: not measured ({energy.get('reason') or 'no reason given'}).")
    yield text("note", section.get("intervals") or "")


def _drafts(row: Row) -> dict[str, str]:
    kind = row.get("draft_type", "controlled")
    length = row.get("num_draft_tokens") or "auto"
    return {"drafts": f"{kind}, gated" if row.get("is_gated") else kind, "k": f"k = {length}"}


def _speeds(points: Rows, plain: float) -> Parts:
    rows = [
        row | _drafts(row) | {"speed": row["speedup"] * plain}
        for row in points
        if is_number(row.get("acceptance")) and is_number(row.get("speedup")) and not row.get("is_gated")
    ]
    if rows:
        yield chart(
            "Speed by acceptance, for each draft length k", "points", rows, "acceptance",
            {"field": "speed", "title": "tokens per second"}, "drafts", "k", about=["workload"], width=320,
            layers=[line("acceptance", "speed", "datum.draft_type == 'controlled'", "k"), rule("y", plain)],
            note="Each mark is an answer; the slanted line is the least-squares fit over drafts of "
            "controlled acceptance. It crosses plain decoding, the level line, at the break-even.",
        )  # fmt: skip


def _break_evens(fits: Rows) -> Parts:
    yield from table("Fits as a table", fits)
    x, y = {"field": "num_draft_tokens", "type": "quantitative"}, {"field": "low", "type": "quantitative"}
    interval = {
        "mark": {"type": "rule", "aria": False}, "encoding": {"x": x, "y": y, "y2": {"field": "high"}},
    }  # fmt: skip
    rows = [fit | {"of": "break-even"} for fit in fits if is_number(fit.get("break_even"))]
    if len(rows) > 1:
        yield chart(
            "Break-even by draft length", "points", rows, x | {"title": "draft length k"},
            {"field": "break_even", "title": "break-even acceptance"}, "of", about=["low", "high"],
            layers=[interval, line("num_draft_tokens", "break_even")],
            note="Upright lines are 95 % intervals; the slanted one is the least-squares fit.",
        )  # fmt: skip


def _choices(choices: Rows) -> Parts:
    rows = []
    for one in choices:
        is_open = is_number(one.get("low")) and is_number(one.get("high")) and one["low"] < 1 < one["high"]
        rows.append(one | _drafts(one) | {"text": f"{one['speedup']:.2f}{'†' if is_open else ''}"})
    yield chart(
        "Draft types and lengths", "cells", rows,
        {"field": "num_draft_tokens", "title": "maximum draft length"}, {"field": "workload", "title": None},
        "speedup", "drafts", text="text", about=["low", "high", "acceptance", "n"], width=330,
        note="Blue cells are faster than plain decoding, orange cells slower; † marks an interval around it.",
    )  # fmt: skip
    yield from table("Choices as a table", choices)


def _buckets(buckets: Rows) -> Parts:
    rows = [
        one | _drafts(one) | {"label": one.get("label") or one.get("bucket")}
        | {"speedup_low": one.get("lowest"), "speedup_high": one.get("highest")}
        for one in buckets
    ]  # fmt: skip
    yield chart(
        "Speedup by acceptance", "dots", rows, "value", {"field": "label", "sort": "ascending"}, "k",
        measures=["speedup"], about=["n"],
        note="Answers by the acceptance rate of their drafts; the bars run from the slowest to the fastest.",
    )  # fmt: skip


def _predicted(predicted: Rows) -> Parts:
    rows = [row | _drafts(row) | {"by": f"by the {row.get('by')}"} for row in predicted]
    equal = [{"measured": row["measured"], "predicted": row["measured"]} for row in rows]
    yield chart(
        "Predicted and measured speedup", "points", rows, {"field": "measured", "title": "measured speedup"},
        {"field": "predicted", "title": "predicted speedup"}, "drafts", "by", width=420,
        layers=[{"data": {"values": equal}, **line("measured", "predicted")}],
        about=["workload", "num_draft_tokens"],
        note="No prediction uses the answer that it predicts. On the slanted line, both agree.",
    )  # fmt: skip


_OF_ECONOMICS: dict[str, Callable[[Rows], Parts]] = {
    "fits": _break_evens,
    "choices": _choices,
    "buckets": _buckets,
    "predicted": _predicted,
    "errors": partial(table, "Errors as a table"),
}
