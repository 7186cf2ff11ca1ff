"""The command `reprise`: one parser, with the arguments of each subcommand."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from platform import python_version

from reprise.cli import (
    bench,
    cache,
    chat,
    config,
    connect,
    convert,
    doctor,
    loaded,
    models,
    serve,
    service,
    verify,
)
from reprise.cli.arguments import FailedError, Parser, UsageError, unknown_arguments
from reprise.cli.launch import is_launched, say_starting
from reprise.config.errors import RepriseError
from reprise.config.setting import SettingsError
from reprise.config.unknown import suggestion
from reprise.config.version import VERSION

_DESCRIPTION = """\
Reprise serves a language model on this machine to OpenAI and Anthropic clients, with MLX. It answers
faster by drafting text that it has already seen, and never changes the answer.
"""

_NEXT = """\
Reprise serves a language model on this machine, with the APIs of OpenAI, Anthropic and Ollama. What next?

  reprise doctor           check this machine; it names a model that fits the memory
  reprise serve smollm2    serve a small real model (93 MB); chat with it on http://127.0.0.1:8000
  reprise serve NAME       serve your own: a folder, a GGUF file, or a name on the hub
  reprise connect codex    print settings for Codex; reprise connect --help lists 14 more agents
  reprise run              chat in the terminal
  reprise service install  start the server at each login

reprise --help shows all commands, reprise COMMAND --help explains one.
"""

_EXAMPLES = """\
examples:
  reprise serve                                       serve the bundled model on http://127.0.0.1:8000
  reprise serve ~/models/qwen3-4b --port 0            serve your own model on a free port
  reprise run smollm2                                 chat with a model in the terminal
  reprise ps                                          show what a running server has loaded
  reprise pull mlx-community/Qwen3-8B-4bit            download a model from the hub
  reprise convert qwen3-4b-Q8_0.gguf ~/models/qwen3-4b    make a folder to serve of a GGUF file
  reprise info ~/models/qwen3-4b                      show what a model's folder holds and how it can draft
  reprise connect codex --write                       let Codex use the server that runs
  REPRISE_MAX_ROWS=4 reprise config                   show the settings in force and where they come from
  reprise cache --empty                               delete the prompts that a server has kept on disk
  reprise verify --exact                              check that drafting changes no token on this machine
  reprise doctor                                      check that a server would work here; which model fits
"""

_COMMANDS = {
    "serve": (serve.HELP, serve.add_arguments),
    "run": (chat.HELP, chat.add_arguments),
    "ps": (loaded.PS_HELP, loaded.add_ps_arguments),
    "load": (loaded.LOAD_HELP, loaded.add_load_arguments),
    "unload": (loaded.UNLOAD_HELP, loaded.add_unload_arguments),
    "pull": (models.PULL_HELP, models.add_pull_arguments),
    "list": (models.LIST_HELP, models.add_list_arguments),
    "rm": (models.RM_HELP, models.add_rm_arguments),
    "convert": (convert.HELP, convert.add_arguments),
    "info": (models.INFO_HELP, models.add_info_arguments),
    "connect": (connect.HELP, connect.add_arguments),
    "config": (config.HELP, config.add_arguments),
    "cache": (cache.HELP, cache.add_arguments),
    "bench": (bench.HELP, bench.add_arguments),
    "verify": (verify.HELP, verify.add_arguments),
    "service": (service.HELP, service.add_arguments),
    "doctor": (doctor.HELP, doctor.add_arguments),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status, which is 2 for invalid arguments or settings.

    argv: the arguments without the program's name; if None, those of this process.
    """
    # transformers logs by a handler of its own: that PyTorch is missing, and a warning for every long prompt.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if given[:1] in (["verify"], ["bench"]) and not {"-h", "--help"} & set(given):
            # Their arguments come from what takes long to import.
            say_starting(" ".join(given[: 1 if given[0] == "verify" else 2]))
        arguments = _parse(given)
        if is_launched() and given[0] == "bench":
            raise UsageError(
                "reprise bench runs on one machine; reprise bench serve --hosts measures a server on several"
            )
        arguments.given = tuple(given)  # Benchmarks write them beside their figures.
        return int(arguments.run(arguments))
    except (UsageError, FailedError, RepriseError) as error:
        print(f"reprise: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError | SettingsError) else 1
    except KeyboardInterrupt:
        return 130  # The status that a shell reports for a command ended by Ctrl-C.


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
    for name, (text, add_arguments) in _COMMANDS.items():
        own = commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        # Only for the command in use, so that `reprise --help` does not load the workloads of bench.
        if name in given[:1]:
            add_arguments(own)
            chosen = own
    if not given:
        print(_NEXT, end="")
        parser.exit()
    if not given[0].startswith("-") and given[0] not in _COMMANDS:
        closest = suggestion(given[0], _COMMANDS) or f"; the commands are {', '.join(_COMMANDS)}"
        raise UsageError(f"unknown command {given[0]}{closest}")
    arguments, unknown = parser.parse_known_args(given)
    if unknown:
        raise unknown_arguments(chosen, unknown)
    return arguments


def _versions() -> str:
    parts = [f"reprise {VERSION}"]
    for package in ("mlx", "mlx-lm"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} not installed")
    return ", ".join([*parts, f"Python {python_version()}"])
