"""Servers that a benchmark starts for itself."""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import NoReturn

import httpx

from bench.errors import BenchError

OWN, MLX_LM, LLAMA = "reprise", "mlx_lm.server", "llama-server"
_REPRISE = "import sys; from cli.main import main; sys.exit(main())"
COMMANDS = {
    # Keys that the environment sets are switched off.
    OWN: (
        sys.executable, "-c", _REPRISE, "serve", "--recalibrate", "--api-key", "", "--api-key-file", "none",
        "--model",
    ),
    MLX_LM: (sys.executable, "-m", "mlx_lm", "server", "--model"),
    LLAMA: (LLAMA, "--parallel", "8", "-m"),
}  # fmt: skip
"""The servers that can be started; a command lacks its model and its address."""

_POLL_S, _START_S, _END_S = 0.1, 1800.0, 30.0


@contextmanager
def stopped_at_the_end() -> Iterator[ExitStack]:
    """Yield a stack for what must be stopped at the end, also if the benchmark gets SIGTERM."""

    def leave(number: int, _: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with ExitStack() as stack:
            yield stack
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def run_server(name: str, command: Sequence[str], flags: Sequence[str] = ()) -> Iterator[str]:
    """Run a server while the context is open, and yield its URL once it answers.

    Raises BenchError with the last line that it printed if it exits instead.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*command, "--host", "127.0.0.1", "--port", str(port), *flags]
    # A file, because a pipe would block the server when it is full.
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except FileNotFoundError:
            raise BenchError(f"{name} is not installed, or not on PATH") from None
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + _START_S
            while not is_ready(url):
                if server.poll() is not None:
                    log.seek(0)
                    said = log.read().split("\n")
                    last = next((line for line in reversed(said) if line.strip()), "no output")
                    raise BenchError(f"{name} exited with status {server.returncode}: {last.strip()}")
                if time.monotonic() > deadline:
                    raise BenchError(f"{name} did not answer within {_START_S:g} s")
                time.sleep(_POLL_S)
            yield url
        finally:
            # Not SIGINT: a background job of a shell ignores it, and so does every process that it starts.
            server.terminate()
            try:
                server.wait(_END_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def is_ready(url: str) -> bool:
    """Return whether a server says that it is healthy."""
    try:
        return httpx.get(f"{url}/health", timeout=5.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
