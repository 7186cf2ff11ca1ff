"""The interface of launchd and systemd: a file that defines the service, and a program that acts on it."""

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from reprise.cli.arguments import FailedError
from reprise.config.atomic_files import write_whole


class ServiceError(FailedError):
    """The supervisor cannot do what was asked; the message is one line that says why."""


@dataclass(frozen=True)
class State:
    """A service's state, as the supervisor reports it. description: for people."""

    is_running: bool
    description: str


class Supervisor(Protocol):
    """Starts the server at login and again after a crash. All methods but render() raise ServiceError."""

    @property
    def file(self) -> Path:
        """Return the path of the file that defines the service."""

    def render(self, command: Sequence[str], folder: Path, stop_s: int) -> str:
        """Return the text of the service's file.

        command: absolute path and arguments. folder: where the server starts. stop_s: how long it may take to
            end, before it is killed.
        """

    def check(self) -> None:
        """Raise ServiceError if the supervisor cannot be reached. Changes nothing."""

    def start(self) -> None:
        """Load the file, which may have changed, and start the service now and at every login."""

    def stop(self) -> None:
        """Stop the service, if it runs, and forget it."""

    def state(self) -> State:
        """Return whether the service runs, and if not, how it ended."""

    def log_command(self, num_lines: int, follows: bool) -> list[str]:
        """Return the command that prints the newest lines of the log."""


def install(supervisor: Supervisor, text: str) -> None:
    """Write the service's file and start the service; if it does not start, delete the file.

    Raises ServiceError.
    """
    supervisor.check()
    try:
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
        supervisor.file.unlink(missing_ok=True)
        raise


def remove(supervisor: Supervisor) -> None:
    """Stop the service and delete its file. Raises ServiceError."""
    supervisor.stop()
    supervisor.file.unlink(missing_ok=True)


def call(*command: str) -> str:
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
