"""Start the same command on several machines with mlx.launch, and exit with their true status.

mlx.launch itself exits with 0 even if its processes failed; it only prints so.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from reprise.cli.arguments import UsageError

FAILED = re.compile(r"Node with rank (\d+) (?:exited with code (-?\d+)|was killed)")
"""How mlx.launch says that a process has failed."""

CTRL_C = b"\x03"


def is_launched() -> bool:
    """Whether mlx.launch has started this process."""
    return "MLX_RANK" in os.environ


def say_starting(what: str) -> None:
    """Print on a terminal that the command has begun: its imports take seconds."""
    # None if it was closed.
    if sys.stderr and sys.stderr.isatty():
        print(f"reprise: starting {what} ...", file=sys.stderr, flush=True)


def launch(hosts: str, arguments: Sequence[str] = tuple(sys.argv[1:])) -> int:
    """Run this command on each host until it ends; return 0 only if it ended well on all.

    hosts: a host file of mlx.distributed_config, or names or addresses separated by commas.
    arguments: of this command; every host gets them.
    Raises UsageError for a name without an address.
    """
    reprise = str(Path(sys.executable).parent / "reprise")
    # -P: a folder here could have the name of a package of ours.
    launcher = [sys.executable, "-P", "-m", "reprise.engine.distributed.rank_0"]
    with host_file(hosts) as file:
        return _run([*launcher, "--hostfile", file, "--", reprise, *arguments])


@contextlib.contextmanager
def host_file(hosts: str) -> Iterator[str]:
    """Yield the path of a host file: the given one, or one made from names or addresses; see launch()."""
    if hosts.endswith(".json"):
        yield hosts
        return
    # By names, mlx.launch logs in, but the ring needs addresses.
    found = [{"ssh": name, "ips": [_address_of(name)]} for name in hosts.split(",")]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"backend": "ring", "hosts": found}, file)
        file.flush()
        yield file.name


def _address_of(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except (OSError, UnicodeError) as fault:
        raise UsageError(f"--hosts {name}: no address is known for it ({fault})") from fault


def _run(command: Sequence[str]) -> int:
    # Its own standard input, kept open: mlx.launch takes a core while it reads the end of a file.
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # mlx.launch itself must outlive the ranks. Rank 0 sets handlers of its own.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    _pass_on(process)
    statuses: dict[int, int] = {}
    reader = threading.Thread(target=_read, args=(process, statuses), daemon=True)
    reader.start()
    status = process.wait()
    reader.join()
    if status or not statuses:
        return status
    # A process that a signal ended has a negative one.
    return max(1, statuses.get(0, 1))


def _pass_on(process: "subprocess.Popen[bytes]") -> None:
    """Forward the signals that stop a server to rank 0, which drains and then ends the others."""

    def stop(sig: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler
        assert process.stdin
        with contextlib.suppress(OSError):
            # To processes on this machine, and to those behind a terminal of ssh.
            os.killpg(process.pid, signal.SIGINT)
            process.stdin.write(CTRL_C)
            process.stdin.flush()

    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, stop)


def _read(process: "subprocess.Popen[bytes]", statuses: dict[int, int]) -> None:
    """Copy standard error, and collect the statuses of failed processes."""
    assert process.stderr
    for line in process.stderr:
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
        if found := FAILED.search(line.decode(errors="replace")):
            statuses[int(found[1])] = int(found[2] or 1)
