"""Put the results into words."""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import Any

Row = Mapping[str, Any]

PUBLISHED = (
    "Published, for models of billions of parameters (K. Fonal, arXiv:2604.16368): 10 % accepted of drafts "
    "encoded alone, 45 % with 5 tokens of context; 1.06 times as fast as plain at k = 2, 0.70 at k = 4."
)


def findings(rows: Sequence[Row]) -> list[str]:
    """Return sentences on whether context beats naive, which lengths paid, and whether tokens are equal."""
    sentences = []
    for name in dict.fromkeys(row["draft_model"] for row in rows):
        of_model = [row for row in rows if row["draft_model"] == name]
        compared = _compared(of_model)
        sentences += [f"{name}: {sentence}" for sentence in (*compared, *_paying(of_model))]
    if any(row["strategy"] != "none" for row in rows):
        sentences.append(PUBLISHED)
    return [*sentences, _parity(rows)]


def _compared(rows: Sequence[Row]) -> list[str]:
    """Compare the acceptance with context to that without, for each workload and draft length."""
    cells: dict[tuple[str, int | None, int], dict[str, Row]] = {}
    for row in rows:
        if not row["is_adaptive"]:
            cell = row["workload"], row["prompt_tokens"], row["num_draft_tokens"]
            cells.setdefault(cell, {})[row["strategy"]] = row
    compared = {cell: found for cell, found in cells.items() if {"context", "naive"} <= found.keys()}
    if not compared:
        return []
    worse = [
        f"{workload} at k = {length} ({_counts(found['context'])} against {_counts(found['naive'])})"
        for (workload, _, length), found in compared.items()
        if _accepted(found["context"]) < _accepted(found["naive"])
    ]
    totals = [_total(found[strategy] for found in compared.values()) for strategy in ("context", "naive")]
    start = (
        f"acceptance is {_share(totals[0])} with context and {_share(totals[1])} without (naive), over "
        f"{len(compared)} pairs of workload and k; "
    )
    if not worse:
        return [start + "context is at least as good as naive in all of them."]
    return [f"{start}context is worse in {len(worse)} of them: {', '.join(worse)}."]


def _paying(rows: Sequence[Row]) -> list[str]:
    """Describe which draft lengths paid, for each strategy."""
    sentences = []
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        of_strategy = [row for row in rows if row["strategy"] == strategy and row["speedup"]]
        lengths = sorted({row["num_draft_tokens"] for row in of_strategy if not row["is_adaptive"]})
        fixed = {
            k: [row for row in of_strategy if not row["is_adaptive"] and row["num_draft_tokens"] == k]
            for k in lengths
        }
        parts = [f"k = {length}: {_speed(some)}" for length, some in fixed.items()]
        if adaptive := [row for row in of_strategy if row["is_adaptive"]]:
            parts.append(f"adaptive: {_speed(adaptive)}")
        if parts:
            sentences.append(f"{strategy}, speedup against plain: {'; '.join(parts)}.")
    return sentences


def _speed(rows: Sequence[Row]) -> str:
    """Return the mean over workloads, and the workloads on which every answer was faster than plain."""
    mean = exp(sum(log(row["speedup"]) for row in rows) / len(rows))
    paid = [row["workload"] for row in rows if row["speedup_low"] > 1]
    where = f"on {', '.join(paid)}" if paid else "nowhere"
    if len(paid) == len(rows):
        where = "everywhere"
    return f"{mean:.2f} (paid {where})"


def _parity(rows: Sequence[Row]) -> str:
    failed = sum(row["parity_differing"] for row in rows)
    count = sum(row["parity_pairs"] for row in rows)
    if not failed:
        return f"All {count} pairs of a drafted and a plain answer are equal, token by token."
    return f"{failed} of {count} pairs of a drafted and a plain answer differ; run reprise verify."


def _accepted(row: Row) -> float:
    """Return the acceptance of a row; 0 if nothing was drafted."""
    return row["acceptance"] or 0.0


def _counts(row: Row) -> str:
    drafted, accepted = _sums([row])
    return f"{accepted} of {drafted}"


def _total(rows: Iterable[Row]) -> float:
    drafted, accepted = _sums(rows)
    return accepted / drafted if drafted else 0.0


def _sums(rows: Iterable[Row]) -> tuple[int, int]:
    """Return the numbers of drafted and accepted tokens."""
    pairs = [pair for row in rows for pair in row["by_source"].values()]
    return sum(drafted for drafted, _ in pairs), sum(accepted for _, accepted in pairs)


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"
