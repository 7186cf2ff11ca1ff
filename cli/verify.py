"""`reprise verify`: check that drafting changes no answer, and that it slows none down."""

import argparse

from reprise.cli.find_model import take_folders
from reprise.cli.launch import is_launched, launch

HELP = "Check that drafting changes no answer on this machine, and with --speed that it slows none down."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `reprise verify` to the parser."""
    # Imported here so that other commands do not load the engine.
    from reprise.bench import options, verify

    parser.description = str(verify.__doc__).split("\n\n", 1)[1]
    options.add_flags(parser, verify.FLAGS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Verify on this machine, or on those of --hosts; return the exit status."""
    if arguments.hosts is not None and not is_launched():
        return launch(arguments.hosts)
    from reprise.bench import verify
    from reprise.bench.document import run_command

    take_folders(arguments)
    status = run_command("reprise verify", verify.run, arguments)
    if is_launched():
        from reprise.engine.distributed.rank_0 import leave

        leave(status)
    return status
