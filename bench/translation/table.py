"""Rows as tables for a terminal, one for each draft model."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.decode.table import fits
from bench.translation.rows import COUNTS

HOW = """\
accepted: of drafted tokens, in %; then of those at the first place of drafts, the second, and so on.
k: tokens of a draft; adaptive: lengths as the engine chooses them, which may leave drafts out.
speed-up: of decoding, against plain runs in turns with them; then that of the answer that gained least, and
of the one that gained most. model's: the draft model's share of the time, in %.
translated, absorbed, skipped: drafts that were said in the target's tokens; that brought nothing new; that
could not be said exactly. resync.: those among them for which an edge had to be looked for.
tokens: of all runs with drafts, against those of all plain ones.
"""
_HEADINGS = (
    "workload", "strategy", "k", "ac-\ncepted", "accepted\nat 1 2 4 6", "tok/\nfwd", "speed-up\n(from to)",
    "mod-\nel's", "translated absorbed\nresync. skipped", "tokens",
)  # fmt: skip
_WORDS = ("workload", "strategy")
_PLACES = (1, 2, 4, 6)


def print_rows(console: Console, rows: Sequence[Mapping[str, Any]], target: str) -> None:
    """Print the tables and what their words mean."""
    for name in dict.fromkeys(row["draft_model"] for row in rows):
        own = sorted((row for row in rows if row["draft_model"] == name), key=_order(rows))
        title = f"Drafts of {escape(name)} for {escape(target)}"
        table = _table(own, title, gap=1)
        console.print(table if fits(console, table) else _table(own, title, gap=0))
    console.print(HOW, style="dim", highlight=False, end="")


def _table(rows: Sequence[Mapping[str, Any]], title: str, gap: int) -> Table:
    """gap: spaces between columns beside the one that there always is."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    for heading in _HEADINGS:
        side: Literal["left", "right"] = "left" if heading in _WORDS else "right"
        table.add_column(heading, justify=side, no_wrap=True, vertical="bottom")
    for at, row in enumerate(rows):
        ends = at + 1 == len(rows) or rows[at + 1]["workload"] != row["workload"]
        table.add_row(*_cells(row), end_section=ends)
    return table


def _order(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Side by side what differs in the strategy alone; workloads and strategies as they were asked for."""
    workloads = list(dict.fromkeys((row["workload"], row["prompt_tokens"]) for row in rows))
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        where = workloads.index((row["workload"], row["prompt_tokens"]))
        return where, row["is_adaptive"], row["num_draft_tokens"], strategies.index(row["strategy"])

    return key


def _cells(row: Mapping[str, Any]) -> list[str]:
    length = f" {row['prompt_tokens']}" if row["prompt_tokens"] else ""
    known = row["acceptance_by_position"]
    places = " ".join(f"{100 * known[at - 1]:.0f}" for at in _PLACES if at <= len(known))
    parity = "[green]equal[/]" if row["parity"] == "PASS" else "[bold red]FAIL[/]"
    return [
        row["workload"] + length,
        row["strategy"],
        length_name(row),
        _percent(row["acceptance"]),
        places or "-",
        f"{row['tokens_per_forward']:.2f}",
        f"{_times(row['speedup'])} ({_times(row['speedup_low'])} {_times(row['speedup_high'])})",
        _percent(row["draft_model_share"]),
        " ".join(f"{row[name]:>5}" for name in COUNTS),
        parity,
    ]


def length_name(row: Mapping[str, Any]) -> str:
    """The length of its drafts, or that the engine chose it."""
    return "adaptive" if row["is_adaptive"] else str(row["num_draft_tokens"])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
