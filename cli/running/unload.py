"""`reprise unload`: have a running server let go of a model."""

import argparse

from reprise.cli.running.server import Server, add_server_arguments
from reprise.cli.units import format_bytes

HELP = "Have a running server unload a model once its requests have ended."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model and the server's address and key to the parser."""
    parser.add_argument("name", metavar="NAME", help="Name of the model, as `reprise ps` shows it.")
    add_server_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Unload the model; return 0 once it is unloaded. Raises RefusedError if the server refuses."""
    card = Server.of(arguments).post("/v1/models/unload", {"model": arguments.name})
    print(f"{card['id']} is unloaded ({format_bytes(card['size_bytes'])} free)")
    return 0
