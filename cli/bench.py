"""`reprise bench`: the benchmarks that every published figure comes from."""

import argparse
from functools import partial
from importlib import import_module

from cli.arguments import UsageError
from config.version import DISTRIBUTION

HELP = "Run a benchmark, such as a server under load, or decoding with and without drafts."

COMMANDS = {
    "all": "bench.figures.run_all",
    "serve": "bench.serving.run_serve",
    "decode": "bench.decode.run_decode",
    "turns": "bench.serving.turns",
    "economics": "bench.economics.run_economics",
    "translation": "bench.decode.run_translation",
    "peers": "bench.serving.run_peers",
    "sweep": "bench.sweep.run_sweep",
    "replay": "bench.replay.run_replay",
    "commits": "bench.replay.pairs",
    "report": "bench.page.run_page",
    "sampling": "bench.costs.sampling",
    "prefill": "bench.costs.prefill",
    "drafters": "bench.costs.drafters",
    "wedlm": "bench.decode.run_wedlm",
    "workloads": "bench.workloads.run_workloads",
}
"""The module of each benchmark: it has FLAGS, run(), perhaps an EPILOG, and its docstring is the help."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add one subcommand per benchmark, each with its own arguments. Raises UsageError."""
    benchmarks = parser.add_subparsers(title="benchmarks", metavar="BENCHMARK", required=True)
    for name, module in COMMANDS.items():
        try:
            # Imported here so that other commands do not load the workloads.
            command = import_module(module)
            from bench.options import add_flags
            from bench.outputs import run_command
        except ModuleNotFoundError as fault:
            raise UsageError(
                f"{fault.name} is not installed; benchmarks need the extra bench: {DISTRIBUTION}[bench]"
            ) from None
        first, text = str(command.__doc__).split("\n\n", 1)
        summary = first.partition("`: ")[2]
        own = benchmarks.add_parser(
            name, help=summary[0].upper() + summary[1:], description=text, allow_abbrev=False,
            epilog=getattr(command, "EPILOG", None), formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        add_flags(own, command.FLAGS)
        own.set_defaults(run=partial(run_command, f"reprise bench {name}", command.run))
