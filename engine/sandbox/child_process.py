"""Run foreign code in a process that can be killed: chat templates, and libraries for schemas and images.

It may take forever on input made to exploit it, and cannot be stopped within a thread. The process runs
child_script.py.
"""

import atexit
import contextlib
import os
import subprocess
import sys
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from reprise.engine.sandbox.child_script import encode_message, read_message

START_LIMIT_S = 60.0
MAX_REPLY_BYTES = 64 * 2**20
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
    """

    def __init__(self, job: Literal["templates", "schemas", "grammars", "images"], limits: Limits) -> None:
        self._job, self._limits = job, limits
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        _STARTED.add(self)

    def start(self) -> None:
        """Start the process if it is not running; return without waiting for it."""
        with self._lock:
            self._start()

    def call(self, **call: Any) -> dict[str, Any]:
        """Send a call, and return the reply. Raises ChildError.

        Both are JSON, but for bytes under the name "attached".
        """
        message = encode_message(call)
        with self._lock:
            try:
                child = self._start()
                if not self._is_ready:
                    self._exchange(child, b"", START_LIMIT_S)
                    self._is_ready = True
                return self._exchange(child, message, self._limits.wall_s)
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
                [sys.executable, "-I", str(_SCRIPT), self._job, *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
                | {"OPENBLAS_NUM_THREADS": "1"},
                # Ctrl-C must not reach the process: the server still needs it while it drains.
                start_new_session=True,
            )
        return self._child

    def _exchange(self, child: subprocess.Popen[bytes], message: bytes, limit_s: float) -> dict[str, Any]:
        """Send a message, empty before the first call, and wait for the reply.

        Raises OSError, EOFError or ValueError if no whole reply arrives within limit_s.
        """
        assert child.stdin is not None
        assert child.stdout is not None
        timer = threading.Timer(limit_s, child.kill)
        timer.start()
        try:
            child.stdin.write(message)
            child.stdin.flush()
            return read_message(child.stdout, MAX_REPLY_BYTES)
        finally:
            timer.cancel()
            timer.join()

    def _end(self) -> None:
        child, self._child, self._is_ready = self._child, None, False
        if child is not None:
            child.kill()
            child.communicate()


_STARTED: "weakref.WeakSet[ChildProcess]" = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for process in list(_STARTED):
        process.stop()


CHECK_LIMITS = Limits(cpu_s=0.5, wall_s=5.0, memory_bytes=512 * 2**20)


class SchemaChecker:
    """Checks JSON against its whole schema; a grammar made of a schema that is not strict may enforce less.

    A schema comes from a client: its patterns and references may take forever. Safe on any thread.
    """

    def __init__(self, limits: Limits = CHECK_LIMITS) -> None:
        self._process = ChildProcess("schemas", limits)

    def is_valid(self, text: str, schema: str) -> bool | None:
        """Return whether a text is JSON that satisfies a schema; None if the check failed. Blocks."""
        try:
            valid: bool | None = self._process.call(text=text, schema=schema)["valid"]
        except ChildError:
            return None
        return valid


CHECKER = SchemaChecker()

TIME_LIMIT_S = 5.0
MEMORY_LIMIT_BYTES = 2 * 2**30


class RenderError(ValueError):
    """A template could not be rendered; the message is the template's own, or names the limit exceeded."""


class RenderLimitError(RenderError):
    """A template took too much time or memory."""


class TemplateProcess:
    """Renders chat templates in a process, in place of transformers' render_jinja_template().

    A template is a program that comes with the model. transformers runs it in Jinja's sandbox, which keeps it
    from code and files but not from looping forever or filling memory. A separate process can be killed, and
    the sandbox is then not the only protection. Safe on any thread.
    """

    def __init__(self, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._process = ChildProcess("templates", Limits(time_limit_s, time_limit_s, MEMORY_LIMIT_BYTES))

    def render(self, **call: Any) -> tuple[list[str], list[Any]]:
        """Render conversations. call: the arguments of render_jinja_template(). Raises RenderError."""
        try:
            reply = self._process.call(**call)
        except ChildError as fault:
            raise RenderLimitError(str(fault)) from None
        if "complaint" in reply:
            raise RenderError(reply["complaint"])
        return reply["rendered"], reply["indices"]

    def stop(self) -> None:
        """Kill the process."""
        self._process.stop()

    def isolate(self) -> None:
        """Render the templates of every tokenizer here from now on, in calls from transformers too."""
        # It takes seconds to import, and not everyone who checks schemas has a tokenizer.
        from transformers import tokenization_utils_base

        library: Any = tokenization_utils_base
        library.render_jinja_template = self.render
        self._process.start()


PROCESS = TemplateProcess()
