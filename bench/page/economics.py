"""The section about when drafting pays: fits, break-evens, choices, and predictions."""

from bench.page.charts import Row, chart, is_number, line, rule
from bench.page.parts import Built, Document, Part, Rows, advice, note_part, rows_of, table


def economics(document: Document) -> Built:
    """Return the section on when drafting pays."""
    fits, choices, buckets, predicted, points = (
        rows_of(document, "economics", name) for name in ("fits", "choices", "buckets", "predicted", "points")
    )
    section = document.get("economics") or {}
    sentences = section.get("advice") or []
    if not (fits or choices or buckets or predicted or sentences):
        return None
    even = [fit for fit in fits if is_number(fit.get("break_even"))]
    parts = advice("Advice", sentences)
    if points:
        parts.append(_fits(points, section.get("plain_tps") or 1))
    if fits:
        parts.append(table("Fits as a table", fits))
    if len(even) > 1:
        parts.append(_break_evens(even))
    if choices:
        parts += [_choices(choices), table("Choices as a table", choices)]
    if buckets:
        parts.append(_buckets(buckets))
    if predicted:
        parts += [_predicted(predicted), table("Errors as a table", rows_of(document, "economics", "errors"))]
    energy = section.get("energy") or {}
    if rows := rows_of(section, "energy"):
        parts.append(table(f"Energy of {energy.get('measured')}, in joules per token", rows))
    else:
        parts.append(note_part(f"Energy: not measured ({energy.get('reason') or 'no reason given'})."))
    parts += [note_part(str(section["intervals"]))] if section.get("intervals") else []
    needs = ", ".join(f"{fit['break_even']:.2f} at k = {fit['num_draft_tokens']}" for fit in even)
    lead = f"Drafts of k tokens pay if their acceptance is above the break-even: {needs}."
    return lead if even else "Decoding speed by acceptance rate.", parts


def _drafts(row: Row) -> str:
    return f"{row.get('draft_type', 'controlled')}{', gated' if row.get('is_gated') else ''}"


def _fits(points: Rows, plain: float) -> Part:
    rows = [
        row | {"drafts": _drafts(row), "k": f"k = {row['num_draft_tokens']}", "speed": row["speedup"] * plain}
        for row in points
        if is_number(row.get("acceptance")) and is_number(row.get("speedup")) and not row.get("is_gated")
    ]
    return chart(
        "Speed by acceptance, for each draft length k", "points", rows, "acceptance", "speed", "drafts", "k",
        titles=("acceptance", "tokens per second"), about=["workload"], width=320,
        layers=[line("acceptance", "speed", "datum.draft_type == 'controlled'", "k"), rule("y", plain)],
        note="Each mark is an answer; the slanted line is the least-squares fit over drafts of controlled "
        "acceptance. It crosses plain decoding, the level line, at the break-even.",
    )  # fmt: skip


def _break_evens(fits: Rows) -> Part:
    x, y = "num_draft_tokens", "break_even"
    rows = [fit | {"of": "break-even"} for fit in fits]
    interval = {
        "mark": {"type": "rule", "aria": False},
        "encoding": {
            "x": {"field": x, "type": "quantitative"}, "y": {"field": "low", "type": "quantitative"},
            "y2": {"field": "high"},
        },
    }  # fmt: skip
    return chart(
        "Break-even by draft length", "points", rows, x, y, "of", about=["low", "high"],
        layers=[interval, line(x, y)], titles=("draft length k", "break-even acceptance"),
        note="Upright lines are 95 % intervals; the slanted one is the least-squares fit.",
    )  # fmt: skip


def _choices(choices: Rows) -> Part:
    rows = []
    for one in choices:
        is_open = is_number(one.get("low")) and is_number(one.get("high")) and one["low"] < 1 < one["high"]
        speed = f"{one['speedup']:.2f}" if is_number(one.get("speedup")) else "-"
        rows.append(one | {"drafts": _drafts(one), "text": speed + ("†" if is_open else "")})
    return chart(
        "Draft types and lengths", "cells", rows, "num_draft_tokens", "workload", "speedup", "drafts",
        text="text", titles=("maximum draft length", None), about=["low", "high", "acceptance", "n"],
        width=330,
        note="Blue cells are faster than plain decoding, orange cells slower; † marks an interval around it.",
    )  # fmt: skip


def _buckets(buckets: Rows) -> Part:
    rows = [
        one | {"k": f"k = {one.get('num_draft_tokens') or 'auto'}"}
        | {"label": one.get("label") or one.get("bucket")}
        | {"speedup_low": one.get("lowest"), "speedup_high": one.get("highest")}
        for one in buckets
    ]  # fmt: skip
    return chart(
        "Speedup by acceptance", "dots", rows, "value", "label", "k", measures=["speedup"],
        about=["n"], is_sorted=False,
        note="Answers by the acceptance rate of their drafts; the bars run from the slowest to the fastest.",
    )  # fmt: skip


def _predicted(predicted: Rows) -> Part:
    rows = [row | {"drafts": _drafts(row), "by": f"by the {row.get('by')}"} for row in predicted]
    equal = [{"measured": row["measured"], "predicted": row["measured"]} for row in rows]
    return chart(
        "Predicted and measured speedup", "points", rows, "measured", "predicted", "drafts", "by",
        titles=("measured speedup", "predicted speedup"), scales=({"zero": False}, {"zero": False}),
        about=["workload", "num_draft_tokens"], width=420,
        layers=[{"data": {"values": equal}, **line("measured", "predicted")}],
        note="No prediction uses the answer that it predicts. On the slanted line, both agree.",
    )  # fmt: skip
