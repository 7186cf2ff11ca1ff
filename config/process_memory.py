"""Return freed memory to the system, and exclude permanent objects from garbage collection."""

import ctypes
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_IS_FROZEN = threading.Event()


_M_ARENA_MAX, _NUM_ARENAS = -8, 2


def share_arenas() -> None:
    """Limit glibc to two arenas: with one per thread, each one's fragmentation adds up.

    Call it before threads start. Does nothing elsewhere.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _NUM_ARENAS)


def return_freed() -> None:
    """Return freed memory that glibc's arenas keep to the system. Does nothing elsewhere."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def frozen() -> Iterator[None]:
    """Exclude all present objects from later garbage collections, even after the context.

    Only collect_all() includes them, until the context ends.
    """
    gc.freeze()
    _IS_FROZEN.set()
    try:
        yield
    finally:
        _IS_FROZEN.clear()


def collect_all() -> None:
    """Collect cyclic garbage, including objects that a running frozen() context excludes."""
    if _IS_FROZEN.is_set():
        gc.unfreeze()
    gc.collect()
    if _IS_FROZEN.is_set():
        gc.freeze()
