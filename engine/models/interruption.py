"""End what a thread does from another thread, even in a loop that looks at nothing."""

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PENDING = 100
"""Turns of a loop in any of which Python raises what another thread has sent before."""


class Interruption(BaseException):
    """What a thread did was ended by another. No Exception: models' code may catch those and go on."""


class Interruptible:
    """Runs work on one thread that other threads can end, as loading a model runs code of others.

    Ends code of Python. A call of C, such as reading an array, returns first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._is_over = False

    def run(self, work: Callable[[], None]) -> None:
        """Do the work. Raises Interruption if interrupt() has been called."""
        self._enter()
        try:
            work()
        finally:
            self._leave()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Do something within the work that interrupt() is not to end. Raises Interruption around it."""
        self._leave()
        yield
        self._enter()

    def interrupt(self) -> None:
        """End the work that runs, and any later one. For other threads."""
        with self._lock:
            self._is_over = True
            if self._thread is not None:
                kind = ctypes.py_object(Interruption)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), kind)
                self._thread = None

    def _enter(self) -> None:
        with self._lock:
            if self._is_over:
                raise Interruption
            self._thread = threading.get_ident()

    def _leave(self) -> None:
        with self._lock:
            self._thread = None
        # What was sent just before is raised here, and not in what follows.
        for _ in range(_PENDING):
            pass
