"""The work that drafters put off: indexing prompts and learning finished texts, in slices between steps."""

from collections import deque

from reprise.drafters.base import Slices
from reprise.engine.interface.stations import station

STEP_SLICES = 4
"""Slices of a step. Half take at most .06 ms, the longest .11: less than half a millisecond in all."""

STEP_SHARE, SLICE_S = 0.1, 0.0001
"""Beside a long step as many slices as this share of a plain step holds, if each takes so many seconds, as
few do. The device is busy meanwhile. In a second a step drafts nothing from what is not
indexed, so a slow model must not index as slowly."""

MAX_CLOSING = 64
"""Maximum number of finished texts that wait to be learned; the oldest is dropped first."""


class DrafterWork:
    """The slices of drafters' work that are left to do, of all sequences.

    Prompts are indexed in rotation, a slice of each, so that a short one never waits for a long one. Finished
    texts are learned one after the other, as drafters require, in as many slices as prompts get. A step does
    a bounded number of slices, and a slice has a bounded number of tokens, so no clock is read.

    step_slices, step_share: see STEP_SLICES and STEP_SHARE.
    """

    def __init__(self, step_slices: int = STEP_SLICES, step_share: float = STEP_SHARE) -> None:
        self.step_slices, self.step_share = step_slices, step_share
        self._indexing: dict[int, Slices] = {}
        self._closing: deque[Slices] = deque(maxlen=MAX_CLOSING)
        self._has_indexed = False

    @property
    def is_left(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._indexing or self._closing)

    def is_indexing(self, seq: int) -> bool:
        """Whether anything is left to index for a sequence."""
        return seq in self._indexing

    def index(self, seq: int, slices: Slices) -> None:
        """Queue the slices that index a sequence's prompt; closing the sequence drops them."""
        self._indexing[seq] = slices

    def close(self, seq: int, slices: Slices) -> None:
        """Drop the slices that index a sequence's prompt, and queue those that learn its finished text."""
        self._indexing.pop(seq, None)
        self._closing.append(slices)

    def advance(self, plain_s: float = 0.0) -> None:
        """Do one step's share of the work. plain_s: seconds of a plain step; 0 if not known."""
        if self.is_left:
            self._advance(max(self.step_slices, int(self.step_share * plain_s / SLICE_S)))

    @station("drafters")
    def _advance(self, num_slices: int) -> None:
        for _ in range(num_slices):
            self._do_slice()

    def finish(self) -> None:
        """Do all of the work at once."""
        while self.is_left:
            self._do_slice()

    def _do_slice(self) -> None:
        """Do the next slice, of prompts and finished texts alternately."""
        self._has_indexed = bool(self._indexing) and not (self._has_indexed and self._closing)
        if self._has_indexed:
            seq = next(iter(self._indexing))
            slices = self._indexing.pop(seq)
            if next(slices, None) is not None:
                self._indexing[seq] = slices
        elif self._closing and next(self._closing[0], None) is None:
            self._closing.popleft()
