"""`reprise verify`: check that drafting changes no answer, and that it slows none down."""

import argparse

HELP = "Check that drafting changes no answer on this machine, and with --speed that it slows none down."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `reprise verify` to the parser."""
    # Imported here so that other commands do not load the engine.
    from bench.verify import run_verify

    run_verify.add_arguments(parser)
    parser.set_defaults(run=run_verify.run)
