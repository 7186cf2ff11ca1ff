"""A user unit of systemd: a file in ~/.config/systemd/user, `systemctl --user` and `journalctl --user`."""

import os
from collections.abc import Sequence
from pathlib import Path

from reprise.cli.services.supervisor import ServiceError, State, call

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

    def render(self, command: Sequence[str], folder: Path, stop_s: int) -> str:
        """Return the text of the unit file."""
        return _TEXT.format(
            command=" ".join(map(quote, command)), folder=str(folder).replace("%", "%%"), stop_s=stop_s
        )

    def check(self) -> None:
        """Raise ServiceError without systemctl, or without a session, as in most containers."""
        try:
            call("systemctl", "--user", "show-environment")
        except ServiceError as fault:
            raise ServiceError(
                f"systemd's user session cannot be reached ({fault}); run `reprise serve` under what else "
                "starts programs here"
            ) from fault

    def start(self) -> None:
        """Enable the unit and start it, again if it runs."""
        call("systemctl", "--user", "daemon-reload")
        call("systemctl", "--user", "enable", UNIT)
        call("systemctl", "--user", "restart", UNIT)

    def stop(self) -> None:
        """Disable the unit and stop it."""
        self.check()
        if self.file.exists():
            call("systemctl", "--user", "disable", "--now", UNIT)

    def state(self) -> State:
        """Ask systemctl for the service's state: running or not, the process, and how the last one ended."""
        self.check()
        names = ("LoadState", "ActiveState", "SubState", "MainPID", "ExecMainStatus")
        printed = call("systemctl", "--user", "show", UNIT, f"--property={','.join(names)}")
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
    """Quote an argument for ExecStart, where % begins a specifier and $ a variable (man systemd.service)."""
    escaped = argument.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    escaped = escaped.replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'
