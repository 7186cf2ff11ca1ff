"""`reprise verify`: certify that drafting changes no answer."""

import argparse

HELP = "Compare drafted answers with plain ones, token by token, on this machine."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give the parser what `reprise verify` takes."""
    # Here, so that other commands do not load the engine.
    from bench import verify

    verify.add_arguments(parser)
    parser.set_defaults(run=verify.run)
