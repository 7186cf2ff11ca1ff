"""Work on a thread whose result nobody waits for any more: it ends at its next slice."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

ResultT = TypeVar("ResultT")
_IS_WANTED: ContextVar[Callable[[], bool]] = ContextVar("reprise.is_wanted", default=lambda: True)


class UnwantedError(BaseException):
    """The work has been ended. Like a cancellation it is no fault, and nobody is to catch it."""


def check_wanted() -> None:
    """Raise UnwantedError if nobody waits for the result any more."""
    if not _IS_WANTED.get()():
        raise UnwantedError


def run_while(is_wanted: Callable[[], bool], job: Callable[[], ResultT]) -> ResultT:
    """Run a job; once it is not wanted, check_wanted(), called between slices, raises UnwantedError."""
    before = _IS_WANTED.set(is_wanted)
    try:
        check_wanted()
        return job()
    finally:
        _IS_WANTED.reset(before)
