"""The section about when drafting pays: fits, break-evens, choices, and predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

from bench.page.charts import Row, cells, dots, lines, rule, segment
from bench.page.parts import Built, Document, Part, advice, chart, is_number, note_part, pick, rows_of, table


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
    lead = (
        f"Drafts of k tokens pay if their acceptance is above the break-even: {needs}."
        if even
        else "Decoding speed by acceptance rate."
    )
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
    return lead, [*parts, *([note_part(str(section["intervals"]))] if section.get("intervals") else [])]


def _fits(fits: Sequence[Row], points: Sequence[Row], plain: Any) -> Part:
    """Draw speed by acceptance: a mark for each answer, and the fitted line of each draft length."""
    rows = [
        {
            "k": f"k = {row.get('num_draft_tokens')}",
            "drafts": str(row.get("draft_type")),
            "workload": row.get("workload"),
            "acceptance": row["acceptance"],
            "speed": row["speedup"] * plain if is_number(plain) else row.get("decode_tps"),
        }
        for row in points
        if is_number(row.get("acceptance")) and is_number(row.get("speedup")) and not row.get("is_gated")
    ]
    rows += [
        {
            "k": fit["num_draft_tokens"],
            "drafts": "fitted line",
            "acceptance": x,
            "fitted": fit["a"] + fit["b"] * x,
        }
        for fit in fits
        for x in (0, 1)
    ]
    fitted = {
        "transform": [{"filter": "isValid(datum.fitted)"}],
        "mark": {"type": "line", "strokeWidth": 2, "aria": False},
        "encoding": {
            "x": {"field": "acceptance", "type": "quantitative"},
            "y": {"field": "fitted", "type": "quantitative"},
            "color": {"field": "drafts", "type": "nominal"},
        },
    }
    spec = lines(
        rows, "acceptance", "speed", "drafts", "k", titles=("acceptance", "tokens per second"),
        has_lines=False, rules=[fitted, *([rule("y", plain)] if is_number(plain) else [])],
        about=["workload"],
    )  # fmt: skip
    note = (
        "Each mark is an answer; the slanted line is the least-squares fit over drafts of controlled "
        "acceptance. It crosses plain decoding, the level line, at the break-even."
    )
    return chart("Speed by acceptance, for each draft length k", spec, note, panel=320)


def _break_evens(fits: Sequence[Row], beta: Row) -> Part:
    rows = [
        pick(fit, ("num_draft_tokens", "break_even", "low", "high")) | {"of": "break-even"} for fit in fits
    ]
    shared = {"x": {"field": "num_draft_tokens", "type": "quantitative"}}
    whiskers = {
        "transform": [{"filter": "isValid(datum.low)"}],
        "mark": {"type": "rule", "aria": False},
        "encoding": shared | {"y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}},
    }
    rules, note = [whiskers], "Upright lines are 95 % intervals."
    if is_number(beta.get("r")) and is_number(beta.get("beta")):
        ends = [row["num_draft_tokens"] for row in (rows[0], rows[-1])]
        rules.append(
            segment([(k, beta["r"] + beta["beta"] * k) for k in ends], ("num_draft_tokens", "break_even"))
        )
        note += f" The fit is acceptance = {beta['r']:.3f} {beta['beta']:+.3f} k."
    spec = lines(
        rows, "num_draft_tokens", "break_even", "of", titles=("draft length k", "break-even acceptance"),
        has_lines=False, rules=rules, about=["low", "high"],
    )  # fmt: skip
    return chart("Break-even by draft length", spec, note)


def _choices(choices: list[dict[str, Any]]) -> Part:
    for one in choices:
        one["drafts"] = f"{one.get('draft_type')}{', gated' if one.get('is_gated') else ''}"
        is_open = is_number(one.get("low")) and is_number(one.get("high")) and one["low"] < 1 < one["high"]
        one["text"] = (
            f"{one['speedup']:.2f}{'†' if is_open else ''}" if is_number(one.get("speedup")) else "-"
        )
    spec = cells(
        choices, "num_draft_tokens", "workload", "speedup", "drafts", text={"field": "text"},
        titles=("maximum draft length", ""), about=["low", "high", "acceptance", "n"],
    )  # fmt: skip
    note = "Blue cells are faster than plain decoding, orange cells slower; † marks an interval around it."
    return chart("Draft types and lengths", spec, note, panel=330)


def _buckets(buckets: list[dict[str, Any]]) -> Part:
    for one in buckets:
        one["length"] = f"k = {one['num_draft_tokens']}" if is_number(one.get("num_draft_tokens")) else "auto"
        low, high = (one.get(name) for name in ("from", "to"))
        one["accepted"] = str(one.get("label") or one.get("bucket") or f"{low} to {high}")
        one |= {"speedup_low": one.get("lowest"), "speedup_high": one.get("highest")}
    spec = dots(buckets, "accepted", "length", ["speedup"], about=["n"])
    for layer in spec["layer"][1:]:
        layer["encoding"]["y"]["sort"] = None
    note = "Answers by the acceptance rate of their drafts; the bars run from the slowest to the fastest."
    return chart("Speedup by acceptance", spec, note)


def _predicted(rows: list[dict[str, Any]]) -> Part:
    known = [
        row | {"drafts": str(row.get("draft_type", "controlled")), "by": f"by the {row.get('by')}"}
        for row in rows
        if is_number(row.get("predicted")) and is_number(row.get("measured"))
    ]
    ends = [pick(row[name] for row in known for name in ("predicted", "measured")) for pick in (min, max)]
    spec = lines(
        known, "measured", "predicted", "drafts", "by", titles=("measured speedup", "predicted speedup"),
        has_lines=False, scales=({"zero": False}, {"zero": False}), about=["workload", "num_draft_tokens"],
        rules=[segment([(end, end) for end in ends], ("measured", "predicted"))],
    )  # fmt: skip
    note = "No prediction uses the answer that it predicts. On the slanted line, both agree."
    return chart("Predicted and measured speedup", spec, note, panel=420)
