"""Show rows as tables in a terminal, one per draft model."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.decode.table import fits
from bench.translation.rows import COUNTS

NOTES = """\
accepted: acceptance rate in %; then the rates at positions 1, 2, 4 and 6 of a draft.
k: draft length; adaptive: the engine chooses lengths and may leave drafts out.
speedup: of decoding, against interleaved plain runs; in parentheses the lowest and highest of one answer.
model: share of the time that the draft model takes, in %.
translated: drafts expressed in the target's tokens. absorbed: drafts that added nothing new. skipped: drafts
without an exact translation. resync.: drafts that needed fewer committed tokens in front.
tokens: whether all drafted runs have the same tokens as all plain runs.
"""
_HEADINGS = (
    "workload", "strategy", "k", "ac-\ncepted", "accepted\nat 1 2 4 6", "tok/\nfwd", "speedup\n(from to)",
    "mod-\nel", "translated absorbed\nresync. skipped", "tokens",
)  # fmt: skip
_WORDS = ("workload", "strategy")
_POSITIONS = (1, 2, 4, 6)


def print_rows(console: Console, rows: Sequence[Mapping[str, Any]], target: str) -> None:
    """Print the tables and their explanations."""
    for name in dict.fromkeys(row["draft_model"] for row in rows):
        of_model = sorted((row for row in rows if row["draft_model"] == name), key=_order(rows))
        title = f"Drafts of {escape(name)} for {escape(target)}"
        table = _table(of_model, title, gap=1)
        console.print(table if fits(console, table) else _table(of_model, title, gap=0))
    console.print(NOTES, style="dim", highlight=False, end="")


def _table(rows: Sequence[Mapping[str, Any]], title: str, gap: int) -> Table:
    """Build a table. gap: additional spaces between columns."""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0), pad_edge=False, show_edge=False)
    for heading in _HEADINGS:
        side: Literal["left", "right"] = "left" if heading in _WORDS else "right"
        table.add_column(heading, justify=side, no_wrap=True, vertical="bottom")
    for at, row in enumerate(rows):
        ends = at + 1 == len(rows) or rows[at + 1]["workload"] != row["workload"]
        table.add_row(*_cells(row), end_section=ends)
    return table


def _order(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Order rows so that those that differ only in strategy are adjacent; otherwise keep the given order."""
    workloads = list(dict.fromkeys((row["workload"], row["prompt_tokens"]) for row in rows))
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        where = workloads.index((row["workload"], row["prompt_tokens"]))
        return where, row["is_adaptive"], row["num_draft_tokens"], strategies.index(row["strategy"])

    return key


def _cells(row: Mapping[str, Any]) -> list[str]:
    length = f" {row['prompt_tokens']}" if row["prompt_tokens"] else ""
    known = row["acceptance_by_position"]
    positions = " ".join(f"{100 * known[at - 1]:.0f}" for at in _POSITIONS if at <= len(known))
    parity = "[green]equal[/]" if row["parity"] == "PASS" else "[bold red]FAIL[/]"
    return [
        row["workload"] + length,
        row["strategy"],
        length_name(row),
        _percent(row["acceptance"]),
        positions or "-",
        f"{row['tokens_per_forward']:.2f}",
        f"{_times(row['speedup'])} ({_times(row['speedup_low'])} {_times(row['speedup_high'])})",
        _percent(row["draft_model_share"]),
        " ".join(f"{row[name]:>5}" for name in COUNTS),
        parity,
    ]


def length_name(row: Mapping[str, Any]) -> str:
    """Return the draft length of a row, or "adaptive" if the engine chose it."""
    return "adaptive" if row["is_adaptive"] else str(row["num_draft_tokens"])


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
