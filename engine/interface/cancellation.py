"""End work on a thread, at its next slice, once nobody waits for its result any more."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

ResultT = TypeVar("ResultT")
_IS_WANTED: ContextVar[Callable[[], bool]] = ContextVar("reprise.is_wanted", default=lambda: True)


class UnwantedError(BaseException):
    """Nobody waits for the result of this work. Like a cancellation it is no fault; do not catch it."""


def check_wanted() -> None:
    """Raise UnwantedError if nobody waits any more for the job that this thread runs."""
    if not _IS_WANTED.get()():
        raise UnwantedError


def run_while(is_wanted: Callable[[], bool], job: Callable[[], ResultT]) -> ResultT:
    """Run a job and return its result; once is_wanted() is false, its calls of check_wanted() raise."""
    before = _IS_WANTED.set(is_wanted)
    try:
        check_wanted()
        return job()
    finally:
        _IS_WANTED.reset(before)
