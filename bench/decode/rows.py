"""Compute the rows of the decode table from runs, and describe its columns."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from bench.decode.answering import add_nested
from bench.experiment import Row
from bench.parity import Parity
from bench.statistics import ratio
from bench.tables import Column, positions

Checks = Mapping[tuple[str, int, str], Row]
"""What is known of a drafted answer, by (case, turn, arm): parity, best_width, hindsight."""

_NUMBERS = (
    "num_tokens", "num_prefilled", "decode_s", "prefill_s", "first_token_s", "num_forwards", "drafter_s",
    "open_s", "energy_j",
)  # fmt: skip


def frame_of(runs: Sequence[Row]) -> pl.DataFrame:
    """Return the numbers of runs as a table, with a row for each turn of each run."""
    names = ("case", "turn", "round", *_NUMBERS)
    flat = [{name: row.get(name) for name in names} for row in runs]
    return pl.DataFrame(flat, infer_schema_length=None, schema_overrides={"energy_j": pl.Float64})


def sums_of(runs: Sequence[Row]) -> dict[str, Any]:
    """Return sums over turns: times are those of the best run of each turn, counts are over all runs."""
    if not runs:
        return dict.fromkeys((*_NUMBERS, "tps", "num_counted", "joules_per_token"))
    frame = frame_of(runs)
    best = frame.group_by("case", "turn").agg(
        pl.col("num_tokens", "num_prefilled").first(), pl.col("decode_s", "prefill_s", "first_token_s").min()
    )
    sums: dict[str, Any] = frame.sum().to_dicts()[0] | best.sum().to_dicts()[0]
    sums["num_counted"] = frame["num_tokens"].sum()
    sums["first_token_s"] = best["first_token_s"].mean()
    sums["tps"] = ratio(sums["num_tokens"], sums["decode_s"])
    is_metered = not frame["energy_j"].null_count()
    sums["joules_per_token"] = ratio(sums["energy_j"], sums["num_counted"]) if is_metered else None
    return sums


def speeds_by_round(runs: Sequence[Row]) -> list[float]:
    """Return the decode speed of each round, over all turns."""
    rounds = frame_of(runs).group_by("round").agg(pl.col("num_tokens", "decode_s").sum()).sort("round")
    return list(rounds.select(pl.col("num_tokens") / pl.col("decode_s")).to_series())


def rows_of(runs: Sequence[Row], checks: Checks) -> list[Row]:
    """Return a row over all turns for each workload, length and configuration, then rows for single turns."""
    groups: dict[tuple[str, int | None, str], list[Row]] = {}
    for run in runs:
        if run["draft_type"] != "none":
            groups.setdefault((run["workload"], run["prompt_tokens"], run["arm"]), []).append(run)
    rows = []
    for drafted in groups.values():
        cases = {run["case"] for run in drafted}
        beside = [run for run in runs if run["case"] in cases]
        rows.append(row_of(drafted, beside, checks))
        turns = sorted({run["turn"] for run in drafted})
        rows += [row_of(drafted, beside, checks, turn) for turn in turns if len(turns) > 1]
    return rows


def row_of(drafted: Sequence[Row], beside: Sequence[Row], checks: Checks, turn: int | None = None) -> Row:
    """Return the row of the runs of one configuration, beside the plain runs of the same cases.

    beside: has arms "plain" and, if there is a schema, "free", which is plain decoding without it.
    turn: the turn that the row is about; None for all.
    Rates and shares are None where they are undefined, such as acceptance if nothing was drafted.
    """
    drafted = [run for run in drafted if turn in (None, run["turn"])]
    plain, free = (
        [run for run in beside if run["arm"] == arm and turn in (None, run["turn"])]
        for arm in ("plain", "free")
    )
    base, first = free or plain, drafted[0]
    sums, plain_sums, constrained = sums_of(drafted), sums_of(base), sums_of(plain if free else [])
    by_source, by_position = add_nested(drafted)
    num_drafted, num_accepted = (sum(pair[at] for pair in by_source.values()) for at in (0, 1))
    found = list(
        {
            key: checks[key] for run in drafted if (key := (run["case"], run["turn"], run["arm"])) in checks
        }.values()
    )
    parity = Parity()
    for check in found:
        parity.add(check["parity"])
    best_width, hindsight = (
        _mean([check.get(name) for check in found]) for name in ("best_width", "hindsight")
    )
    speedup = ratio(sums["tps"], plain_sums["tps"])
    # The best runs of several turns may be of different rounds, so their ratio can exceed that of any round.
    speedups = [
        one / other for one, other in zip(speeds_by_round(drafted), speeds_by_round(base), strict=False)
    ]
    speedups += [speedup] if speedup else []
    answers = len({(run["case"], run["turn"]) for run in drafted}) * first["streams"]
    return {
        "workload": first["workload"], "draft_type": first["draft_type"],
        "num_draft_tokens": first["num_draft_tokens"], "prompt_tokens": first["prompt_tokens"],
        "turn": turn, "streams": first["streams"], "answers": answers, "tokens": sums["num_tokens"],
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


def _sources(value: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {accepted}/{drafted}" for name, (drafted, accepted) in value.items()) or "-"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


COLUMNS = [
    Column("workload", "workload", is_key=True), Column("prompt_tokens", "prompt", is_key=True),
    Column("turn", "turn", lambda value: "all" if value is None else str(value), is_key=True),
    Column("streams", "streams", trivial=1, is_key=True), Column("draft_type", "drafts", is_key=True),
    Column("num_draft_tokens", "max\nlen", trivial=31, is_key=True),
    Column("answers", "answers", is_shown=False), Column("tokens", "tokens", is_shown=False),
    Column("plain_tps", "plain\ntok/s", "0"), Column("decode_tps", "tok/s", "0"),
    Column("speedup", "speed\nup", "2"), Column("speedup_low", "lowest", "2", is_shown=False),
    Column("speedup_high", "highest", "2", is_shown=False), Column("of_best_width", "% of\nbest", _percent),
    Column("best_width_speedup", "best\nwidth", "2", is_shown=False),
    Column("hindsight_speedup", "hind-\nsight", "2", is_shown=False),
    Column("of_hindsight", "% of\nhindsight", _percent, is_shown=False),
    Column("constrained_plain_tps", "constrained\nplain tok/s", "0", is_shown=False),
    Column("acceptance", "% ac-\ncepted", _percent),
    Column("acceptance_by_position", "% accepted at\n1 2 4 8 16 31", positions, is_shown=False),
    Column("drafted_share", "% of\ntext", _percent), Column("tokens_per_forward", "tok/\nfwd", "2"),
    Column("by_source", "accepted/drafted by", _sources, is_shown=False),
    Column("drafter_us_per_token", "us/\ntoken", "0"),
    Column("drafter_open_ms", "open\nms", "2", is_shown=False), Column("ttft_ms", "first\nms", "0"),
    Column("plain_ttft_ms", "plain\nfirst ms", "0", is_shown=False),
    Column("prefill_tps", "pre-\nfill", "0"),
    Column("plain_prefill_tps", "plain\nprefill", "0", is_shown=False),
    Column("energy_j_per_token", "J/\ntoken", "2"),
    Column("plain_energy_j_per_token", "plain\nJ/token", "2", is_shown=False), Column("parity", "parity"),
    Column("parity_pairs", "pairs", is_shown=False),
    Column("parity_differing", "differing\npairs", is_shown=False),
]  # fmt: skip
"""All columns, in display order."""

NOTES = (
    "tok/s: decoding speed after prefill, best run of each turn; counts are over all runs.",
    "% of best: speedup relative to the best possible fixed width, chosen for each answer in hindsight.",
    "% of text: share of the answer's tokens that came from drafts. max len: maximum draft length.",
    "us/token: time spent in drafters. first ms: time to first token without a cache. pre-fill: tokens/s.",
    "parity: every plain run compared with every drafted run, by token ids.",
)


def divergence_text(row: Row) -> str:
    """Describe the first divergence of a row in a sentence."""
    which = [row["workload"]]
    which += [f"{row['prompt_tokens']} tokens"] if row["prompt_tokens"] is not None else []
    which += [f"turn {row['turn']}"] if row["turn"] is not None else []
    first = row["first_divergence"]
    return (
        f"FAIL: {', '.join(which)}, {row['draft_type']} with up to {row['num_draft_tokens']}: "
        f"{row['parity_differing']} of {row['parity_pairs']} pairs of runs differ; the first at token "
        f"{first['token']}, where the best token leads the second best by {first['margin']:.2g}"
    )


def flat(row: Row) -> Row:
    """Return a row for CSV, with the first divergence in two fields."""
    flattened = dict(row)
    first = flattened.pop("first_divergence") or {}
    return flattened | {f"first_divergence_{name}": first.get(name) for name in ("token", "margin")}
