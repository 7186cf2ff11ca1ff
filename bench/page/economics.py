"""The section about when drafting pays: fits, break-evens, choices, and predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.page.charts import Row, chart, curve, is_number, rule
from bench.page.parts import Built, Document, Part, advice, note_part, rows_of, table


def economics(document: Document) -> Built:
    """Return the section on when drafting pays."""
    section = document.get("economics")
    if not isinstance(section, Mapping):
        return None
    fits, choices, buckets, predicted, points = (
        rows_of(document, "economics", name) for name in ("fits", "choices", "buckets", "predicted", "points")
    )
    sentences = section.get("advice") or []
    if not (fits or choices or buckets or predicted or sentences):
        return None
    even = [fit for fit in fits if is_number(fit.get("break_even"))]
    needs = ", ".join(f"{fit['break_even']:.2f} at k = {fit['num_draft_tokens']}" for fit in even)
    lead = f"Drafts of k tokens pay if their acceptance is above the break-even: {needs}."
    parts = advice("Advice", sentences)
    if fits:
        parts += [_fits(fits, points, section.get("plain_tps")), table("Fits as a table", fits)]
    if len(even) > 1:
        parts.append(_break_evens(even, section.get("beta") or {}))
    if choices:
        parts += [_choices(choices), table("Choices as a table", choices)]
    if buckets:
        parts.append(_buckets(buckets))
    if predicted:
        parts.append(_predicted(predicted))
    energy = section.get("energy") or {}
    rows = rows_of(section, "energy")
    title = f"Energy of {energy.get('measured')}, in joules per token"
    why = f" ({energy['reason']})" if energy.get("reason") else ""
    parts.append(table(title, rows) if rows else note_part(f"Energy: not measured{why}."))
    parts += [note_part(str(section["intervals"]))] if section.get("intervals") else []
    return lead if even else "Decoding speed by acceptance rate.", parts


def _fits(fits: Sequence[Row], points: Sequence[Row], plain: Any) -> Part:
    """Draw speed by acceptance: a mark for each answer, and the fitted line of each draft length."""
    rows = [
        {
            "k": f"k = {row.get('num_draft_tokens')}", "drafts": str(row.get("draft_type")),
            "workload": row.get("workload"), "acceptance": row["acceptance"],
            "speed": row["speedup"] * plain if is_number(plain) else row.get("decode_tps"),
        }
        for row in points
        if is_number(row.get("acceptance")) and is_number(row.get("speedup")) and not row.get("is_gated")
    ]  # fmt: skip
    for fit in fits:
        line = {"k": f"k = {fit['num_draft_tokens']}", "drafts": "fitted line"}
        rows += [line | {"acceptance": x, "fitted": fit["a"] + fit["b"] * x} for x in (0, 1)]
    fitted = curve("acceptance", "fitted", color={"field": "drafts", "type": "nominal"})
    return chart(
        "Speed by acceptance, for each draft length k", "points", rows, "acceptance", "speed", "drafts", "k",
        titles=("acceptance", "tokens per second"), about=["workload"], width=320,
        layers=[fitted, *([rule("y", plain)] if is_number(plain) else [])],
        note="Each mark is an answer; the slanted line is the least-squares fit over drafts of controlled "
        "acceptance. It crosses plain decoding, the level line, at the break-even.",
    )  # fmt: skip


def _break_evens(fits: Sequence[Row], beta: Row) -> Part:
    x, y = "num_draft_tokens", "break_even"
    rows = [{**fit, "of": "break-even"} for fit in fits]
    whiskers: dict[str, Any] = curve(x, "low", y2={"field": "high"})
    layers, note = [whiskers | {"mark": {"type": "rule", "aria": False}}], "Upright lines are 95 % intervals."
    if is_number(beta.get("r")) and is_number(beta.get("beta")):
        layers.append(
            curve(x, y, [(row[x], beta["r"] + beta["beta"] * row[x]) for row in (rows[0], rows[-1])])
        )
        note += f" The fit is acceptance = {beta['r']:.3f} {beta['beta']:+.3f} k."
    return chart(
        "Break-even by draft length", "points", rows, x, y, "of", about=["low", "high"], layers=layers,
        titles=("draft length k", "break-even acceptance"), note=note,
    )  # fmt: skip


def _choices(choices: list[dict[str, Any]]) -> Part:
    for one in choices:
        one["drafts"] = f"{one.get('draft_type')}{', gated' if one.get('is_gated') else ''}"
        is_open = is_number(one.get("low")) and is_number(one.get("high")) and one["low"] < 1 < one["high"]
        speed = f"{one['speedup']:.2f}" if is_number(one.get("speedup")) else "-"
        one["text"] = speed + ("†" if is_open else "")
    return chart(
        "Draft types and lengths", "cells", choices, "num_draft_tokens", "workload", "speedup", "drafts",
        text="text", titles=("maximum draft length", None), about=["low", "high", "acceptance", "n"],
        width=330,
        note="Blue cells are faster than plain decoding, orange cells slower; † marks an interval around it.",
    )  # fmt: skip


def _buckets(buckets: list[dict[str, Any]]) -> Part:
    for one in buckets:
        one["length"] = f"k = {one['num_draft_tokens']}" if is_number(one.get("num_draft_tokens")) else "auto"
        low, high = (one.get(name) for name in ("from", "to"))
        one["label"] = str(one.get("label") or one.get("bucket") or f"{low} to {high}")
        one |= {"speedup_low": one.get("lowest"), "speedup_high": one.get("highest")}
    return chart(
        "Speedup by acceptance", "dots", buckets, "value", "label", "length", measures=["speedup"],
        about=["n"], is_sorted=False,
        note="Answers by the acceptance rate of their drafts; the bars run from the slowest to the fastest.",
    )  # fmt: skip


def _predicted(rows: list[dict[str, Any]]) -> Part:
    known = [
        row | {"drafts": str(row.get("draft_type", "controlled")), "by": f"by the {row.get('by')}"}
        for row in rows
        if is_number(row.get("predicted")) and is_number(row.get("measured"))
    ]
    ends = [end(row[name] for row in known for name in ("predicted", "measured")) for end in (min, max)]
    return chart(
        "Predicted and measured speedup", "points", known, "measured", "predicted", "drafts", "by",
        titles=("measured speedup", "predicted speedup"), scales=({"zero": False}, {"zero": False}),
        about=["workload", "num_draft_tokens"], width=420,
        layers=[curve("measured", "predicted", [(end, end) for end in ends])],
        note="No prediction uses the answer that it predicts. On the slanted line, both agree.",
    )  # fmt: skip
