"""Choose which of several models runs next on the thread that owns MLX."""

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

SLICE_S = 0.05
"""Seconds by which one may be ahead of the others. Not 0: a switch waits for the step in flight."""

Runner = TypeVar("Runner", bound=Hashable)


class TimeShares(Generic[Runner]):
    """Divides time evenly among the models that have work: the model that has had the least runs next.

    A model that gets work again is level with the one that has had the least: idle time is not saved up.
    """

    def __init__(self) -> None:
        self._spent_s: dict[Runner, float] = {}
        self._current: Runner | None = None
        self._passes_on = False

    def choose(self, runners: Iterable[Runner]) -> Runner | None:
        """Return the model that runs next; None if there is none. runners: all models that have work."""
        waiting = list(runners)
        spent = {one: self._spent_s[one] for one in waiting if one in self._spent_s}
        least_s = min(spent.values(), default=0.0)
        self._spent_s = {one: spent.get(one, least_s) - least_s for one in waiting}
        if not waiting:
            return None
        if self._passes_on or self._current not in self._spent_s or self._spent_s[self._current] >= SLICE_S:
            others = [one for one in waiting if one is not self._current] if self._passes_on else []
            self._current = min(others or waiting, key=self._spent_s.__getitem__)
        return self._current

    def charge(self, runner: Runner, taken_s: float, *, passes_on: bool = False) -> None:
        """Count the seconds that a model has run. passes_on: whether another one that has work is next."""
        self._passes_on = passes_on
        if runner in self._spent_s:
            self._spent_s[runner] += taken_s
