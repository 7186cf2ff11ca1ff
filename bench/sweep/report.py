"""Print the results of a sweep: a table for each part, and the best point beside the default."""

from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Any

from rich.console import Console

from bench.experiment import Row
from bench.sweep.points import best_of, default_point, over_all_turns, overall
from bench.tables import Column, pivoted, print_rows
from config.settings import Settings

ENTRIES = [
    Column("requests", "requests", "0"), Column("entries", "entries", "0"),
    Column("ngram_size", "n-gram\nsize"), Column("occupancy", "occupied", "%"),
    Column("overwritten", "over-\nwritten", "%"), Column("known", "known", "%"),
    Column("known_again", "known in\nrepeated texts", "%"), Column("acceptance", "accepted", "%"),
    Column("tokens_per_forward", "tokens/\nforward", "2"), Column("speedup", "speedup", "2"),
]  # fmt: skip
MEASURED = [
    Column("draft_type", "drafts"), Column("num_draft_tokens", "max\nlen"),
    Column("ngram_size", "n-gram\nsize"), Column("workload", "workload"), Column("speedup", "speedup", "2"),
    Column("replayed_speedup", "replayed", "2"), Column("parity", "parity"),
]  # fmt: skip

NOTES = {
    "grid": "Replayed speedup by maximum draft length: mean of the workloads (lowest).",
    "measured": "Speedup on the engine. FAIL: an answer differs from the plain one.",
    "gate": "Replayed speedup by mode. Below the threshold, auto starts with short drafts; on never drafts.",
    "warm": "Replayed speedup with an n-gram table that is empty, and with one that has the model's answers.",
    "table_sizes": "ngram-mod alone. overwritten: by another token. known: tokens that the table predicts.",
    "ngram_sizes": "The same for n.",
}
"""What stands above the table of a part."""


def print_report(console: Console, section: Row, settings: Settings) -> None:
    """Print all parts in the section. settings: the server's defaults, to compare the best with."""
    gate = {"threshold": settings.gate_threshold, "gate": settings.gate}
    defaults = {"grid": default_point(settings), "gate": gate}
    for name, rows in section.items():
        if name in TABLES and rows:
            console.print(f"\n{NOTES[name]}", highlight=False, markup=False)
            print_rows(console, *TABLES[name](rows))
        if name in defaults and rows:
            console.print(*_conclusions(rows, defaults[name]), sep="\n", highlight=False, markup=False)


def _conclusions(rows: Sequence[Row], default: Row) -> Iterator[str]:
    """Say which point has the highest mean, and what the default has."""
    fields = tuple(default)
    means = [row for row in overall(rows, fields) if default.items() <= row.items()]
    for name, found in (("best", best_of(rows, fields)), *(("default", row) for row in means)):
        about = ", ".join(f"{field.replace('_', ' ')} {found[field]}" for field in fields)
        yield f"the {name}: {about}: {_mean_and_lowest(found)}"


def _mean_and_lowest(row: Row) -> str:
    return f"{row['mean']:.3f} ({row['lowest']:.2f})"


def _pivot(rows: Sequence[Row], field: str, **keys: str) -> tuple[list[Any], list[Column]]:
    """Return a table with the means of the points, and a column for each value of a field.

    keys: fields whose combinations are its rows, with their headings.
    """
    columns = [Column(name, heading) for name, heading in keys.items()]
    return pivoted(overall(rows, (*keys, field)), columns, field, _mean_and_lowest)


def _gate(rows: Sequence[Row]) -> tuple[list[Any], list[Column]]:
    """Return the table of the thresholds, with the share of prompts that reach each of them."""
    found = [
        row
        | {"above": f"{mean(one['repetitive'] for one in rows if one['threshold'] == row['threshold']):.0%}"}
        for row in rows
    ]
    return _pivot(found, "gate", threshold="threshold", above="prompts\nabove")


def _warm(rows: Sequence[Row]) -> tuple[list[Any], list[Column]]:
    """Return the table of cold and warm tables, over all turns."""
    return _pivot(over_all_turns(rows), "memory", pair="model", workload="workload", draft_type="drafts")


TABLES: dict[str, Callable[[Sequence[Row]], tuple[Sequence[Any], list[Column]]]] = {
    "grid": lambda rows: _pivot(rows, "num_draft_tokens", draft_type="drafts", ngram_size="n-gram\nsize"),
    "measured": lambda rows: (rows, MEASURED), "gate": _gate, "warm": _warm,
    "table_sizes": lambda rows: (rows, ENTRIES), "ngram_sizes": lambda rows: (rows, ENTRIES),
}  # fmt: skip
"""By the name of a part: its rows and columns."""
