"""`reprise ps`, `load` and `unload`: the models of a server that runs."""

import argparse
import json
from typing import Any

from reprise.cli.client import Server, add_server_arguments
from reprise.cli.output import add_json, format_bytes, format_count, print_table

PS_HELP = "Show the models that a running server has loaded, and how many requests they answer."


def add_ps_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --all, --json and the server's address and key to the parser."""
    parser.add_argument("--all", action="store_true", help="Show the models that it could load, too.")
    add_json(parser)
    add_server_arguments(parser)
    parser.set_defaults(run=_ps)


def _ps(arguments: argparse.Namespace) -> int:
    """Print the server's models; return 0. Raises RefusedError."""
    server = Server.of(arguments)
    rows = find(server)
    if not arguments.all:
        rows = [row for row in rows if row["state"] != "unloaded"]
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif rows:
        _print_ps(rows)
    else:
        print(f"{server.url} has no model loaded; `reprise ps --all` shows those that it could load")
    return 0


def find(server: Server) -> list[dict[str, Any]]:
    """Ask a server for the name, state, sizes and numbers of requests of each of its models.

    Raises RefusedError and UsageError.
    """
    cards = server.models()
    if "state" in cards[0]:
        return [_row(card, card["state"], card["size_bytes"], card) for card in cards]
    # One model for good, under each of its names.
    return [_row(cards[0], "loaded", cards[0]["meta"]["size"], server.get("/health"))]


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


def _print_ps(rows: list[dict[str, Any]]) -> None:
    numbers = ("size", "context", "running", "waiting")
    faults = ("cannot be loaded",) if any(row["fault"] for row in rows) else ()
    lines = []
    for row in rows:
        state = row["state"] if row["progress"] is None else f"{row['state']}, {100 * row['progress']:.0f} %"
        sizes = format_bytes(row["size_bytes"]), format_count(row["context_tokens"])
        cells = (row["name"], state, *sizes, str(row["running"]), str(row["waiting"]))
        lines.append((*cells, *(row["fault"] or "" for _ in faults)))
    print_table(lines, ("model", "state", *numbers, *faults), numbers)


LOAD_HELP = "Have a running server load a model."


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, --keep-alive and the server's address and key to the parser."""
    parser.add_argument("name", metavar="NAME", help="Name of the model, as `reprise ps --all` shows it.")
    parser.add_argument(
        "--keep-alive", metavar="TIME",
        help='How long it stays without requests: seconds or "5m"; -1 for good. Default: as the server was '
        "started (--idle-unload-s)",
    )  # fmt: skip
    add_server_arguments(parser)
    parser.set_defaults(run=_load)


def _load(arguments: argparse.Namespace) -> int:
    """Load the model; return 0 once it is loaded. Raises RefusedError if it cannot be loaded."""
    body = {"model": arguments.name}
    if arguments.keep_alive is not None:
        body["keep_alive"] = arguments.keep_alive
    card = Server.of(arguments).read_model("/v1/models/load", body)
    print(f"{card['id']} is loaded ({format_bytes(card['size_bytes'])})")
    return 0


UNLOAD_HELP = "Have a running server unload a model once its requests have ended."


def add_unload_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and the server's address and key to the parser."""
    parser.add_argument("name", metavar="NAME", help="Name of the model, as `reprise ps` shows it.")
    add_server_arguments(parser)
    parser.set_defaults(run=_unload)


def _unload(arguments: argparse.Namespace) -> int:
    """Unload the model; return 0 once it is unloaded. Raises RefusedError if the server refuses."""
    card = Server.of(arguments).read_model("/v1/models/unload", {"model": arguments.name})
    print(f"{card['id']} is unloaded ({format_bytes(card['size_bytes'])} free)")
    return 0
