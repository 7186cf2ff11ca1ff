"""Put the results into words."""

from collections.abc import Iterator, Sequence
from statistics import geometric_mean

from bench.experiment import Row
from bench.statistics import ratio

PUBLISHED = (
    "Published, for models of billions of parameters (K. Fonal, arXiv:2604.16368): 10 % accepted of drafts "
    "encoded alone, 45 % with 5 tokens of context; 1.06 times as fast as plain at k = 2, 0.70 at k = 4."
)


def findings(rows: Sequence[Row]) -> list[str]:
    """Return sentences on whether context beats naive, which lengths paid, and whether tokens are equal."""
    sentences = []
    for name in dict.fromkeys(row["draft_model"] for row in rows):
        of_model = [row for row in rows if row["draft_model"] == name]
        said = (*_compared(of_model), *_paying([row for row in of_model if row["speedup"]]))
        sentences += [f"{name}: {sentence}" for sentence in said]
    if any(row["strategy"] != "none" for row in rows):
        sentences.append(PUBLISHED)
    failed, count = (sum(row[name] for row in rows) for name in ("parity_differing", "parity_pairs"))
    if failed:
        return [
            *sentences,
            f"{failed} of {count} pairs of a drafted and a plain answer differ; run reprise verify.",
        ]
    return [*sentences, f"All {count} pairs of a drafted and a plain answer are equal, token by token."]


def _compared(rows: Sequence[Row]) -> Iterator[str]:
    """Compare the acceptance with context to that without, for each workload and draft length."""
    cells: dict[tuple[str, int | None, int], dict[str, Row]] = {}
    for row in rows:
        if not row["is_adaptive"]:
            cell = row["workload"], row["prompt_tokens"], row["num_draft_tokens"]
            cells.setdefault(cell, {})[row["strategy"]] = row
    compared = {
        cell: (_counts(found["context"]), _counts(found["naive"]))
        for cell, found in cells.items()
        if {"context", "naive"} <= found.keys()
    }
    if not compared:
        return
    worse = [
        f"{workload} at k = {length} ({ours[1]} of {ours[0]} against {naive[1]} of {naive[0]})"
        for (workload, _, length), (ours, naive) in compared.items()
        if (ratio(ours[1], ours[0]) or 0.0) < (ratio(naive[1], naive[0]) or 0.0)
    ]
    with_context, without = (
        100 * (ratio(*(sum(pair[way][at] for pair in compared.values()) for at in (1, 0))) or 0.0)
        for way in (0, 1)
    )
    verdict = f"context is worse in {len(worse)} of them: {', '.join(worse)}."
    yield (
        f"acceptance is {with_context:.0f} % with context and {without:.0f} % without (naive), over "
        f"{len(compared)} pairs of workload and k; "
        + (verdict if worse else "context is at least as good as naive in all of them.")
    )


def _counts(row: Row) -> tuple[int, int]:
    """Return the numbers of drafted and accepted tokens."""
    drafted, accepted = (sum(pair[at] for pair in row["by_source"].values()) for at in (0, 1))
    return drafted, accepted


def _paying(rows: Sequence[Row]) -> Iterator[str]:
    """Give each strategy's mean speedup over workloads, by draft length, and where every answer paid."""
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        lengths: dict[str, list[Row]] = {}
        for row in sorted(rows, key=lambda row: (row["is_adaptive"], row["num_draft_tokens"])):
            if row["strategy"] == strategy:
                length = "adaptive" if row["is_adaptive"] else f"k = {row['num_draft_tokens']}"
                lengths.setdefault(length, []).append(row)
        parts = []
        for length, some in lengths.items():
            paid = [row["workload"] for row in some if row["speedup_low"] > 1]
            where = f"on {', '.join(paid)}" if paid else "nowhere"
            where = "everywhere" if len(paid) == len(some) else where
            parts.append(f"{length}: {geometric_mean(row['speedup'] for row in some):.2f} (paid {where})")
        yield f"{strategy}, speedup against plain: {'; '.join(parts)}."
