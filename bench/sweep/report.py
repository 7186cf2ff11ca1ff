"""Print the results of a sweep: a table for each part, and the best point beside the default."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from bench.experiment import Row
from bench.sweep.points import best_of, default_point, over_all_turns, overall
from bench.tables import Column, pivoted, print_rows
from config.settings import Settings

_SIZE = Column("ngram_size", "n-gram\nsize")
ENTRIES = [
    Column("requests", "requests", "0"), Column("entries", "entries", "0"),
    _SIZE, Column("occupancy", "occupied", "%"),
    Column("overwritten", "over-\nwritten", "%"), Column("known", "known", "%"),
    Column("known_again", "known in\nrepeated texts", "%"), Column("acceptance", "accepted", "%"),
    Column("tokens_per_forward", "tokens/\nforward", "2"), Column("speedup", "speedup", "2"),
]  # fmt: skip
MEASURED = [
    Column("draft_type", "drafts"), Column("num_draft_tokens", "max\nlen"),
    _SIZE, Column("workload", "workload"), Column("speedup", "speedup", "2"),
    Column("replayed_speedup", "replayed", "2"), Column("parity", "parity"),
]  # fmt: skip

LISTS = {"measured": MEASURED, "table_sizes": ENTRIES, "ngram_sizes": ENTRIES}
"""By the name of a part: the columns of its rows."""

PIVOTS = {
    "grid": ([Column("draft_type", "drafts"), _SIZE], "num_draft_tokens"),
    "gate": ([Column("threshold", "threshold"), Column("repetitive", "prompts\nabove", "%")], "gate"),
    "warm": ([Column("pair", "model"), Column("workload", ""), Column("draft_type", "drafts")], "memory"),
}
"""By the name of a part: the points in the rows of its table, and the field whose values are its columns."""

TITLES = {
    "grid": "Replayed speedup by maximum draft length: mean of the workloads (lowest)",
    "measured": "Speedup on the engine; FAIL: an answer differs from the plain one",
    "gate": "Replayed speedup by gate: below the threshold, auto drafts less at first, on never",
    "warm": "Replayed speedup with an n-gram table that is empty, or has the answers to all chats",
    "table_sizes": "ngram-mod alone, replayed; known: answer tokens that the table predicts",
    "ngram_sizes": "The same by n",
}


def print_report(console: Console, section: Row, settings: Settings) -> None:
    """Print all parts in the section. settings: the server's defaults, to compare the best with."""
    gate = {"threshold": settings.gate_threshold, "gate": settings.gate}
    defaults = {"grid": default_point(settings), "gate": gate}
    for name, title in TITLES.items():
        rows = section.get(name)
        if not rows:
            continue
        if name in PIVOTS:
            keys, field = PIVOTS[name]
            means = overall(over_all_turns(rows), [*(str(one.name) for one in keys), field])
            shown, columns = pivoted(means, keys, field, _mean_and_lowest)
        else:
            shown, columns = rows, LISTS[name]
        print_rows(console, shown, columns, title, _conclusions(rows, defaults.get(name)))


def _conclusions(rows: Sequence[Row], default: Row | None) -> Iterator[str]:
    """Say which point has the highest mean, and what the default has, if the part has one."""
    if default is not None:
        fields = tuple(default)
        means = [row for row in overall(rows, fields) if default.items() <= row.items()]
        for name, found in (("best", best_of(rows, fields)), *(("default", row) for row in means)):
            about = ", ".join(f"{field.replace('_', ' ')} {found[field]}" for field in fields)
            yield f"the {name}: {about}: {_mean_and_lowest(found)}"


def _mean_and_lowest(row: Row) -> str:
    return f"{row['mean']:.3f} ({row['lowest']:.2f})"
