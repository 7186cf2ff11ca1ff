"""Give memory that the process has freed back to the system, and leave what stays out of collections."""

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_IS_FROZEN = threading.Event()


_M_ARENA_MAX, _NUM_ARENAS = -8, 2


def share_arenas() -> None:
    """Let threads share two of glibc's arenas: with one for each, memory grows by what each has fragmented.

    Call it before threads start. Does nothing elsewhere.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _NUM_ARENAS)


def return_freed() -> None:
    """Return freed memory to the system: glibc keeps some for every arena. Does nothing elsewhere."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def frozen() -> Iterator[None]:
    """Leave all present objects out of later garbage collections, even after the context.

    Only collect_all() includes them, until the context ends.
    """
    gc.freeze()
    _IS_FROZEN.set()
    try:
        yield
    finally:
        _IS_FROZEN.clear()


def collect_all() -> None:
    """Collect cyclic garbage; within a context of frozen(), also among the objects that it leaves out."""
    if _IS_FROZEN.is_set():
        gc.unfreeze()
    gc.collect()
    if _IS_FROZEN.is_set():
        gc.freeze()
