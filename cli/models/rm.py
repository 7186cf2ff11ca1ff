"""`reprise rm`: delete a model that has been downloaded, or what one was converted into."""

import argparse

from reprise.cli.arguments import failing
from reprise.cli.units import format_bytes

HELP = "Delete a model that has been downloaded, or what a broken download left."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model's name to the parser."""
    parser.add_argument(
        "name",
        metavar="NAME",
        help="Name of the model, as `reprise list` shows it; or a GGUF file that was served: what it was "
        "converted into is deleted, and the file stays.",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Delete the model; return 0. Raises FailedError if it is missing or cannot be deleted."""
    # Imported here so that other commands do not load the engine.
    from reprise.engine.model.convert.sources import is_converted_first
    from reprise.engine.model.hub import HubCache, HubError

    if is_converted_first(arguments.name):
        from reprise.engine.model.convert import conversion
        from reprise.engine.model.convert.sources import ConvertError

        with failing(ConvertError):
            freed = conversion.remove(arguments.name)
    else:
        with failing(HubError):
            freed = HubCache().remove(arguments.name)
    print(f"removed {arguments.name} ({format_bytes(freed)})")
    return 0
