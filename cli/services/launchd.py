"""A launch agent of macOS: a property list in ~/Library/LaunchAgents, and `launchctl`."""

import os
import plistlib
import re
import time
from collections.abc import Sequence
from pathlib import Path

from reprise.cli.services.supervisor import ServiceError, State, call

LABEL = "reprise.serve"

THROTTLE_S = 30
"""Seconds between two starts of a server that fails, such as one whose port is taken."""

FORGOTTEN_WITHIN_S = 600
"""Seconds within which launchd has killed a service that it was told to end, however long that may take."""


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

    def render(self, command: Sequence[str], folder: Path, stop_s: int) -> str:
        """Return the property list as XML."""
        entries = {
            "Label": LABEL,
            "ProgramArguments": list(command),
            "WorkingDirectory": str(folder),
            "RunAtLoad": True,
            # Started again after a crash, but not after it was asked to stop.
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": THROTTLE_S,
            "ExitTimeOut": stop_s,
            # The default, Standard, lets macOS slow a job down.
            "ProcessType": "Interactive",
            "StandardOutPath": str(self.log),
            "StandardErrorPath": str(self.log),
        }
        return plistlib.dumps(entries, sort_keys=False).decode()

    def check(self) -> None:
        """Raise ServiceError without launchctl, or where nobody is logged in at the screen, as over SSH."""
        try:
            call("launchctl", "print", self._domain)
        except ServiceError as fault:
            raise ServiceError(
                f"launchd cannot be reached ({fault}); log in at the Mac's screen, and install from there"
            ) from fault

    def start(self) -> None:
        """Load the property list; launchd then starts the service."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.stop()
        call("launchctl", "bootstrap", self._domain, str(self.file))

    def stop(self) -> None:
        """Unload the service, and wait until launchd has forgotten it, so that it can be loaded again."""
        if self._description() is None:
            return
        call("launchctl", "bootout", self._target)
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
            return call("launchctl", "print", self._target)
        except ServiceError:
            return None
