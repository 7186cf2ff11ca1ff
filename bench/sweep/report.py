"""Print the results of a sweep: a table for each part, and the best point beside the default."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from bench.experiment import Row
from bench.sweep.points import best_of, default_point, over_all_turns, overall
from bench.tables import Column, pivoted, print_rows
from config.settings import Settings


def _columns(**forms: str) -> list[Column]:
    """Return columns of these fields, whose names are the headings."""
    return [Column(name, name.replace("_", "\n"), form) for name, form in forms.items()]


TRAFFIC = _columns(
    requests="0", entries="0", ngram_size="text", occupancy="%", overwritten="%", known="%", known_again="%",
    acceptance="%", tokens_per_forward="2", speedup="2",
)  # fmt: skip
MEASURED = _columns(
    draft_type="text", num_draft_tokens="0", ngram_size="text", workload="text", speedup="2",
    replayed_speedup="2", parity="text",
)  # fmt: skip
TABLES: dict[str, tuple[str, list[Column], str | None]] = {
    "grid": ("Replayed speedup by maximum draft length: mean of the workloads (lowest)",
             _columns(draft_type="text", ngram_size="text"), "num_draft_tokens"),
    "measured": ("Speedup on the engine; FAIL: an answer differs from the plain one", MEASURED, None),
    "gate": ("Replayed speedup by gate: below the threshold, auto drafts less at first, on never",
             _columns(threshold="text", repetitive="%"), "gate"),
    "warm": ("Replayed speedup with an n-gram table that is empty, or has the answers to all chats",
             _columns(pair="text", workload="text", draft_type="text"), "memory"),
    "table_sizes": ("ngram-mod alone, replayed; known: answer tokens that the table predicts", TRAFFIC, None),
    "ngram_sizes": ("The same by n", TRAFFIC, None),
}  # fmt: skip
"""Title and columns of a part's table. With a field, a row has the means of points by that field's values."""


def print_report(console: Console, section: Row, settings: Settings) -> None:
    """Print all parts in the section. settings: the server's defaults, to compare the best with."""
    gate = {"threshold": settings.gate_threshold, "gate": settings.gate}
    defaults = {"grid": default_point(settings), "gate": gate}
    for name, (title, columns, field) in TABLES.items():
        rows = section.get(name)
        if rows and field:
            notes = _conclusions(rows, defaults[name]) if name in defaults else ()
            means = overall(over_all_turns(rows), [*(str(one.name) for one in columns), field])
            print_rows(console, *pivoted(means, columns, field, _mean_and_lowest), title, notes)
        elif rows:
            print_rows(console, rows, columns, title)


def _conclusions(rows: Sequence[Row], default: Row) -> Iterator[str]:
    """Say which point has the highest mean, and what the default has."""
    fields = tuple(default)
    means = [row for row in overall(rows, fields) if default.items() <= row.items()]
    for name, found in (("best", best_of(rows, fields)), *(("default", row) for row in means)):
        about = ", ".join(f"{field.replace('_', ' ')} {found[field]}" for field in fields)
        yield f"the {name}: {about}: {_mean_and_lowest(found)}"


def _mean_and_lowest(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.3f} ({row['lowest']:.2f})"
