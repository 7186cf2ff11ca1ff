"""Run foreign code in a process that can be killed: chat templates, and libraries for schemas and images.

It may take forever on input made to exploit it, and cannot be stopped within a thread. The process runs
child_script.py.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

START_LIMIT_S = 60.0
MAX_REPLY_BYTES = 64 * 2**20
Job = Literal["templates", "schemas", "grammars", "images"]
_SCRIPT = Path(__file__).with_name("child_script.py")
_PASSED_VARIABLES = ("PATH", "TZ", "LANG", "LC_ALL")
"""Environment variables that the process inherits. All others stay out, since they may hold keys."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call. cpu_s: CPU seconds. wall_s: seconds from sending the call to its reply."""

    cpu_s: float
    wall_s: float
    memory_bytes: int


class ChildError(Exception):
    """A call got no reply: it exceeded a limit, or the process died or could not be started."""


class ChildProcess:
    """A process for one job of child_script.py. Safe on any thread; makes one call at a time.

    The process starts at the first call, and again after a call that it did not survive.
    library: the folder of the library that does the job.
    """

    def __init__(self, job: Job, library: Path, limits: Limits) -> None:
        self._job = job
        self._library = library
        self._limits = limits
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        _STARTED.add(self)

    def start(self) -> None:
        """Start the process if it is not running; return without waiting for it."""
        with self._lock:
            self._start()

    def call(self, body: bytes, attached: bytes = b"") -> dict[str, Any]:
        """Send a call, as JSON, and return the reply and its attachment. Raises ChildError.

        attached: bytes that the job gets in the call under the name "attached".
        """
        with self._lock:
            try:
                child = self._start()
                if not self._is_ready:
                    self._exchange(child, (), START_LIMIT_S)
                    self._is_ready = True
                lengths = len(body).to_bytes(4, "little") + len(attached).to_bytes(4, "little")
                return self._exchange(child, (lengths + body, attached), self._limits.wall_s)
            except (OSError, EOFError, ValueError):
                self._end()
                with contextlib.suppress(OSError):
                    self._start()
                limits = self._limits
                raise ChildError(
                    f"it took more than {limits.cpu_s:g} seconds or {limits.memory_bytes >> 20} MiB of memory"
                ) from None

    def stop(self) -> None:
        """Kill the process. A later call starts another."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            limits = (str(self._limits.memory_bytes), str(self._limits.cpu_s))
            self._child = subprocess.Popen(
                [sys.executable, "-I", str(_SCRIPT), self._job, str(self._library), *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
                | {"OPENBLAS_NUM_THREADS": "1"},
                # Ctrl-C must not reach the process: the server still needs it while it drains.
                start_new_session=True,
            )
        return self._child

    def _exchange(
        self, child: "subprocess.Popen[bytes]", sent: Sequence[bytes], limit_s: float
    ) -> dict[str, Any]:
        """Send the parts of a call, if there is one, and wait for the reply.

        Raises OSError, EOFError or ValueError if no whole reply arrives within limit_s.
        """
        assert child.stdin is not None
        assert child.stdout is not None
        timer = threading.Timer(limit_s, child.kill)
        timer.start()
        try:
            for part in sent:
                child.stdin.write(part)
            child.stdin.flush()
            lengths = _read(child.stdout, 8)
            length, num_bytes = (int.from_bytes(half, "little") for half in (lengths[:4], lengths[4:]))
            if max(length, num_bytes) > MAX_REPLY_BYTES:
                raise EOFError
            reply: dict[str, Any] = json.loads(_read(child.stdout, length))
            if num_bytes:
                reply["attached"] = _read(child.stdout, num_bytes)
        finally:
            timer.cancel()
            timer.join()
        return reply

    def _end(self) -> None:
        child, self._child, self._is_ready = self._child, None, False
        if child is not None:
            child.kill()
            child.communicate()


def _read(source: IO[bytes], num_bytes: int) -> bytes:
    read = source.read(num_bytes)
    if len(read) < num_bytes:
        raise EOFError
    return read


_STARTED: "weakref.WeakSet[ChildProcess]" = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for process in list(_STARTED):
        process.stop()
