"""`reprise serve`: start the engine and the server with the settings in force."""

import argparse
from typing import TYPE_CHECKING

from cli.arguments import add_settings, resolve_arguments
from cli.converted import with_converted
from cli.launch import is_launched, launch
from config.settings import Settings

if TYPE_CHECKING:
    # Importing it takes seconds.
    from engine.setup import MakeSources

HELP = "Serve a model until Ctrl-C."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `reprise serve` to the parser."""
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until the process is asked to stop; return the exit status."""
    resolved = resolve_arguments(arguments)
    settings = resolved.settings
    if settings.hosts is not None and not is_launched():
        return launch(settings.hosts)
    settings = with_converted(settings)
    # Imported here so that --help and a mistyped setting are answered before anything large is loaded.
    from drafters.assembly import make_drafters
    from drafters.repetition import score_in_slices
    from engine.speculative.proposers import DraftSources
    from server.run import run as run_server

    def make_sources(settings: Settings) -> "MakeSources":
        return lambda vocabulary: DraftSources(make_drafters(settings, vocabulary), score_in_slices)

    return run_server(settings, make_sources, resolved.sections)
