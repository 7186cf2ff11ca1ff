"""`reprise ps`: show what a running server has loaded, and what it does."""

import argparse
import json
from typing import Any

from reprise.cli.running.server import Server, add_server_arguments
from reprise.cli.units import format_bytes

HELP = "Show the models that a running server has loaded, and how many requests they answer."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --all, --json and the server's address and key to the parser."""
    parser.add_argument("--all", action="store_true", help="Show the models that it could load, too.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")
    add_server_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the server's models; return 0. Raises RefusedError."""
    server = Server.of(arguments)
    rows = find(server)
    if not arguments.all:
        rows = [row for row in rows if row["state"] != "unloaded"]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif rows:
        _print_table(rows)
    else:
        print(f"{server.url} has no model loaded; `reprise ps --all` shows those that it could load")
    return 0


def find(server: Server) -> list[dict[str, Any]]:
    """Ask a server for the name, state, sizes and numbers of requests of each of its models.

    Raises RefusedError and UsageError.
    """
    cards = server.models()
    if "state" in cards[0]:
        rows = [_row(card, card["state"], card["size_bytes"], card) for card in cards]
    else:
        # One model for good, under each of its names.
        health = server.get("/health")
        rows = [_row(cards[0], "loaded", cards[0]["meta"]["size"], health)]
    return rows


def _row(card: dict[str, Any], state: str, num_bytes: int, counts: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": card["id"],
        "state": state,
        "progress": card.get("progress"),
        "size_bytes": num_bytes,
        "context_tokens": card["context_length"],
        "running": counts["running"],
        "waiting": counts["waiting"],
        "fault": card.get("fault"),
    }


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("model", style="bold", overflow="fold")
    table.add_column("state")
    for name in ("size", "context", "running", "waiting"):
        table.add_column(name, justify="right", no_wrap=True)
    has_faults = any(row["fault"] for row in rows)
    if has_faults:
        table.add_column("cannot be loaded", overflow="fold")
    for row in rows:
        state = row["state"] if row["progress"] is None else f"{row['state']}, {100 * row['progress']:.0f} %"
        context = "" if row["context_tokens"] is None else f"{row['context_tokens']:,}"
        cells = [row["name"], state, format_bytes(row["size_bytes"]), context]
        cells += [str(row["running"]), str(row["waiting"])]
        table.add_row(*cells, *([row["fault"] or ""] if has_faults else []))
    Console(highlight=False, markup=False).print(table)
