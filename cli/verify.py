"""`reprise verify`: check that drafting changes no answer."""

import argparse

HELP = "Check, token by token, that drafting changes no answer on this machine."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `reprise verify` to the parser."""
    # Imported here so that other commands do not load the engine.
    from bench import verify

    verify.add_arguments(parser)
    parser.set_defaults(run=verify.run)
