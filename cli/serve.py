"""`reprise serve`: start the engine and the server with the settings in force."""

import argparse
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from reprise.cli.arguments import UsageError, add_settings, resolve_arguments
from reprise.cli.convert import Tell, progress_bar
from reprise.cli.find_model import with_converted, with_found
from reprise.cli.launch import is_launched, launch, say_starting
from reprise.config.settings import Settings

if TYPE_CHECKING:
    # Importing it takes seconds.
    from reprise.engine.speculative.proposers import MakeSources

HELP = "Serve a model until Ctrl-C."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `reprise serve` to the parser."""
    add_settings(parser)
    parser.usage = "%(prog)s [MODEL] [--config FILE] [--SETTING VALUE ...]"
    parser.add_argument("named", nargs="?", metavar="MODEL", help="The same as --model MODEL.")
    parser.set_defaults(run=run)


def take_named(arguments: argparse.Namespace) -> argparse.Namespace:
    """Set arguments.model from the positional model, if any; return the arguments.

    Raises UsageError if --model is given too.
    """
    if arguments.named is not None:
        if arguments.model is not None:
            raise UsageError(f"two models are named: {arguments.named}, and --model {arguments.model}")
        arguments.model = arguments.named
    return arguments


def run(arguments: argparse.Namespace) -> int:
    """Serve until the process is asked to stop; return the exit status."""
    resolved = resolve_arguments(take_named(arguments))
    settings = resolved.settings
    if settings.hosts is not None and not is_launched():
        return launch(settings.hosts)
    settings = replace(with_found(settings), is_server=not is_launched())
    if settings.log_format == "text":
        say_starting(settings.model_name)
    # Another rank than the first has no port at which it could say what it does.
    if is_launched():
        settings = with_converted(settings, progress_bar)
    # Imported here so that --help and a mistyped setting are answered before anything large is loaded.
    from reprise.drafters.assembly import make_drafters
    from reprise.drafters.repetition import score_in_slices
    from reprise.engine.speculative.proposers import DraftSources
    from reprise.server.run import run as run_server

    def make_sources(settings: Settings) -> "MakeSources":
        return lambda vocabulary: DraftSources(make_drafters(settings, vocabulary), score_in_slices)

    def prepare(settings: Settings, tell: Tell) -> Settings:
        return with_converted(settings, partial(progress_bar, tell=tell))

    return run_server(settings, make_sources, resolved.sections, prepare)
