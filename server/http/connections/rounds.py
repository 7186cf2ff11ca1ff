"""Parse the input of connections in rounds: the event loop parses some of it, then serves everyone."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial

ROUND_S = 0.005
"""How long a round of the event loop parses and starts requests; what is left waits for the next round."""
REQUEST_S = 0.001
"""Seconds that a starting request counts in a round: its first step comes after the round."""


class Rounds:
    """Divides the work of parsing input and beginning requests into rounds of the event loop.

    Without rounds, the loop would be held for as long as the input of all connections together takes.
    Addresses are served in rotation. Use it on one event loop only, and for one action of a connection at a
    time.

    clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._spent_s = 0.0
        self._has_next = self._is_doing = False

    @property
    def has_time(self) -> bool:
        """Whether an action may be done now: within do(), or if the round has time and no action waits."""
        return self._is_doing or (not self._waiting and self._spent_s < ROUND_S)

    def do(self, action: Callable[[], None], more_s: float = 0.0) -> None:
        """Do an action in this round.

        more_s: seconds of this round to count besides, for work that the action begins elsewhere on the loop.
        """
        start_s, is_within = self._clock(), self._is_doing
        self._is_doing = True
        try:
            action()
        finally:
            self._is_doing = is_within
            self._spent_s += self._clock() - start_s + more_s
            self._plan_next()

    def wait(self, address: str, action: Callable[[], None], more_s: float = 0.0) -> None:
        """Do an action in a later round, after the addresses that precede this one in rotation."""
        self._waiting.setdefault(address, deque()).append(partial(self.do, action, more_s))
        self._plan_next()

    def _plan_next(self) -> None:
        if not self._has_next:
            self._has_next = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        """Begin a round with what has waited."""
        self._has_next, self._spent_s = False, 0.0
        while self._waiting and self._spent_s < ROUND_S:
            address, kept = self._waiting.popitem(last=False)
            first = kept.popleft()
            if kept:
                # To the end: all others come first.
                self._waiting[address] = kept
            first()
