"""`reprise serve`: settings to engine to server."""

import argparse

from cli.arguments import add_settings, resolve_arguments

HELP = "Serve a model to OpenAI clients until Ctrl-C."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise serve` takes."""
    add_settings(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Serve until told to stop; return the exit status."""
    settings = resolve_arguments(arguments).settings
    # Here, so that --help and a mistyped setting are answered before anything large is loaded.
    from drafters.assembly import make_drafters
    from drafters.repetition import repetition_score
    from engine.speculative.proposers import DraftSources
    from server.run import run as run_server

    return run_server(settings, lambda name: DraftSources(make_drafters(settings, name), repetition_score))
