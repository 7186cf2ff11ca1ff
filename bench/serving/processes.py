"""Child processes of a benchmark: its own `reprise serve`, mlx_lm.server, and the bare loop."""

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import IO, Any, NoReturn, Self

import httpx

from bench.errors import BenchError

_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")
_POLL_S = 0.1
_START_S = 1800.0
_END_S = 30.0
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


class Log:
    """The output of a process, in a file: a pipe would block the process when it is full."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process

    def read(self) -> str:
        """Return all output so far."""
        # pread, because seeking would move the position at which the process writes.
        size = os.fstat(self.file.fileno()).st_size
        return os.pread(self.file.fileno(), size, 0).decode(errors="replace")

    def last_line(self) -> str:
        """Return the last line of output, where a failed process gives its reason."""
        lines = [line.strip() for line in self.read().splitlines() if line.strip()]
        return lines[-1] if lines else "no output"

    def close(self) -> None:
        """Delete the file."""
        self.file.close()


class ServerProcess:
    """A server, running while the context is open.

    name: for errors. command: starts it. ready_path: GET returns 200 there once it serves.
    port: on which it listens; None: the server prints its address.
    Entering the context waits until the server answers; raises BenchError if it exits before that.
    """

    def __init__(self, name: str, command: Sequence[str], ready_path: str, port: int | None = None) -> None:
        self.url = ""
        self._name = name
        self._command = command
        self._ready_path = ready_path
        self._port = port

    def __enter__(self) -> Self:
        self._log = Log()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=self._log.file, stderr=subprocess.STDOUT,
            text=True,
        )  # fmt: skip
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not SIGINT: a background job of a shell ignores it, and so does every process that it starts.
        stop_process(self._process, self._process.terminate)
        self._log.close()

    def _address(self) -> str | None:
        if self._port is not None:
            return f"http://127.0.0.1:{self._port}"
        printed = _ADDRESS.search(self._log.read())
        return printed.group() if printed else None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_S
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                raise BenchError(
                    f"{self._name} did not answer within {_START_S:g} s: {self._log.last_line()}"
                )
            address = self._address()
            if address and is_ready(address, self._ready_path):
                self.url = address
                return
            time.sleep(_POLL_S)
        raise BenchError(
            f"{self._name} exited with status {self._process.returncode}: {self._log.last_line()}"
        )


class OwnServer(ServerProcess):
    """`reprise serve` on a free port. arguments: flags besides those of the address."""

    def __init__(
        self, arguments: Sequence[str], command: Sequence[str] = (sys.executable, "-c", _SERVE)
    ) -> None:
        # The text log contains the address. Keys that the environment sets are switched off.
        fixed = ["serve", "--host", "127.0.0.1", "--port", "0", "--log-format", "text"]
        fixed += ["--api-key", "", "--api-key-file", "none"]
        super().__init__("reprise serve", [*command, *fixed, *arguments], "/v1/models")


class MlxLmServer(ServerProcess):
    """`mlx_lm.server` with a model. It calls the model default_model."""

    name = "mlx_lm.server"
    model = "default_model"

    def __init__(
        self, model: str, command: Sequence[str] = (sys.executable, "-m", "mlx_lm", "server")
    ) -> None:
        # It does not say which port it got for port 0.
        port = free_port()
        given = ["--model", model, "--host", "127.0.0.1", "--port", str(port)]
        # Its /v1/models fails where no model was ever downloaded.
        super().__init__(self.name, [*command, *given], "/health", port)


class LlamaServer(ServerProcess):
    """llama.cpp's `llama-server`, where it is installed, with a model in its own format."""

    name = "llama-server"

    def __init__(self, file: str, streams: int) -> None:
        if shutil.which(self.name) is None:
            raise BenchError(f"{self.name} is not installed, or not on PATH")
        port = free_port()
        given = ["-m", file, "--host", "127.0.0.1", "--port", str(port), "--parallel", str(streams)]
        super().__init__(self.name, [self.name, *given], "/health", port)


class BareLoop:
    """`python -m bench.bare_loop` in its own process, running while the context is open.

    arguments: flags besides --model.
    Raises BenchError if the process exits early.
    """

    name = "bare loop"

    def __init__(
        self,
        model: str,
        command: Sequence[str] = (sys.executable, "-m", "bench.bare_loop"),
        arguments: Sequence[str] = (),
    ) -> None:
        self._command = [*command, "--model", model, *arguments]

    def __enter__(self) -> Self:
        self._log = Log()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log.file, text=True
        )
        try:
            self._read()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop_process(self._process, lambda: _pipe(self._process.stdin).close())
        _pipe(self._process.stdout).close()
        self._log.close()

    def answer(self, prompt: Sequence[int], max_tokens: int) -> dict[str, Any]:
        """Answer one prompt; return the fields of bench.bare_loop.Result by name."""
        job = {"prompt": list(prompt), "max_tokens": max_tokens}
        jobs = _pipe(self._process.stdin)
        try:
            jobs.write(json.dumps(job) + "\n")
            jobs.flush()
        except BrokenPipeError:
            pass  # The process has exited; _read() raises with the reason.
        return self._read()

    def _read(self) -> dict[str, Any]:
        line = _pipe(self._process.stdout).readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        status = self._process.wait()
        raise BenchError(f"the bare loop exited with status {status}: {self._log.last_line()}")


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def is_ready(url: str, path: str = "/v1/models") -> bool:
    """Return whether the server at url answers GET at this path with 200."""
    try:
        return httpx.get(f"{url}{path}", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


def stop_process(process: "subprocess.Popen[str]", ask: Callable[[], None]) -> None:
    """Ask a process to exit, and kill it if it does not."""
    try:
        ask()
        process.wait(_END_S)
    except (OSError, subprocess.TimeoutExpired):
        process.kill()
        process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "every process here is started with this pipe"
    return pipe
