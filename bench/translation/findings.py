"""What came out, in words."""

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import Any

Row = Mapping[str, Any]

PUBLISHED = (
    "Published, for models of billions of parameters (K. Fonal, arXiv:2604.16368): 10 % accepted of drafts "
    "encoded alone, 45 % with 5 tokens of context; 1.06 times as fast as plain at k = 2, 0.70 at k = 4."
)


def findings(rows: Sequence[Row]) -> list[str]:
    """Sentences: is context better than naive, which lengths paid, is every token the same."""
    told = []
    for name in dict.fromkeys(row["draft_model"] for row in rows):
        own = [row for row in rows if row["draft_model"] == name]
        compared = _compared(own)
        told += [f"{name}: {sentence}" for sentence in (*compared, *_paying(own))]
    if any(row["strategy"] != "none" for row in rows):
        told.append(PUBLISHED)
    return [*told, _parity(rows)]


def _compared(rows: Sequence[Row]) -> list[str]:
    """Whether acceptance with context is at least that without, cell by cell."""
    cells: dict[tuple[str, int | None, int], dict[str, Row]] = {}
    for row in rows:
        if not row["is_adaptive"]:
            cell = row["workload"], row["prompt_tokens"], row["num_draft_tokens"]
            cells.setdefault(cell, {})[row["strategy"]] = row
    both = {cell: own for cell, own in cells.items() if {"context", "naive"} <= own.keys()}
    if not both:
        return []
    worse = [
        f"{workload} at k = {length} ({_told(own['context'])} against {_told(own['naive'])})"
        for (workload, _, length), own in both.items()
        if _accepted(own["context"]) < _accepted(own["naive"])
    ]
    every = [_total(own[strategy] for own in both.values()) for strategy in ("context", "naive")]
    told = (
        f"{_share(every[0])} of what it drafts is accepted with context, {_share(every[1])} without (naive) "
        f"over {len(both)} pairs of workload and k; "
    )
    if not worse:
        return [told + "context is at least as good as naive in every one of them."]
    return [f"{told}context is behind in {len(worse)} of them: {', '.join(worse)}."]


def _paying(rows: Sequence[Row]) -> list[str]:
    """Which lengths paid, strategy by strategy."""
    told = []
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        own = [row for row in rows if row["strategy"] == strategy and row["speedup"]]
        lengths = sorted({row["num_draft_tokens"] for row in own if not row["is_adaptive"]})
        fixed = {
            k: [row for row in own if not row["is_adaptive"] and row["num_draft_tokens"] == k]
            for k in lengths
        }
        parts = [f"k = {length}: {_speed(some)}" for length, some in fixed.items()]
        if adaptive := [row for row in own if row["is_adaptive"]]:
            parts.append(f"adaptive: {_speed(adaptive)}")
        if parts:
            told.append(f"{strategy}, times as fast as plain: {'; '.join(parts)}.")
    return told


def _speed(rows: Sequence[Row]) -> str:
    """The mean over workloads, and on which of them every answer was faster than plain."""
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
        return f"All {count} pairs of a drafted and a plain answer are the same, token by token."
    return f"{failed} of {count} pairs of a drafted and a plain answer differ; see reprise verify."


def _accepted(row: Row) -> float:
    """A draft that was never made was never right."""
    return row["acceptance"] or 0.0


def _told(row: Row) -> str:
    drafted, accepted = _sums([row])
    return f"{accepted} of {drafted}"


def _total(rows: Iterable[Row]) -> float:
    drafted, accepted = _sums(rows)
    return accepted / drafted if drafted else 0.0


def _sums(rows: Iterable[Row]) -> tuple[int, int]:
    """Tokens drafted and accepted."""
    pairs = [pair for row in rows for pair in row["by_source"].values()]
    return sum(drafted for drafted, _ in pairs), sum(accepted for _, accepted in pairs)


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"
