"""Compute the rows of the decode table from runs, and describe its columns."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

import polars as pl
from rich.console import Console

from bench.decode.answering import add_counts, add_nested
from bench.experiment import Parity, Row
from bench.statistics import ratio
from bench.tables import Column


def rows_of(runs: Sequence[Row], checks: Sequence[Row], has_turns: bool | None = None) -> list[Row]:
    """Return a row over all turns for each workload, length and arm, then rows for single turns.

    checks: see bench.decode.answering.check(). has_turns: whether there are rows for single turns; by default
    if there are several.
    """
    groups: dict[tuple[str, int | None, str], list[Row]] = {}
    for run in runs:
        if run["draft_type"] != "none":
            groups.setdefault((run["workload"], run["prompt_tokens"], run["arm"]), []).append(run)
    rows = []
    for drafted in groups.values():
        cases, arm = {run["case"] for run in drafted}, drafted[0]["arm"]
        plain = [run for run in runs if run["arm"] == "plain" and run["case"] in cases]
        checked = [one for one in checks if one["arm"] == arm and one["case"] in cases]
        turns = sorted({run["turn"] for run in drafted})
        is_split = len(turns) > 1 if has_turns is None else has_turns
        for turn in (None, *(turns if is_split else ())):
            of_turn = (
                [one for one in some if turn in (None, one["turn"])] for some in (drafted, plain, checked)
            )
            rows.append({"turn": turn} | row_of(*of_turn))
    return rows


_ABOUT = ("workload", "draft_type", "num_draft_tokens", "prompt_tokens", "streams", "arm")
_NUMBERS = (
    "case", "turn", "round", "num_tokens", "num_prefilled", "num_forwards", "decode_s", "prefill_s",
    "first_token_s", "drafter_s", "energy_j",
)  # fmt: skip


def row_of(drafted: Sequence[Row], plain: Sequence[Row], checks: Sequence[Row]) -> Row:
    """Return the row of the runs of one arm, beside plain runs of the same cases.

    Times are those of the best run of each turn, counts are over all runs.
    """
    best, total, speeds = _sums_of(drafted)
    plain_best, plain_total, plain_speeds = _sums_of(plain)
    by_source, by_position = add_nested(drafted)
    num_drafted, num_accepted = (sum(pair[at] for pair in by_source.values()) for at in (0, 1))
    parity = Parity()
    for check in checks:
        parity.add(check["parity"])
    widths = [width for check in checks if (width := check.get("best_width"))]
    best_width = mean(widths) if 0 < len(widths) == len(checks) else None
    tps, plain_tps = (ratio(one["num_tokens"], one["decode_s"]) for one in (best, plain_best))
    speedup = ratio(tps, plain_tps)
    # The best runs of several turns may be of different rounds, so their ratio can exceed that of any round.
    speedups = [one for one in (speedup, *map(ratio, speeds, plain_speeds)) if one]
    num_tokens = total["num_tokens"]
    return {
        **{name: drafted[0][name] for name in _ABOUT},
        "tokens": best["num_tokens"], "decode_tps": tps, "plain_tps": plain_tps, "speedup": speedup,
        "speedup_low": min(speedups, default=None), "speedup_high": max(speedups, default=None),
        "prefill_tps": ratio(best["num_prefilled"], best["prefill_s"]),
        "ttft_ms": 1000 * best["first_token_s"] / best["turns"],
        "acceptance": ratio(num_accepted, num_drafted),
        "acceptance_by_position": [accepted / drafted for drafted, accepted in by_position],
        "drafted_by_position": [drafted for drafted, _ in by_position],
        "tokens_per_forward": ratio(num_tokens, total["num_forwards"]),
        "drafted_share": ratio(num_accepted, num_tokens), "by_source": by_source,
        "translation": add_counts(run["translation"] for run in drafted),
        "drafter_us_per_token": ratio(1e6 * total["drafter_s"], num_tokens), **parity.figures(),
        "best_width_speedup": best_width, "of_best_width": ratio(speedup, best_width),
        "energy_j_per_token": ratio(total["energy_j"], num_tokens),
        "plain_energy_j_per_token": ratio(plain_total["energy_j"], plain_total["num_tokens"]),
    }  # fmt: skip


def _sums_of(runs: Sequence[Row]) -> tuple[dict[str, Any], dict[str, Any], list[float]]:
    """Return sums of the best runs of each turn, sums of all runs, and the speed of each round."""
    frame = pl.DataFrame([{name: run[name] for name in _NUMBERS} for run in runs], infer_schema_length=None)
    best = frame.group_by("case", "turn").min()
    total = frame.sum().row(0, named=True)
    if frame["energy_j"].null_count():
        total["energy_j"] = None
    rounds = frame.group_by("round").agg(pl.col("num_tokens", "decode_s").sum()).sort("round")
    speeds = (rounds["num_tokens"] / rounds["decode_s"]).to_list()
    return best.sum().row(0, named=True) | {"turns": len(best)}, total, speeds


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


COLUMNS = [
    Column("workload", "workload", is_key=True), Column("prompt_tokens", "prompt", is_key=True),
    Column("turn", "turn", lambda value: "all" if value is None else str(value), is_key=True),
    Column("streams", "streams", trivial=1, is_key=True), Column("draft_type", "drafts", is_key=True),
    Column("num_draft_tokens", "max\nlen", trivial=31, is_key=True),
    Column("plain_tps", "plain\ntok/s", "0"), Column("decode_tps", "tok/s", "0"),
    Column("speedup", "speed\nup", "2"), Column("of_best_width", "% of\nbest", _percent),
    Column("acceptance", "% ac-\ncepted", _percent), Column("drafted_share", "% of\ntext", _percent),
    Column("tokens_per_forward", "tok/\nfwd", "2"), Column("drafter_us_per_token", "us/\ntoken", "0"),
    Column("ttft_ms", "first\nms", "0"), Column("prefill_tps", "pre-\nfill", "0"),
    Column("energy_j_per_token", "J/\ntoken", "2"), Column("parity", "parity"),
]  # fmt: skip
"""The columns of the table, in display order; the documents have more."""

NOTES = (
    "tok/s: decoding speed after prefill, best run of each turn; counts are over all runs.",
    "% of best: speedup relative to the best possible fixed width, chosen for each answer in hindsight.",
    "% of text: share of the answer's tokens that came from drafts. max len: maximum draft length.",
    "us/token: time spent in drafters. first ms: time to first token without a cache. pre-fill: tokens/s.",
    "parity: every plain run compared with every drafted run, by token ids.",
)


def print_divergences(console: Console, rows: Sequence[Row]) -> None:
    """Print a sentence for each row with a divergence."""
    for row in rows:
        if first := row["first_divergence"]:
            names = ("draft_model", "strategy", "workload", "prompt_tokens", "turn", "draft_type")
            what = ", ".join(str(row[name]) for name in names if row.get(name))
            text = (
                f"FAIL: {what} with up to {row['num_draft_tokens']}: {row['parity_differing']} of "
                f"{row['parity_pairs']} pairs of runs differ; the first at token {first['token']}, where the "
                f"best token leads the second best by {first['margin']:.2g}"
            )
            console.print(text, style="red", highlight=False, markup=False)
