"""End a thread's job at its next slice once nobody waits for the result."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

ResultT = TypeVar("ResultT")
_IS_WANTED: ContextVar[Callable[[], bool]] = ContextVar("reprise.is_wanted", default=lambda: True)


class UnwantedError(BaseException):
    """Nobody waits for this job's result. Like a cancellation it is not an error; do not catch it."""


def check_wanted() -> None:
    """Raise UnwantedError if nobody waits for this thread's job any more."""
    if not _IS_WANTED.get()():
        raise UnwantedError


def run_while(is_wanted: Callable[[], bool], job: Callable[[], ResultT]) -> ResultT:
    """Run a job and return its result. Once is_wanted() is false, check_wanted() raises within the job."""
    before = _IS_WANTED.set(is_wanted)
    try:
        check_wanted()
        return job()
    finally:
        _IS_WANTED.reset(before)
