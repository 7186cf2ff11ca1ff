"""Start a server for as long as a command needs one."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import IO

from reprise.cli.arguments import UsageError
from reprise.cli.running.server import Server

Show = Callable[[str, float], None]
"""Called with what is done now, and the share of it that is over."""

STOP_S = 20
"""Seconds that a server gets to end by itself."""

_ROOT = Path(__file__).parents[3]


@contextmanager
def started(arguments: list[str], show: Show) -> Iterator[Server]:
    """Start a server for this command alone, yield it once it is ready, and end it when the context ends.

    arguments: those of `reprise serve`. show: called with each stage of the start, and its share done.
    Raises UsageError with the server's last line of output if it does not start.
    """
    flags = [
        "--port",
        "0",
        "--host",
        "127.0.0.1",
        "--log-format",
        "json",
        "--log-level",
        "info",
        "--drain-s",
        "0",
    ]
    # A key would be for others, and this server is for nobody else.
    command = [sys.executable, "-P", "-m", "reprise", "serve", *arguments, *flags]
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("REPRISE_API_KEY")
    }
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C in the terminal is for the command alone.
        start_new_session=True,
        env=environment | {"PYTHONPATH": str(_ROOT)},
    )
    # A signal that ends this command must end the server, too.
    before = {sig: signal.signal(sig, _leave) for sig in (signal.SIGTERM, signal.SIGHUP)}
    try:
        assert process.stderr
        address = _wait_until_ready(process.stderr, show)
        # Nobody reads its log from here on, and a full pipe would stop it.
        Thread(target=process.stderr.read, daemon=True).start()
        yield Server(address)
    finally:
        _end(process)
        for sig, handler in before.items():
            signal.signal(sig, handler)


def _leave(sig: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + sig)


def _wait_until_ready(log: IO[str], show: Show) -> str:
    """Read a server's log up to its address, and return that. Raises UsageError if it ends before."""
    last = "it ended without a word"
    for line in log:
        try:
            entry = json.loads(line)
        except ValueError:
            last = line.strip() or last
            if last.startswith("reprise: converting"):
                show(last.removeprefix("reprise: "), 0.0)
            continue
        if entry.get("event") == "ready":
            return str(entry["address"])
        if entry.get("event") == "loading":
            show(entry["stage"], entry["share"])
    raise UsageError(last.removeprefix("reprise: "))


def _end(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
