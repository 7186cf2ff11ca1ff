"""The command `reprise`: one parser, one module for each subcommand."""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

from cli import bench, config, serve, verify
from cli.arguments import Parser, UsageError, unknown_arguments
from config.setting import SettingsError
from config.sources import suggestion

_DESCRIPTION = """\
Reprise serves a language model on this machine to any OpenAI client, with MLX. The same request with
the same seed gets the same answer, whatever shares the batch and whatever is cached.
"""

_EXAMPLES = """\
examples:
  reprise serve                                       the bundled model on http://127.0.0.1:8000
  reprise serve --model ~/models/qwen3-4b --port 0    your own, on any free port
  REPRISE_MAX_ROWS=4 reprise config                   what would be in force, and why
  reprise verify --exact                              whether drafting ever changed a token here
"""

_COMMANDS = {"serve": serve, "config": config, "bench": bench, "verify": verify}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2 when the arguments or settings are wrong.

    argv: the arguments without the program's name; those of this process if None.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parse(given)
        arguments.given = tuple(given)  # For what a benchmark writes beside its figures.
        return int(arguments.run(arguments))
    except (UsageError, SettingsError) as error:
        print(f"reprise: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130  # As a shell reports a command that Ctrl-C ended.


def _parse(given: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="reprise",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=_versions())
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    chosen = parser
    for name, command in _COMMANDS.items():
        own = commands.add_parser(name, help=command.HELP, description=command.HELP, allow_abbrev=False)
        # Only the command in use: bench would load its workloads for a mere `reprise --help`.
        if name in given[:1]:
            command.add_arguments(own)
            chosen = own
    if not given:
        parser.print_help()
        parser.exit()
    if not given[0].startswith("-") and given[0] not in _COMMANDS:
        closest = suggestion(given[0], _COMMANDS) or f"; there are {', '.join(_COMMANDS)}"
        raise UsageError(f"unknown command {given[0]}{closest}")
    arguments, unknown = parser.parse_known_args(given)
    if unknown:
        raise unknown_arguments(chosen, unknown)
    return arguments


def _versions() -> str:
    parts = []
    for package in ("reprise", "mlx", "mlx-lm"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} not installed")
    return ", ".join([*parts, f"Python {python_version()}"])
