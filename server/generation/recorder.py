"""A file of lines that others hand over, written by a thread of its own, whatever the disk does."""

import os
import queue
import stat
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from config.setting import SettingsError
from server.logs import LOGGER

MakeLines = Callable[[], Iterable[bytes]]
"""Makes lines, each with its end, on the recorder's thread."""

MAX_WAITING = 256
LAST_LINES_S = 2.0
"""How long close() waits for what is still to be written."""


class Recorder:
    """Appends lines to a file that only its owner may read, up to most_bytes of it.

    A line stands in the file in full or not at all. What cannot be written is dropped, and the log says so
    once; the next line is tried again.
    Raises SettingsError if the file cannot be written to begin with.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._waiting: queue.Queue[MakeLines | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()
        self._is_full = False
        try:
            os.close(self._open())
        except OSError as fault:
            raise SettingsError(f"record: {path} cannot be written: {fault.strerror or fault}") from fault

    def start(self) -> None:
        """Begin to write."""
        LOGGER.warning("what is asked and answered is recorded in %s", self.path)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    def note(self, make_lines: MakeLines) -> None:
        """Hand over what makes lines. Never waits and never raises; called on any one thread."""
        if self._is_full:
            return
        try:
            self._waiting.put_nowait(make_lines)
        except queue.Full:
            self._tell("late", "%s takes too long to write; some of what is said is not recorded", self.path)

    def close(self) -> None:
        """Write what was noted, if that does not take long."""
        try:
            self._waiting.put(None, timeout=LAST_LINES_S)
        except queue.Full:
            return
        if self._thread is not None:
            self._thread.join(LAST_LINES_S)

    def _run(self) -> None:
        while (make_lines := self._waiting.get()) is not None:
            # Whatever goes wrong here is no reason to end the server or to stop recording.
            try:
                self._write(make_lines())
            except OSError as fault:
                self._tell("failed", "%s: %s; not everything is recorded", self.path, fault.strerror or fault)
            except Exception:  # noqa: BLE001
                if "fault" not in self._told:
                    self._told.add("fault")
                    LOGGER.exception("a request could not be recorded")

    def _write(self, lines: Iterable[bytes]) -> None:
        """Raises OSError."""
        file = self._open()
        try:
            for line in lines:
                size = os.fstat(file).st_size
                if size + len(line) > self._max_bytes:
                    self._is_full = True
                    message = "%s has %d bytes; nothing more is recorded (--record-bytes)"
                    self._tell("full", message, self.path, size)
                    return
                # What a crash cut off must not take the next line with it.
                begins_inside = size and os.pread(file, 1, size - 1) != b"\n"
                self._append(file, b"\n" + line if begins_inside else line, size)
        finally:
            os.close(file)

    def _append(self, file: int, line: bytes, size: int) -> None:
        is_whole = False
        try:
            is_whole = os.write(file, line) == len(line)
            if not is_whole:
                raise OSError(0, "no space left on it")
        finally:
            if not is_whole:
                os.ftruncate(file, size)

    def _open(self) -> int:
        """Raises OSError."""
        # Without O_NONBLOCK a pipe that nobody reads would hold the thread.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
        file = os.open(self.path, flags, 0o600)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(0, "it is no plain file")
        os.fchmod(file, 0o600)
        return file

    def _tell(self, what: str, message: str, *values: object) -> None:
        """Log something the first time."""
        if what not in self._told:
            self._told.add(what)
            LOGGER.warning(message, *values)
