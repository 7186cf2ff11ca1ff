"""Compute the rows of the decode table from runs, and describe its columns."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import mean
from typing import Any

from reprise.bench.decode.answering import add_counts, add_nested
from reprise.bench.experiment import Row, grouped, total_parity
from reprise.bench.statistics import loops, ratio
from reprise.bench.tables import Column

_ABOUT = ("workload", "draft_type", "num_draft_tokens", "prompt_tokens", "streams", "arm")
_NUMBERS = (
    "num_tokens", "num_prefilled", "num_forwards", "decode_s", "prefill_s", "first_token_s", "drafter_s",
)  # fmt: skip


def rows_of(runs: Sequence[Row], checks: Sequence[Row], has_turns: bool = True) -> list[Row]:
    """Return a row for each workload, prompt length and drafting arm.

    checks: rows of reprise.bench.decode.answering.check(). has_turns: also return a row for each turn, if
    there are several. straight: the same figures without the cases in which a plain answer loops.
    """
    rows = []
    drafted = (run for run in runs if run["draft_type"] != "none")
    for (*_, arm), of_arm in grouped(drafted, "workload", "prompt_tokens", "arm").items():
        cases = {run["case"] for run in of_arm}
        plain = [run for run in runs if run["arm"] == "plain" and run["case"] in cases]
        checked = [one for one in checks if one["arm"] == arm and one["case"] in cases]
        whole = row_of(of_arm, plain, checked)
        straight = {run["case"] for run in plain} - {
            run["case"] for run in plain if any(map(loops, run["tokens"]))
        }
        kept = [[one for one in some if one["case"] in straight] for some in (of_arm, plain, checked)]
        whole["cases"], whole["straight_cases"] = len(cases), len(straight)
        whole["straight"] = row_of(*kept) if straight else None
        rows.append({"turn": None} | whole)
        turns = sorted({run["turn"] for run in of_arm})
        for turn in turns if has_turns and len(turns) > 1 else ():
            of_turn = ([one for one in some if one["turn"] == turn] for some in (of_arm, plain, checked))
            rows.append({"turn": turn} | row_of(*of_turn))
    return rows


def row_of(drafted: Sequence[Row], plain: Sequence[Row], checks: Sequence[Row]) -> Row:
    """Return the table row of one arm, from its rows and those of plain runs of the same cases.

    checks: see rows_of().
    Times are those of the best run of each turn, counts are over all runs.
    """
    best, plain_best = _sums_of_best(drafted), _sums_of_best(plain)
    tps, plain_tps = (ratio(one["num_tokens"], one["decode_s"]) for one in (best, plain_best))
    speedup = ratio(tps, plain_tps)
    # The best runs of several turns may be of different rounds, so their ratio can exceed that of any round.
    of_rounds = map(ratio, _speeds(drafted), _speeds(plain))
    speedups = [one for one in (speedup, *of_rounds) if one]
    by_source, by_position = add_nested(drafted)
    num_drafted, num_accepted = (sum(pair[at] for pair in by_source.values()) for at in (0, 1))
    num_tokens = _sum(drafted, "num_tokens")
    widths = [width for check in checks if (width := check.get("best_width"))]
    best_width = mean(widths) if 0 < len(widths) == len(checks) else None
    return {
        **{name: drafted[0][name] for name in _ABOUT},
        "tokens": best["num_tokens"], "decode_tps": tps, "plain_tps": plain_tps, "speedup": speedup,
        "speedup_low": min(speedups, default=None), "speedup_high": max(speedups, default=None),
        "prefill_tps": ratio(best["num_prefilled"], best["prefill_s"]),
        "ttft_ms": 1000 * best["first_token_s"] / best["turns"],
        "acceptance": ratio(num_accepted, num_drafted),
        "acceptance_by_position": [accepted / drafted for drafted, accepted in by_position],
        "drafted_by_position": [drafted for drafted, _ in by_position],
        "tokens_per_forward": ratio(num_tokens, _sum(drafted, "num_forwards")),
        "drafted_share": ratio(num_accepted, num_tokens), "by_source": by_source,
        "translation": add_counts(run["translation"] for run in drafted),
        "drafter_us_per_token": ratio(1e6 * _sum(drafted, "drafter_s"), num_tokens),
        **total_parity(checks),
        "best_width_speedup": best_width, "of_best_width": ratio(speedup, best_width),
        "energy_j_per_token": ratio(_sum(drafted, "energy_j"), num_tokens),
        "plain_energy_j_per_token": ratio(_sum(plain, "energy_j"), _sum(plain, "num_tokens")),
    }  # fmt: skip


def _sum(runs: Iterable[Row], name: str) -> Any:
    """Return the sum of a figure; None if a run lacks it."""
    values = [run[name] for run in runs]
    return None if None in values else sum(values)


def _sums_of_best(runs: Sequence[Row]) -> Row:
    """Return the sums over turns of the lowest numbers of each, and the number of turns."""
    turns = grouped(runs, "case", "turn").values()
    lowest = {name: sum(min(run[name] for run in some) for some in turns) for name in _NUMBERS}
    return lowest | {"turns": len(turns)}


def _speeds(runs: Sequence[Row]) -> list[float | None]:
    """Return the speed of each round."""
    rounds = sorted(grouped(runs, "round").items())
    return [ratio(_sum(some, "num_tokens"), _sum(some, "decode_s")) for _, some in rounds]


COLUMNS = [
    Column("workload", "workload", is_key=True), Column("prompt_tokens", "prompt"),
    Column("turn", "turn", lambda value: "all" if value is None else str(value)),
    Column("streams", "streams", trivial=1), Column("draft_type", "drafts", is_key=True),
    Column("num_draft_tokens", "max\nlen", trivial=31), Column("plain_tps", "plain\ntok/s", "0"),
    Column("decode_tps", "tok/s", "0"), Column("speedup", "speed\nup", "2"),
    Column("of_best_width", "of\nbest", "%"), Column("acceptance", "ac-\ncepted", "%"),
    Column("drafted_share", "of\ntext", "%"), Column("tokens_per_forward", "tok/\nfwd", "2"),
    Column("drafter_us_per_token", "us/\ntoken", "0"), Column("ttft_ms", "first\nms", "0"),
    Column("prefill_tps", "pre-\nfill", "0"), Column("energy_j_per_token", "J/\ntoken", "2"),
    Column("parity", "parity"),
]  # fmt: skip
"""The columns of the table, in display order; the documents have more."""

NOTES = (
    "tok/s: decoding speed after prefill, best run of each turn; counts are over all runs.",
    "of best: speedup relative to the best possible fixed width, chosen for each answer in hindsight.",
    "of text: share of the answer's tokens that came from drafts. max len: maximum draft length.",
    "us/token: time spent in drafters. first ms: time to first token without a cache. pre-fill: tokens/s.",
    "parity: every plain run compared with every drafted run, by token ids.",
)


def divergences(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for each row with a divergence."""
    names = ("draft_model", "strategy", "workload", "prompt_tokens", "turn", "draft_type", "num_draft_tokens")
    for row in rows:
        if first := row["first_divergence"]:
            what = ", ".join(str(row[name]) for name in names if row.get(name))
            pairs = f"{row['parity_differing']} of {row['parity_pairs']} pairs of runs differ"
            lead = f"the best token leads the second best by {first['margin']:.2g}"
            yield f"FAIL: {what}: {pairs}; the first at token {first['token']}, where {lead}"
