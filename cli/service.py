"""`reprise service`: run the server in the background, at every login, by launchd or systemd."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from reprise.cli import serve
from reprise.cli.arguments import FailedError, Parser, UsageError, resolve_arguments, unknown_arguments
from reprise.config.atomic_files import write_whole
from reprise.config.version import DISTRIBUTION

HELP = "Run the server in the background and at every login, by launchd or systemd."

STOP_S = 50
"""Seconds that the server gets to end: more than requests, engine and connections get (DRAIN_S, STUCK_S
and LAST_WRITES_S in server/run.py)."""

_FOREIGN = ("HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN", "XDG_CACHE_HOME")
"""Other programs' variables that affect the server."""


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
    if sys.platform == "darwin":
        return Launchd()
    if sys.platform == "linux":
        return Systemd()
    raise UsageError(f"there is no service for {sys.platform}, only for launchd (macOS) and systemd (Linux)")


def find_program() -> str:
    """Return a path of the command `reprise` that survives updates. Raises UsageError."""
    own = Path(sys.executable).parent / "reprise"
    on_path = shutil.which("reprise")
    # uv, pipx and Homebrew put a link on PATH, and only the link keeps its place.
    if on_path and Path(on_path).resolve() == own.resolve():
        return str(Path(on_path).absolute())
    if own.is_file():
        return str(own)
    raise UsageError(f"the command reprise is not installed beside {sys.executable}; install {DISTRIBUTION}")


def _install(arguments: argparse.Namespace) -> int:
    supervisor = find_supervisor()
    _check(arguments.arguments)
    text = supervisor.render([find_program(), "serve", *arguments.arguments], Path.cwd())
    if arguments.print:
        print(text, end="")
        return 0
    try:
        _start(supervisor, text)
    except ServiceError as fault:
        advice = f"nothing was changed; --print shows what {supervisor.file} would hold"
        raise FailedError(f"{fault}\nreprise: {advice}") from fault
    print(f"wrote {supervisor.file} and started the service; see `reprise service status` and `logs`")
    left_out = sorted(name for name in os.environ if name.startswith("REPRISE_") or name in _FOREIGN)
    if left_out:
        print(f"variables of this shell that the service does not see: {', '.join(left_out)}")
    return 0


def _status(_arguments: argparse.Namespace) -> int:
    supervisor = find_supervisor()
    if not supervisor.file.is_file():
        print("not installed; `reprise service install` does that")
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
    supervisor = find_supervisor()
    if not supervisor.file.is_file():
        print("not installed: there is nothing to remove")
        return 1
    supervisor.stop()
    supervisor.file.unlink(missing_ok=True)
    print(f"stopped the service and deleted {supervisor.file}")
    return 0


def _check(arguments: list[str]) -> None:
    """Raise UsageError or SettingsError if the server would not start with these arguments."""
    parser = Parser(prog="reprise serve", allow_abbrev=False)
    serve.add_arguments(parser)
    known, unknown = parser.parse_known_args(arguments)
    if unknown:
        raise unknown_arguments(parser, unknown)
    # The service does not see the variables of this shell.
    resolve_arguments(serve.take_named(known), {})


class ServiceError(FailedError):
    """The supervisor failed; the message is one line that says why."""


@dataclass(frozen=True)
class State:
    """A service's state, as the supervisor reports it. description: for people."""

    is_running: bool
    description: str


def _start(supervisor: "Supervisor", text: str) -> None:
    """Write the service's file and start it; if it fails, go back to the one before. Raises ServiceError."""
    supervisor.check()
    try:
        before = supervisor.file.read_bytes() if supervisor.file.exists() else None
        supervisor.file.parent.mkdir(parents=True, exist_ok=True)
        # Only for its owner: an API key may be among the arguments.
        write_whole(supervisor.file, text.encode())
    except OSError as fault:
        raise ServiceError(f"cannot write {supervisor.file}: {fault.strerror}") from fault
    try:
        supervisor.start()
    except ServiceError:
        with suppress(ServiceError):
            supervisor.stop()
        if before is None:
            supervisor.file.unlink(missing_ok=True)
        else:
            write_whole(supervisor.file, before)
            with suppress(ServiceError):
                supervisor.start()
        raise


def _call(*command: str) -> str:
    """Run a program of the system and return what it prints. Raises ServiceError with its error message."""
    try:
        # Its messages are looked at, so they have to be in English.
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"}
        )
    except OSError as fault:
        raise ServiceError(f"cannot run {command[0]}: {fault.strerror}") from fault
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
        raise ServiceError(f"{' '.join(command)}: {said[0]}")
    return done.stdout


LABEL = "reprise.serve"

THROTTLE_S = 30
"""Seconds between two starts of a server that fails, such as one whose port is taken."""

FORGOTTEN_WITHIN_S = 600
"""Seconds within which launchd kills a service that does not end."""

RELOADED_WITHIN_S = 10
"""Seconds for which launchd may refuse to load a service again that it has just forgotten."""


class Launchd:
    """The supervisor of a Mac, for the person who is logged in at its screen."""

    def __init__(self) -> None:
        self._home = Path.home()
        self._domain = f"gui/{os.getuid()}"
        self._target = f"{self._domain}/{LABEL}"

    @property
    def file(self) -> Path:
        """Return the path of the property list."""
        return self._home / "Library" / "LaunchAgents" / f"{LABEL}.plist"

    @property
    def log(self) -> Path:
        """Return the path of the log, in the folder that Console shows."""
        return self._home / "Library" / "Logs" / "reprise.log"

    def render(self, command: Sequence[str], folder: Path) -> str:
        """Return the property list as XML."""
        # Imported here so that other commands do not load it.
        import plistlib

        entries = {
            "Label": LABEL,
            "ProgramArguments": list(command),
            "WorkingDirectory": str(folder),
            "RunAtLoad": True,
            # Started again after a crash, but not after it was asked to stop.
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": THROTTLE_S,
            "ExitTimeOut": STOP_S,
            # The default, Standard, lets macOS slow a job down.
            "ProcessType": "Interactive",
            "StandardOutPath": str(self.log),
            "StandardErrorPath": str(self.log),
        }
        return plistlib.dumps(entries, sort_keys=False).decode()

    def check(self) -> None:
        """Raise ServiceError without launchctl, or where nobody is logged in at the screen, as over SSH."""
        try:
            _call("launchctl", "print", self._domain)
        except ServiceError as fault:
            raise ServiceError(
                f"launchd cannot be reached ({fault}); log in at the Mac's screen, and install from there"
            ) from fault

    def start(self) -> None:
        """Load the property list; launchd then starts the service."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.stop()
        deadline = time.monotonic() + RELOADED_WITHIN_S
        while True:
            try:
                _call("launchctl", "bootstrap", self._domain, str(self.file))
            except ServiceError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    def stop(self) -> None:
        """Unload the service, and wait until launchd has forgotten it, so that it can be loaded again."""
        if self._description() is None:
            return
        try:
            _call("launchctl", "bootout", self._target)
        except ServiceError as fault:
            # It does not wait for a service that takes time to end, which is not an error.
            if "now in progress" not in str(fault) and self._description() is not None:
                raise
        deadline = time.monotonic() + FORGOTTEN_WITHIN_S
        while self._description() is not None:
            if time.monotonic() > deadline:
                raise ServiceError(f"launchd has not ended {LABEL} within {FORGOTTEN_WITHIN_S} seconds")
            time.sleep(0.2)

    def state(self) -> State:
        """Ask launchctl for the service's state: running or not, the process, and how the last one ended."""
        described = self._description()
        if described is None:
            return State(False, "not loaded")
        found = dict(re.findall(r"^\t(state|pid|last exit code) = (.+)$", described, re.MULTILINE))
        parts = [found.get("state", "unknown")]
        parts += [f"process {found['pid']}"] if "pid" in found else []
        ended = found.get("last exit code", "0")
        parts += [f"last exit status {ended}"] if ended not in ("0", "(never exited)") else []
        return State(found.get("state") == "running", ", ".join(parts))

    def log_command(self, num_lines: int, follows: bool) -> list[str]:
        """Return the `tail` command that prints the log's newest lines."""
        return ["tail", "-n", str(num_lines), *(["-F"] if follows else []), str(self.log)]

    def _description(self) -> str | None:
        try:
            return _call("launchctl", "print", self._target)
        except ServiceError:
            return None


UNIT = "reprise.service"

_TEXT = """\
[Unit]
Description=Reprise, an OpenAI-compatible inference server
# Five failures within five minutes are enough: its port is taken, or its model is gone.
StartLimitIntervalSec=300
StartLimitBurst=5

[Service]
Type=exec
ExecStart={command}
WorkingDirectory={folder}
Restart=on-failure
RestartSec=5
# Invalid settings stay invalid.
RestartPreventExitStatus=2
TimeoutStopSec={stop_s}

[Install]
WantedBy=default.target
"""


class Systemd:
    """The supervisor of a person's session on Linux."""

    @property
    def file(self) -> Path:
        """Return the path of the unit file."""
        config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
        return Path(config) / "systemd" / "user" / UNIT

    def render(self, command: Sequence[str], folder: Path) -> str:
        """Return the text of the unit file."""
        return _TEXT.format(
            command=" ".join(map(quote, command)), folder=str(folder).replace("%", "%%"), stop_s=STOP_S
        )

    def check(self) -> None:
        """Raise ServiceError without systemctl, or without a session, as in most containers."""
        try:
            _call("systemctl", "--user", "show-environment")
        except ServiceError as fault:
            raise ServiceError(
                f"systemd's user session cannot be reached ({fault}); run `reprise serve` under what else "
                "starts programs here"
            ) from fault

    def start(self) -> None:
        """Enable the unit and start it, again if it runs."""
        _call("systemctl", "--user", "daemon-reload")
        _call("systemctl", "--user", "enable", UNIT)
        _call("systemctl", "--user", "restart", UNIT)

    def stop(self) -> None:
        """Disable the unit and stop it."""
        self.check()
        if self.file.exists():
            _call("systemctl", "--user", "disable", "--now", UNIT)

    def state(self) -> State:
        """Ask systemctl for the service's state: running or not, the process, and how the last one ended."""
        self.check()
        names = ("LoadState", "ActiveState", "SubState", "MainPID", "ExecMainStatus")
        printed = _call("systemctl", "--user", "show", UNIT, f"--property={','.join(names)}")
        found = dict(line.partition("=")[::2] for line in printed.splitlines())
        if found.get("LoadState") == "not-found":
            return State(False, "not loaded")
        parts = [f"{found.get('ActiveState')} ({found.get('SubState')})"]
        parts += [f"process {found['MainPID']}"] if found.get("MainPID", "0") != "0" else []
        status = found.get("ExecMainStatus", "0")
        parts += [f"last exit status {status}"] if status != "0" else []
        return State(found.get("ActiveState") == "active", ", ".join(parts))

    def log_command(self, num_lines: int, follows: bool) -> list[str]:
        """Return `journalctl` for the unit."""
        return [
            "journalctl", "--user", f"--unit={UNIT}", "--no-pager", f"--lines={num_lines}",
            *(["--follow"] if follows else []),
        ]  # fmt: skip


def quote(argument: str) -> str:
    """Quote an argument for ExecStart, which expands % and $ (man systemd.service)."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    escaped = escaped.replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


Supervisor = Launchd | Systemd
"""Starts the server at login and after a crash."""
