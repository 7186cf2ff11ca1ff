"""Show rows as a table in a terminal, and flatten them for CSV."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table. heading: one or two lines. is_shown: by default, without --columns.

    is_trivial: whether a value is uninformative; a column with only such values is left out by default.
    """

    heading: str
    text: Callable[[Any], str]
    is_shown: bool = True
    is_trivial: Callable[[Any], bool] = lambda value: value is None


def _number(digits: int) -> Callable[[Any], str]:
    return lambda value: "-" if value is None else f"{value:.{digits}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


def _word(value: Any) -> str:
    return "-" if value is None else escape(str(value))


def _turn(value: int | None) -> str:
    return "all" if value is None else str(value)


def _verdict(value: str) -> str:
    return f"[green]{value}[/]" if value == "PASS" else f"[bold red]{value}[/]"


def _positions(value: Sequence[float]) -> str:
    return " ".join(f"{100 * value[at - 1]:.0f}" for at in (1, 2, 4, 8, 16, 31) if at <= len(value)) or "-"


def _sources(value: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{name} {accepted}/{drafted}" for name, (drafted, accepted) in value.items()) or "-"


COLUMNS: dict[str, Column] = {
    "workload": Column("workload", _word),
    "prompt_tokens": Column("prompt", _word),
    "turn": Column("turn", _turn),
    "streams": Column("streams", _word, is_trivial=lambda value: value == 1),
    "draft_type": Column("drafts", _word),
    "num_draft_tokens": Column("max\nlen", _word, is_trivial=lambda value: value == 31),
    "answers": Column("answers", _word, is_shown=False),
    "tokens": Column("tokens", _word, is_shown=False),
    "plain_tps": Column("plain\ntok/s", _number(0)),
    "decode_tps": Column("tok/s", _number(0)),
    "speedup": Column("speed\nup", _number(2)),
    "speedup_low": Column("lowest", _number(2), is_shown=False),
    "speedup_high": Column("highest", _number(2), is_shown=False),
    "of_best_width": Column("% of\nbest", _percent),
    "best_width_speedup": Column("best\nwidth", _number(2), is_shown=False),
    "hindsight_speedup": Column("hind-\nsight", _number(2), is_shown=False),
    "of_hindsight": Column("% of\nhindsight", _percent, is_shown=False),
    "constrained_plain_tps": Column("constrained\nplain tok/s", _number(0), is_shown=False),
    "acceptance": Column("% ac-\ncepted", _percent),
    "acceptance_by_position": Column("% accepted at\n1 2 4 8 16 31", _positions, is_shown=False),
    "drafted_share": Column("% of\ntext", _percent),
    "tokens_per_forward": Column("tok/\nfwd", _number(2)),
    "by_source": Column("accepted/drafted by", _sources, is_shown=False),
    "drafter_us_per_token": Column("us/\ntoken", _number(0)),
    "drafter_open_ms": Column("open\nms", _number(2), is_shown=False),
    "ttft_ms": Column("first\nms", _number(0)),
    "plain_ttft_ms": Column("plain\nfirst ms", _number(0), is_shown=False),
    "prefill_tps": Column("pre-\nfill", _number(0)),
    "plain_prefill_tps": Column("plain\nprefill", _number(0), is_shown=False),
    "energy_j_per_token": Column("J/\ntoken", _number(2)),
    "plain_energy_j_per_token": Column("plain\nJ/token", _number(2), is_shown=False),
    "parity": Column("parity", _verdict),
    "parity_pairs": Column("pairs", _word, is_shown=False),
    "parity_differing": Column("differing\npairs", _word, is_shown=False),
}
"""All columns, by the names in rows, in display order."""

_KEYS = ("workload", "prompt_tokens", "turn", "streams", "draft_type", "num_draft_tokens")
_ENDLESS = 10_000
_WORDS = ("workload", "draft_type", "acceptance_by_position", "by_source")

NOTES = (
    "tok/s: decoding speed after prefill, best run of each turn; counts are over all runs.",
    "% of best: speedup relative to the best possible fixed width, chosen for each answer in hindsight.",
    "% of text: share of the answer's tokens that came from drafts. max len: maximum draft length.",
    "us/token: time spent in drafters. first ms: time to first token without a cache. pre-fill: tokens/s.",
    "parity: every plain run compared with every drafted run, by token ids.",
)


def print_rows(console: Console, rows: Sequence[Row], columns: Sequence[str] | None, title: str) -> None:
    """Print the table, its explanations, and the divergences. columns: None for the default ones."""
    names = columns or [
        name
        for name, column in COLUMNS.items()
        if column.is_shown and not all(column.is_trivial(row[name]) for row in rows)
    ]
    for part in _parts(console, rows, names):
        table = _table(rows, part, title, gap=1)
        console.print(table if fits(console, table) else _table(rows, part, title, gap=0))
    for sentence in NOTES:
        console.print(sentence, style="dim", highlight=False)
    for row in rows:
        if row["first_divergence"]:
            console.print(divergence_text(row), style="red", highlight=False, markup=False)


def _parts(console: Console, rows: Sequence[Row], names: Sequence[str]) -> list[list[str]]:
    """Split the columns into tables that fit the width; each repeats the columns that identify a row."""
    keys = [name for name in names if name in _KEYS]
    parts = [list(keys)]
    for name in names:
        if name in _KEYS:
            continue
        if len(parts[-1]) > len(keys) and not fits(console, _table(rows, [*parts[-1], name], "", gap=0)):
            parts.append(list(keys))
        parts[-1].append(name)
    return parts


def fits(console: Console, table: Table) -> bool:
    """Return whether a table is no wider than the console."""
    endless = console.options.update(max_width=_ENDLESS)
    return Measurement.get(console, endless, table).maximum <= console.width


def _table(rows: Sequence[Row], names: Sequence[str], title: str, gap: int) -> Table:
    """Build a table. gap: additional spaces between columns."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(
            COLUMNS[name].heading,
            justify="left" if name in _WORDS else "right",
            overflow="fold",
            vertical="bottom",
        )
    for at, row in enumerate(rows):
        ends = at + 1 == len(rows) or rows[at + 1]["workload"] != row["workload"]
        table.add_row(*(COLUMNS[name].text(row[name]) for name in names), end_section=ends)
    return table


def divergence_text(row: Row) -> str:
    """Describe the first divergence of a row in a sentence."""
    which = [row["workload"]]
    if row["prompt_tokens"] is not None:
        which.append(f"{row['prompt_tokens']} tokens")
    if row["turn"] is not None:
        which.append(f"turn {row['turn']}")
    first = row["first_divergence"]
    return (
        f"FAIL: {', '.join(which)}, {row['draft_type']} with up to {row['num_draft_tokens']}: "
        f"{row['parity_differing']} of {row['parity_pairs']} pairs of runs differ; the first at token "
        f"{first['token']}, where the best token leads the second best by {first['margin']:.2g}"
    )


def flat(row: Row) -> dict[str, Any]:
    """Flatten a row for CSV: nested values are split, or written as JSON."""
    flattened = dict(row)
    first = flattened.pop("first_divergence") or {}
    return flattened | {
        "first_divergence_token": first.get("token"),
        "first_divergence_margin": first.get("margin"),
        "by_source": json.dumps(row["by_source"]),
    }
