"""`reprise service`: run the server in the background, at every login, by launchd or systemd."""

import argparse
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from reprise.cli import serve
from reprise.cli.arguments import FailedError, Parser, UsageError, resolve_arguments, unknown_arguments
from reprise.config.settings import Settings
from reprise.config.version import DISTRIBUTION

if TYPE_CHECKING:
    from reprise.cli.services.supervisor import Supervisor

HELP = "Run the server in the background and at every login, by launchd or systemd."

_NOT_INSTALLED = "not installed; `reprise service install` does that"
EXIT_S = 40
"""Seconds that the server gets to end, beside those in which running requests may finish: more than it gives
its engine and its connections (STUCK_S and LAST_WRITES_S in server/run.py)."""

_FOREIGN = ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN", "XDG_CACHE_HOME")
"""Variables of others that change what the server does."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions install, status, logs and remove to the parser."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    install = actions.add_parser(
        "install", help="Install the service and start it.", allow_abbrev=False,
        usage="reprise service install [--print] [-- ARGUMENT ...]",
    )  # fmt: skip
    install.add_argument(
        "--print", action="store_true", help="Print the file that defines the service, and change nothing."
    )
    install.add_argument(
        "arguments", nargs="*", metavar="ARGUMENT",
        help="Arguments of `reprise serve`, after --, such as -- --model FOLDER --port 8080.",
    )  # fmt: skip
    install.set_defaults(run=_install)
    actions.add_parser("status", help="Say whether the service runs.").set_defaults(run=_status)
    logs = actions.add_parser("logs", help="Print the newest lines of its log.", allow_abbrev=False)
    logs.add_argument("--lines", type=int, default=100, metavar="N", help="Lines to print. Default: 100")
    logs.add_argument("--follow", action="store_true", help="Print new lines as they come, until Ctrl-C.")
    logs.set_defaults(run=_logs)
    actions.add_parser("remove", help="Stop the service and delete its file.").set_defaults(run=_remove)


def find_supervisor() -> "Supervisor":
    """Return the supervisor of this system. Raises UsageError if there is none."""
    from reprise.cli.services.launchd import Launchd
    from reprise.cli.services.systemd import Systemd

    if sys.platform == "darwin":
        return Launchd()
    if sys.platform == "linux":
        return Systemd()
    raise UsageError(f"there is no service for {sys.platform}, only for launchd (macOS) and systemd (Linux)")


def find_program() -> str:
    """Return the path of the command `reprise` that remains valid after an update. Raises UsageError."""
    own = Path(sys.executable).parent / "reprise"
    on_path = shutil.which("reprise")
    # uv, pipx and Homebrew put a link on PATH, and only the link keeps its place.
    if on_path and Path(on_path).resolve() == own.resolve():
        return str(Path(on_path).absolute())
    if own.is_file():
        return str(own)
    raise UsageError(f"the command reprise is not installed beside {sys.executable}; install {DISTRIBUTION}")


def _install(arguments: argparse.Namespace) -> int:
    from reprise.cli.services.supervisor import ServiceError, install

    supervisor = find_supervisor()
    stop_s = math.ceil(_settings_of(arguments.arguments).drain_s) + EXIT_S
    text = supervisor.render([find_program(), "serve", *arguments.arguments], Path.cwd(), stop_s)
    if arguments.print:
        print(text, end="")
        return 0
    try:
        install(supervisor, text)
    except ServiceError as fault:
        advice = f"nothing was installed; --print shows what {supervisor.file} would hold"
        raise FailedError(f"{fault}\nreprise: {advice}") from fault
    print(f"wrote {supervisor.file} and started the service; see `reprise service status` and `logs`")
    left_out = sorted(name for name in os.environ if name.startswith("REPRISE_") or name in _FOREIGN)
    if left_out:
        print(f"variables of this shell that the service does not see: {', '.join(left_out)}")
    return 0


def _status(_arguments: argparse.Namespace) -> int:
    supervisor = find_supervisor()
    if not supervisor.file.is_file():
        print(_NOT_INSTALLED)
        return 1
    state = supervisor.state()
    print(f"{state.description}; defined in {supervisor.file}")
    return 0 if state.is_running else 1


def _logs(arguments: argparse.Namespace) -> int:
    command = find_supervisor().log_command(arguments.lines, arguments.follow)
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as fault:
        raise FailedError(f"cannot run {command[0]}: {fault.strerror}") from fault


def _remove(_arguments: argparse.Namespace) -> int:
    from reprise.cli.services.supervisor import remove

    supervisor = find_supervisor()
    if not supervisor.file.is_file():
        print(_NOT_INSTALLED)
        return 1
    remove(supervisor)
    print(f"stopped the service and deleted {supervisor.file}")
    return 0


def _settings_of(arguments: list[str]) -> Settings:
    """Return the settings of the service. Raises UsageError or SettingsError, as each of its starts would."""
    parser = Parser(prog="reprise serve", allow_abbrev=False)
    serve.add_arguments(parser)
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise unknown_arguments(parser, unknown)
    # The service does not see the variables of this shell.
    return resolve_arguments(serve.take_named(known), {}).settings
