"""Servers that a benchmark starts for itself."""

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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


def exit_on_sigterm() -> None:
    """Turn SIGTERM into SystemExit, so that child processes are stopped when the benchmark is terminated."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@contextmanager
def run_server(name: str, command: Sequence[str]) -> Iterator[str]:
    """Run a server while the context is open, and yield its URL once it answers. command: without an address.

    Raises BenchError with the last line that it printed if it exits instead.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    exit_on_sigterm()
    # A file, because a pipe would block the server when it is full.
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        try:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        except FileNotFoundError:
            raise BenchError(f"{name} is not installed, or not on PATH") from None
        try:
            while not is_ready(url := f"http://127.0.0.1:{port}"):
                if server.poll() is not None:
                    log.seek(0)
                    *_, last = "no output", *filter(None, map(str.strip, log))
                    raise BenchError(f"{name} exited with status {server.returncode}: {last}")
                time.sleep(0.1)
            yield url
        finally:
            # Not SIGINT: a background job of a shell ignores it, and so does every process that it starts.
            server.terminate()
            server.wait()


def is_ready(url: str) -> bool:
    """Return whether a server says that it is healthy."""
    try:
        return httpx.get(f"{url}/health", timeout=5.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
