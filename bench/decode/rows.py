"""Compute the rows of the decode table from runs, and describe its columns."""

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
from rich.console import Console

from bench.decode.answering import add_nested
from bench.experiment import Parity, Row
from bench.statistics import ratio
from bench.tables import Column

_NUMBERS = (
    "num_tokens", "num_prefilled", "decode_s", "prefill_s", "first_token_s", "num_forwards", "drafter_s",
    "open_s", "energy_j",
)  # fmt: skip


def sums_of(runs: Sequence[Row]) -> dict[str, Any]:
    """Return sums over turns: times are those of the best run of each turn, counts are over all runs."""
    if not runs:
        return dict.fromkeys((*_NUMBERS, "tps", "num_counted", "joules_per_token", "by_round"))
    numbers = [{name: row.get(name) for name in ("case", "turn", "round", *_NUMBERS)} for row in runs]
    frame = pl.DataFrame(numbers, infer_schema_length=None, schema_overrides={"energy_j": pl.Float64})
    best = frame.group_by("case", "turn").agg(
        pl.col("num_tokens", "num_prefilled").first(), pl.col("decode_s", "prefill_s", "first_token_s").min()
    )
    sums: dict[str, Any] = frame.sum().to_dicts()[0] | best.sum().to_dicts()[0]
    rounds = frame.group_by("round").agg(pl.col("num_tokens", "decode_s").sum()).sort("round")
    is_metered = not frame["energy_j"].null_count()
    num_counted = int(frame["num_tokens"].sum())
    return sums | {
        "num_counted": num_counted,
        "first_token_s": best["first_token_s"].mean(),
        "tps": ratio(sums["num_tokens"], sums["decode_s"]),
        "joules_per_token": ratio(sums["energy_j"], num_counted) if is_metered else None,
        "by_round": (rounds["num_tokens"] / rounds["decode_s"]).to_list(),
    }


def rows_of(
    runs: Sequence[Row],
    checks: Sequence[Row],
    has_turns: bool | None = None,
    more: Callable[[Sequence[Row], Sequence[Row]], Row] = lambda *_: {},
) -> list[Row]:
    """Return a row over all turns for each workload, length and arm, then rows for single turns.

    checks: see bench.decode.answering.check(). has_turns: whether there are rows for single turns; by default
    if there are several. more: returns further fields, from the runs of an arm and all runs of its cases.
    """
    groups: dict[tuple[str, int | None, str], list[Row]] = {}
    for run in runs:
        if run["draft_type"] != "none":
            groups.setdefault((run["workload"], run["prompt_tokens"], run["arm"]), []).append(run)
    rows = []
    for drafted in groups.values():
        cases = {run["case"] for run in drafted}
        beside = [run for run in runs if run["case"] in cases]
        turns = sorted({run["turn"] for run in drafted})
        is_split = len(turns) > 1 if has_turns is None else has_turns
        for turn in (None, *(turns if is_split else ())):
            ours, others, own = (
                [one for one in some if turn in (None, one["turn"])] for some in (drafted, beside, checks)
            )
            rows.append(row_of(ours, others, own, turn) | more(ours, others))
    return rows


def row_of(drafted: Sequence[Row], beside: Sequence[Row], checks: Sequence[Row], turn: int | None) -> Row:
    """Return the row of the runs of one arm, beside the runs of all arms on the same cases.

    Speedups are over "free", which is plain decoding without a schema, if there is one.
    """
    plain, free = ([run for run in beside if run["arm"] == arm] for arm in ("plain", "free"))
    base, first = free or plain, drafted[0]
    sums, plain_sums, constrained = sums_of(drafted), sums_of(base), sums_of(plain if free else [])
    by_source, by_position = add_nested(drafted)
    num_drafted, num_accepted = (sum(pair[at] for pair in by_source.values()) for at in (0, 1))
    places = {(run["case"], run["turn"], run["arm"]) for run in drafted}
    found = [one for one in checks if (one["case"], one["turn"], one["arm"]) in places]
    parity = Parity()
    for check in found:
        parity.add(check["parity"])
    best_width, hindsight = (
        _mean([check.get(name) for check in found]) for name in ("best_width", "hindsight")
    )
    speedup = ratio(sums["tps"], plain_sums["tps"])
    # The best runs of several turns may be of different rounds, so their ratio can exceed that of any round.
    pairs = zip(sums["by_round"], plain_sums["by_round"], strict=False)
    speedups = [one / other for one, other in pairs] + ([speedup] if speedup else [])
    return {
        "workload": first["workload"], "draft_type": first["draft_type"],
        "num_draft_tokens": first["num_draft_tokens"], "prompt_tokens": first["prompt_tokens"],
        "turn": turn, "streams": first["streams"], "arm": first["arm"],
        "answers": len({place[:2] for place in places}) * first["streams"], "tokens": sums["num_tokens"],
        "decode_tps": sums["tps"], "plain_tps": plain_sums["tps"],
        "constrained_plain_tps": constrained["tps"], "speedup": speedup,
        "speedup_low": min(speedups, default=None), "speedup_high": max(speedups, default=None),
        "prefill_tps": ratio(sums["num_prefilled"], sums["prefill_s"]),
        "plain_prefill_tps": ratio(plain_sums["num_prefilled"], plain_sums["prefill_s"]),
        "ttft_ms": 1000 * sums["first_token_s"], "plain_ttft_ms": 1000 * plain_sums["first_token_s"],
        "acceptance": ratio(num_accepted, num_drafted),
        "acceptance_by_position": [accepted / drafted for drafted, accepted in by_position],
        "drafted_by_position": [drafted for drafted, _ in by_position],
        "tokens_per_forward": ratio(sums["num_counted"], sums["num_forwards"]),
        "drafted_share": ratio(num_accepted, sums["num_counted"]), "by_source": by_source,
        "drafter_us_per_token": ratio(1e6 * sums["drafter_s"], sums["num_counted"]),
        "drafter_open_ms": ratio(1e3 * sums["open_s"], len(drafted) * first["streams"]), **parity.figures(),
        "best_width_speedup": best_width, "of_best_width": ratio(speedup, best_width),
        "hindsight_speedup": hindsight, "of_hindsight": ratio(speedup, hindsight),
        "energy_j_per_token": sums["joules_per_token"],
        "plain_energy_j_per_token": plain_sums["joules_per_token"],
    }  # fmt: skip


def _mean(values: Sequence[float | None]) -> float | None:
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined and len(defined) == len(values) else None


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
            words = dict.fromkeys(("draft_model", "strategy", "workload"), "{}")
            words |= {"prompt_tokens": "{} tokens", "turn": "turn {}"}
            known = [text.format(row[name]) for name, text in words.items() if row.get(name) is not None]
            text = (
                f"FAIL: {', '.join(known)}, {row['draft_type']} with up to {row['num_draft_tokens']}: "
                f"{row['parity_differing']} of {row['parity_pairs']} pairs of runs differ; the first at "
                f"token {first['token']}, where the best token leads the second best by {first['margin']:.2g}"
            )
            console.print(text, style="red", highlight=False, markup=False)


def flat(row: Row) -> Row:
    """Return a row for CSV, with the first divergence in two fields."""
    flattened = dict(row)
    first = flattened.pop("first_divergence") or {}
    return flattened | {f"first_divergence_{name}": first.get(name) for name in ("token", "margin")}
