"""`reprise load`: have a running server load a model."""

import argparse

from reprise.cli.running.server import Server, add_server_arguments
from reprise.cli.units import format_bytes

HELP = "Have a running server load a model."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, --keep-alive and the server's address and key to the parser."""
    parser.add_argument("name", metavar="NAME", help="Name of the model, as `reprise ps --all` shows it.")
    parser.add_argument(
        "--keep-alive",
        metavar="TIME",
        help='How long it stays without requests: seconds or "5m"; -1 for good. Default: as the server was '
        "started (--idle-unload-s)",
    )
    add_server_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Load the model; return 0 once it is loaded. Raises RefusedError if it cannot be loaded."""
    body = {"model": arguments.name}
    if arguments.keep_alive is not None:
        body["keep_alive"] = arguments.keep_alive
    card = Server.of(arguments).post("/v1/models/load", body)
    print(f"{card['id']} is loaded ({format_bytes(card['size_bytes'])})")
    return 0
