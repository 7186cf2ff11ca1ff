"""Render chat templates in a separate process.

A template is a program that comes with the model. transformers runs it in Jinja's sandbox, which keeps it
from code and files but not from looping forever or filling memory. A separate process can be killed, and
the sandbox is then not the only protection.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

import transformers
from transformers import tokenization_utils_base

TIME_LIMIT_S = 5.0
START_LIMIT_S = 60.0
MEMORY_LIMIT_BYTES = 2 * 2**30
MAX_REPLY_BYTES = 64 * 2**20
_SCRIPT = Path(__file__).with_name("template_process.py")
_PASSED_VARIABLES = ("PATH", "TZ", "LANG", "LC_ALL")
"""Environment variables that the process inherits. All others stay out, since they may hold keys."""


class RenderError(ValueError):
    """A template could not be rendered; the message is the template's own, or names the limit it hit."""


class TemplateProcess:
    """A process that replaces transformers.utils.chat_template_utils.render_jinja_template.

    Safe on any thread.
    """

    def __init__(self, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._time_limit_s = time_limit_s
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_ready = False

    def start(self) -> None:
        """Start the process if it is not running; return without waiting for it."""
        with self._lock:
            self._start()

    def render(self, **call: Any) -> tuple[list[str], list[Any]]:
        """Render conversations. call: the arguments of transformers' function. Raises RenderError."""
        body = json.dumps(call, default=_placeholder).encode()
        with self._lock:
            child = self._start()
            if not self._is_ready:
                self._exchange(child, None, START_LIMIT_S)
                self._is_ready = True
            reply = self._exchange(child, body, self._time_limit_s)
        if "complaint" in reply:
            raise RenderError(reply["complaint"])
        return reply["rendered"], reply["indices"]

    def stop(self) -> None:
        """Kill the process."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._end()
            folder = str(Path(transformers.__file__).parent)
            self._child = subprocess.Popen(
                [sys.executable, "-I", str(_SCRIPT), folder, str(MEMORY_LIMIT_BYTES)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
                | {"OPENBLAS_NUM_THREADS": "1"},
                # Ctrl-C must not reach the process: the server still renders while it drains.
                start_new_session=True,
            )
        return self._child

    def _exchange(
        self, child: "subprocess.Popen[bytes]", body: bytes | None, limit_s: float
    ) -> dict[str, Any]:
        """Send a call, if there is one, and wait for the reply.

        Raises RenderError if no reply arrives within limit_s; a new process then replaces this one.
        """
        assert child.stdin is not None
        assert child.stdout is not None
        timer = threading.Timer(limit_s, child.kill)
        timer.start()
        try:
            if body is not None:
                child.stdin.write(len(body).to_bytes(4, "little") + body)
                child.stdin.flush()
            length = int.from_bytes(_read(child.stdout, 4), "little")
            if length > MAX_REPLY_BYTES:
                raise EOFError
            reply: dict[str, Any] = json.loads(_read(child.stdout, length))
        except (OSError, EOFError, ValueError):
            self._end()
            self._start()
            raise RenderError(
                f"it took more than {limit_s:g} seconds or {MEMORY_LIMIT_BYTES >> 20} MiB of memory"
            ) from None
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


def _placeholder(value: object) -> str:
    """Return what transformers shows a template for a value that JSON cannot represent."""
    return f"<{type(value).__name__}>"


PROCESS = TemplateProcess()
atexit.register(PROCESS.stop)


def isolate_templates() -> None:
    """Have the process render every tokenizer's templates from now on, including calls from transformers."""
    library: Any = tokenization_utils_base
    library.render_jinja_template = PROCESS.render
    PROCESS.start()
