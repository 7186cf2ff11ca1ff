"""Run foreign code in processes that can be killed: chat templates, and libraries for schemas and files.

Such code may run forever on hostile input, and a thread cannot be killed. Each process runs child_script.py.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Literal

from reprise.engine.interface.images import ImageProcessor, PromptImage, image_key, placeholders
from reprise.engine.sandbox.child_script import FileError, encode_message, read_message

START_LIMIT_S = 60.0
MAX_REPLY_BYTES = 64 * 2**20
_SCRIPT = Path(__file__).with_name("child_script.py")
_PASSED_VARIABLES = ("PATH", "TZ", "LANG", "LC_ALL")
"""Environment variables that a process inherits. All others stay out, since they may hold keys."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one call. cpu_s: CPU seconds. wall_s: seconds from sending the call to its reply."""

    cpu_s: float
    wall_s: float
    memory_bytes: int


class CallError(Exception):
    """A call never gets a reply: it exceeds a limit, crashes the process, or its reply is too long."""


class ChildError(Exception):
    """A call got no reply, and may get one later: the machine killed the process, or gave it no time."""


class ChildProcess:
    """A process for one job of child_script.py. Safe on any thread; makes one call at a time.

    The process starts at the first call, and again after a call that killed it.
    """

    def __init__(
        self, job: Literal["templates", "schemas", "grammars", "images", "documents"], limits: Limits
    ) -> None:
        self._job, self._limits = job, limits
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        atexit.register(self.stop)

    def start(self) -> None:
        """Start the process if it is not running; return without waiting for it."""
        with self._lock:
            self._start()

    def call(self, **call: Any) -> dict[str, Any]:
        """Send a call, see encode_message(), and return the reply. Raises CallError and ChildError."""
        message, limits = encode_message(call), self._limits
        with self._lock:
            try:
                child = self._start()
                if not self._is_ready:
                    self._exchange(child, b"", START_LIMIT_S)
                    self._is_ready = True
                return self._exchange(child, message, limits.wall_s)
            except (OSError, EOFError, ValueError) as fault:
                was_ready, status = self._is_ready, self._end()
                with contextlib.suppress(OSError):
                    self._start()
                most = f"{limits.cpu_s:g} seconds or {limits.memory_bytes >> 20} MiB of memory"
                ended_itself = was_ready and status not in (None, -signal.SIGKILL, -signal.SIGTERM)
                is_at_fault = ended_itself or isinstance(fault, ValueError)
                error = CallError if is_at_fault else ChildError
                raise error(f"it took more than {most}") from None

    def call_twice(self, **call: Any) -> dict[str, Any]:
        """Call, and once more in a new process after a ChildError. Raises CallError and ChildError."""
        try:
            return self.call(**call)
        except ChildError:
            return self.call(**call)

    def stop(self) -> None:
        """Kill the process. A later call starts another."""
        with self._lock:
            self._end()

    def interrupt(self) -> None:
        """Let the call that is running, if any, raise ChildError."""
        if self._lock.locked() and (child := self._child) is not None:
            child.kill()

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

    def _end(self) -> int | None:
        """Kill the process, if it runs; return how it ended."""
        child, self._child, self._is_ready = self._child, None, False
        if child is None:
            return None
        child.kill()
        child.communicate()
        return child.returncode


_CHECKER = ChildProcess("schemas", Limits(cpu_s=0.5, wall_s=5.0, memory_bytes=512 * 2**20))


def satisfies(text: str, schema: str) -> bool | None:
    """Return whether a text is JSON that satisfies a whole schema; None if the check failed. Blocks.

    A grammar made from a schema that is not strict may enforce less.
    """
    try:
        # A schema comes from a client: its patterns and references may take forever.
        valid: bool | None = _CHECKER.call(text=text, schema=schema)["valid"]
    except (CallError, ChildError):
        return None
    return valid


TIME_LIMIT_S = 5.0
MEMORY_LIMIT_BYTES = 2 * 2**30


class RenderError(ValueError):
    """A template could not be rendered; the message is the template's own, or names the limit exceeded."""


class RenderLimitError(RenderError):
    """A template took too much time or memory."""


class TemplateProcess(ChildProcess):
    """Renders chat templates, in place of transformers' render_jinja_template().

    A template is a program that comes with the model. transformers runs it in Jinja's sandbox, which prevents
    access to code and files, but not endless loops or filled memory.
    """

    def __init__(self, time_limit_s: float = TIME_LIMIT_S) -> None:
        # A template that never ends must reach the limit of CPU time, also while others compute.
        super().__init__("templates", Limits(time_limit_s, time_limit_s + 10.0, MEMORY_LIMIT_BYTES))

    def render(self, **call: Any) -> tuple[list[str], list[Any]]:
        """Render conversations. call: the arguments of render_jinja_template().

        Raises RenderError, and ChildError if the machine is at fault.
        """
        try:
            reply = self.call_twice(**call)
        except CallError as fault:
            raise RenderLimitError(str(fault)) from None
        if "complaint" in reply:
            raise RenderError(reply["complaint"])
        return reply["rendered"], reply["indices"]

    def isolate(self) -> None:
        """Render every tokenizer's templates in this process from now on, including calls by transformers."""
        # It takes seconds to import, and not everyone who checks schemas has a tokenizer.
        from transformers import tokenization_utils_base

        library: Any = tokenization_utils_base
        library.render_jinja_template = self.render
        self.start()


PROCESS = TemplateProcess()

SMALL_PIXELS = 6_000_000
"""The most pixels of an image that the process for most of them decodes: it takes 0.2 seconds."""
SMALL_LIMITS, LARGE_LIMITS = Limits(2.0, 10.0, 512 * 2**20), Limits(10.0, 30.0, 512 * 2**20)
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Picture:
    """A decoded image: its tiles, and the whole if shown, positioned as if each began the prompt.

    before: token ids that precede each part.
    """

    parts: tuple[PromptImage, ...]
    before: tuple[tuple[int, ...], ...]

    @property
    def num_bytes(self) -> int:
        """The bytes of the pixels of all parts."""
        return sum(len(part.pixels) for part in self.parts)


class ImageDecoder:
    """Decodes images, which may be files that attack C decoders. Thread-safe.

    It has two processes, so that one slow image blocks nobody.
    """

    def __init__(self, small: Limits = SMALL_LIMITS, large: Limits = LARGE_LIMITS) -> None:
        self.small, self.large = ChildProcess("images", small), ChildProcess("images", large)

    def decode(
        self, processor: ImageProcessor, data: str, detail: str = "auto", budget: int = _NO_LIMIT
    ) -> Picture:
        """Decode an image, given in base64. detail, budget: see find_size(). Blocks.

        Raises FileError, and ChildError if the machine is at fault.
        """
        call: dict[str, Any] = {"processor": asdict(processor), "detail": detail, "budget": budget}
        call["attached"] = data.encode("ascii", "replace")
        try:
            reply = self.small.call_twice(**call, max_pixels=SMALL_PIXELS)
            if "is_large" in reply:
                reply = self.large.call_twice(**call, max_pixels=_NO_LIMIT)
        except CallError as fault:
            raise FileError(f"cannot be decoded: {fault}") from fault
        if "complaint" in reply:
            raise FileError(reply["complaint"])
        parts: list[PromptImage] = []
        start = 0
        for _, grid, shape in reply["parts"]:
            grid, shape = tuple(grid), tuple(shape)
            pixels = reply["attached"][start : (start := start + prod(shape))]
            key = image_key(pixels, shape, grid, repr(processor))
            parts.append(PromptImage(0, len(placeholders(processor, grid)), grid, pixels, shape, key))
        return Picture(tuple(parts), tuple(tuple(before) for before, *_ in reply["parts"]))

    def stop(self) -> None:
        """Kill the processes."""
        self.small.stop()
        self.large.stop()


DOCUMENTS = ChildProcess("documents", Limits(cpu_s=20.0, wall_s=120.0, memory_bytes=2**30))


def read_document(data: str) -> str:
    """Return the text of a PDF or a text file, given in base64. Blocks.

    Raises FileError if it has none, and ChildError if the machine is at fault.
    """
    try:
        reply = DOCUMENTS.call(attached=data.encode("ascii", "replace"))
    except CallError as fault:
        raise FileError(f"cannot be read: {fault}") from fault
    if "complaint" in reply:
        raise FileError(reply["complaint"])
    attached: bytes = reply.get("attached", b"")
    return attached.decode()
