"""Child processes of a benchmark: its own `reprise serve`, other servers, and mlx_lm's loop."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import IO, Any, NoReturn, Self

import httpx

from bench.errors import BenchError

_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
_POLL_S, _START_S, _END_S = 0.1, 1800.0, 30.0
_SERVE = "import sys; from cli.main import main; sys.exit(main())"


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that child processes are stopped when the benchmark is terminated."""

    def leave(number: int, _: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Process:
    """A process that runs while the context is open, and whose output is kept for errors.

    name: for errors. Entering the context waits until the process is ready; raises BenchError if it exits.
    """

    def __init__(self, name: str, command: Sequence[str], **pipes: int) -> None:
        self.name = name
        self._command = command
        self._pipes = pipes

    def __enter__(self) -> Self:
        # A file, because a pipe would block the process when it is full.
        self._log = tempfile.TemporaryFile()
        streams = {"stdin": subprocess.DEVNULL, "stdout": self._log, "stderr": self._log} | self._pipes
        self._process = subprocess.Popen(self._command, text=True, **streams)  # type: ignore[call-overload]
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe:
                    pipe.close()
        # Not SIGINT: a background job of a shell ignores it, and so does every process that it starts.
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait_until_ready(self) -> None:
        raise NotImplementedError

    def _output(self) -> str:
        # pread, because seeking would move the position at which the process writes.
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def _ended(self) -> BenchError:
        return BenchError(f"{self.name} exited with status {self._process.wait()}: {self._last_line()}")

    def _last_line(self) -> str:
        """Return the last line of output, where a failed process gives its reason."""
        lines = [line.strip() for line in self._output().splitlines() if line.strip()]
        return lines[-1] if lines else "no output"


class ServerProcess(Process):
    """A server. ready_path: GET returns 200 there once it serves. port: None: it prints its address."""

    def __init__(self, name: str, command: Sequence[str], ready_path: str, port: int | None = None) -> None:
        super().__init__(name, command)
        self.url = f"http://127.0.0.1:{port}" if port else ""
        self._ready_path = ready_path

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise BenchError(f"{self.name} did not answer within {_START_S:g} s: {self._last_line()}")
            if not self.url and (printed := _ADDRESS.search(self._output())):
                self.url = printed.group()
            if self.url and is_ready(self.url, self._ready_path):
                return
            time.sleep(_POLL_S)
        raise self._ended()


def own_server(
    arguments: Sequence[str], command: Sequence[str] = (sys.executable, "-c", _SERVE)
) -> ServerProcess:
    """Return `reprise serve` on a free port. arguments: flags besides those of the address."""
    # The text log contains the address. Keys that the environment sets are switched off.
    fixed = ["serve", "--host", "127.0.0.1", "--port", "0", "--log-format", "text"]
    fixed += ["--api-key", "", "--api-key-file", "none"]
    return ServerProcess("reprise serve", [*command, *fixed, *arguments], "/v1/models")


MLX_LM, LLAMA = "mlx_lm.server", "llama-server"
"""Servers that are started here by name, besides our own."""

LLAMA_STREAMS = "8"
MLX_LM_MODEL = "default_model"
"""What mlx_lm.server calls the model that it was started with."""


def other_server(name: str, model: str) -> ServerProcess:
    """Return mlx_lm's server, or llama.cpp's with a model in its own format. Raises BenchError."""
    # They do not say which port they got for port 0.
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    address = ["--host", "127.0.0.1", "--port", str(port)]
    if name == MLX_LM:
        command = [sys.executable, "-m", "mlx_lm", "server", "--model", model, *address]
    elif shutil.which(LLAMA):
        command = [LLAMA, "-m", model, *address, "--parallel", LLAMA_STREAMS]
    else:
        raise BenchError(f"{LLAMA} is not installed, or not on PATH")
    # mlx_lm.server's /v1/models fails where no model was ever downloaded.
    return ServerProcess(name, command, "/health", port)


class BareLoop(Process):
    """`python -m bench.serving.bare_loop`. arguments: flags besides --model."""

    def __init__(
        self,
        model: str,
        command: Sequence[str] = (sys.executable, "-m", "bench.serving.bare_loop"),
        arguments: Sequence[str] = (),
    ) -> None:
        given = [*command, "--model", model, *arguments]
        super().__init__("bare loop", given, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def answer(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        """Answer one prompt; return the fields of bare_loop's result by name. Raises BenchError."""
        jobs = _pipe(self._process.stdin)
        try:
            jobs.write(json.dumps({"prompt": list(prompt), "max_tokens": max_tokens}) + "\n")
            jobs.flush()
        except BrokenPipeError:
            pass  # The process has exited; _read() raises with the reason.
        return self._read()

    def _wait_until_ready(self) -> None:
        self._read()

    def _read(self) -> dict[str, Any]:
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer


def is_ready(url: str, path: str = "/v1/models") -> bool:
    """Return whether the server at url answers GET at this path with 200."""
    try:
        return httpx.get(f"{url}{path}", timeout=5.0).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "the bare loop is started with this pipe"
    return pipe
