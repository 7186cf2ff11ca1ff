"""Write quantities and tables for people."""

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def format_bytes(number: float) -> str:
    """Format bytes in the largest unit with a value of at least 1."""
    unit = 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.0f} {_UNITS[unit]}" if unit == 0 else f"{number:.1f} {_UNITS[unit]}"


def format_count(number: int | None, unknown: str = "") -> str:
    """Format a number with commas, or the placeholder for an unknown one."""
    return unknown if number is None else f"{number:,}"


THOUGHTS_DROPPED = "the chat template drops earlier ones when the user speaks, so history is read again"


def describe_switch(switch: "Mapping[str, Any]") -> str:
    """Say how to keep earlier thoughts, and what it costs. switch: see Tokenizer.thought_switch."""
    return f"--chat-template-kwargs '{json.dumps(switch)}' keeps them; they then stay in the context"


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json to the parser of a command that prints a table."""
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")


def print_table(
    rows: "Iterable[Sequence[str]]", names: "Sequence[str]" = (), right: "Sequence[str]" = (), title: str = ""
) -> None:
    """Print rows of plain text. names: of the columns; none without a head. right: those set to the right."""
    # Imported here so that other commands do not load it.
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=bool(names), box=None, pad_edge=False)
    for at, name in enumerate(names or ("", "")):
        if name in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, style="" if at else "bold", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)
