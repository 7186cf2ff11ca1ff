"""The work that drafters put off: reading prompts and learning finished texts, in slices between steps."""

from collections import deque
from time import perf_counter

from drafters.base import Slices
from engine.stations import station

STEP_S, STEP_SHARE = 0.0005, 0.1
"""Seconds that a step may give to this work, or share of a plain step if that is longer, besides the slices
that were begun within them. The device is busy meanwhile. In a second a step drafts nothing from what it has
not read, so a slow model must not read as slowly."""

MAX_CLOSING = 64
"""Maximum number of finished texts that wait to be learned; the oldest is dropped first."""


class DrafterWork:
    """The slices that are left to do, of all sequences.

    Prompts take turns, so that a short one never waits for a long one. Finished texts are learned one after
    the other, as drafters ask for, and as many slices of them are done as of prompts.

    step_s: see STEP_S; 0 for one slice of each kind. At least these are done in every step.
    """

    def __init__(self, step_s: float = STEP_S) -> None:
        self.step_s = step_s
        self._reading: dict[int, Slices] = {}
        self._closing: deque[Slices] = deque(maxlen=MAX_CLOSING)

    @property
    def is_left(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._reading or self._closing)

    def is_reading(self, seq: int) -> bool:
        """Whether anything is left to read for a sequence."""
        return seq in self._reading

    def read(self, seq: int, slices: Slices) -> None:
        """Do these slices in the steps to come, unless the sequence is closed before."""
        self._reading[seq] = slices

    def close(self, seq: int, slices: Slices) -> None:
        """Stop reading a sequence's prompt, and do these slices instead."""
        self._reading.pop(seq, None)
        self._closing.append(slices)

    def advance(self, plain_s: float = 0.0) -> None:
        """Do one step's share of the work. plain_s: seconds of a plain step; 0 if not known."""
        if self.is_left:
            self._advance(max(self.step_s, STEP_SHARE * plain_s) if self.step_s else 0.0)

    @station("drafters")
    def _advance(self, limit_s: float) -> None:
        end = perf_counter() + limit_s
        while True:
            self._advance_each()
            if perf_counter() >= end or not self.is_left:
                return

    def finish(self) -> None:
        """Do all of the work at once."""
        while self.is_left:
            self._advance_each()

    def _advance_each(self) -> None:
        """Do one slice of a prompt and one of a finished text."""
        if self._reading:
            seq = next(iter(self._reading))
            slices = self._reading.pop(seq)
            if next(slices, None) is not None:
                self._reading[seq] = slices
        if self._closing and next(self._closing[0], None) is None:
            self._closing.popleft()
