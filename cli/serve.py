"""`reprise serve`: start the engine and the server with the settings in force."""

import argparse

from cli.arguments import add_settings, resolve_arguments
from cli.launch import is_launched, launch

HELP = "Serve a model until Ctrl-C."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `reprise serve` to the parser."""
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until the process is asked to stop; return the exit status."""
    settings = resolve_arguments(arguments).settings
    if settings.hosts is not None and not is_launched():
        return launch(settings.hosts)
    # Imported here so that --help and a mistyped setting are answered before anything large is loaded.
    from drafters.assembly import make_drafters
    from drafters.repetition import score_in_slices
    from engine.speculative.proposers import DraftSources
    from server.run import run as run_server

    return run_server(settings, lambda name: DraftSources(make_drafters(settings, name), score_in_slices))
