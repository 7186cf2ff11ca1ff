"""`reprise bench`: the benchmarks that every published figure comes from."""

import argparse
import shlex
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import requires
from importlib.util import find_spec

from reprise.cli.arguments import UsageError
from reprise.cli.find_model import take_folders
from reprise.config.version import DISTRIBUTION

HELP = "Run a benchmark, such as a server under load, or decoding with and without drafts."

COMMANDS = {
    "all": "reprise.bench.run_all",
    "serve": "reprise.bench.serve",
    "decode": "reprise.bench.decode",
    "sweep": "reprise.bench.sweep",
    "replay": "reprise.bench.replay.run_replay",
}
"""The module of each benchmark: it has FLAGS, run(), perhaps an EPILOG, and its docstring is the help."""

PAGE_NEEDS = ("jinja2", "vl_convert")
"""Modules of the extra bench, which pages (--html) need."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per benchmark, each with its own arguments."""
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    # Imported here so that other commands do not load the workloads.
    from reprise.bench.options import add_flags

    for name, module in COMMANDS.items():
        command = import_module(module)
        first, text = str(command.__doc__).split("\n\n", 1)
        summary = first.partition("`: ")[2]
        own = benchmarks.add_parser(
            name, help=summary[0].upper() + summary[1:], description=text, allow_abbrev=False,
            epilog=getattr(command, "EPILOG", None), formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        add_flags(own, command.FLAGS)
        own.set_defaults(run=partial(_run, name, command.run))


def _run(name: str, run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace) -> int:
    from reprise.bench.document import run_command

    # Before anything is measured, which may take an hour.
    needed = PAGE_NEEDS if arguments.html else ()
    if missing := [module for module in needed if find_spec(module) is None]:
        raise UsageError(f"{' and '.join(missing)} must be installed for this: run {install_command()}")
    take_folders(arguments)
    return run_command(f"reprise bench {name}", run, arguments)


def install_command() -> str:
    """Return the command that installs what the benchmarks need into the environment of this Python.

    The command names each package, not Reprise, whose wheel or checkout is on no package index.
    """
    packages = [
        requirement.partition(";")[0].strip()
        for requirement in requires(DISTRIBUTION) or ()
        if 'extra == "bench"' in requirement
    ]
    # Environments of uv have no pip.
    python = shlex.quote(sys.executable)
    pip = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return f"{pip} {' '.join(map(shlex.quote, packages))}"
