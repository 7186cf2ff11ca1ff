"""The answer that the client expects (OpenAI's `prediction`), drafted for as long as the answer keeps to it.

A copy cursor follows the answer through it, from its first token on (see copying.py): it learns what the
answer changes, and finds its place again after something was added, left out or replaced.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart
from drafters.copying import CopyCursor
from drafters.occurrences import LONGEST, Ids, Occurrences, Tail

RUN_STARTS = (2, 4, 8, 16, 32)
"""Tokens in a row at which a next bucket begins, counted since the cursor found its place."""

START = len(RUN_STARTS) + 1
"""The bucket at the start of the answer, before anything was said."""

PRIORS = (0.65, 0.75, 0.80, 0.88, 0.94, 0.98, 0.90)
"""Chance that a drafted token is right, by bucket."""

_SETS_CURSOR = 4  # matched tokens from which on a lost cursor goes there


@dataclass(slots=True)
class _Sequence:
    """What is known of one open sequence. index: of the prediction. recent: the answer's last tokens."""

    cursor: CopyCursor
    index: Occurrences
    tail: Tail
    recent: Ids
    num_accepted: int = 0
    num_rejected: int = 0


class PredictionDrafter:
    """Drafts what the client expects. Sequences that came without a prediction cost nothing."""

    name = "prediction"

    def __init__(self) -> None:
        # None for a sequence that came without one.
        self._sequences: dict[int, _Sequence | None] = {}

    @property
    def num_open(self) -> int:
        """Sequences that are open, with or without a prediction."""
        return len(self._sequences)

    def open(self, opening: SequenceStart) -> None:
        """Index the prediction, and stand at its beginning."""
        if not opening.prediction:
            self._sequences[opening.seq] = None
            return
        source = array("I", opening.prediction)
        index, tail = Occurrences(1 << len(source).bit_length()), Tail()
        for token in source:
            index.append(token, tail.append(token))
        cursor = CopyCursor(source)
        cursor.place = 0
        self._sequences[opening.seq] = _Sequence(cursor, index, Tail(), array("I"))

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Follow the answer; look for its place in all of the prediction where it was lost."""
        state = self._sequences[seq]
        if state is None:
            return
        cursor, tail, recent = state.cursor, state.tail, state.recent
        for token in tokens:
            cursor.advance(token)
            tail.append(token)
            recent.append(token)
        del recent[:-LONGEST]
        if cursor.place is None:
            match = state.index.find(tail.hashes, recent, shortest=_SETS_CURSOR)
            if match is not None:
                cursor.set(match.place, match.length)

    def propose(self, query: DraftQuery) -> Draft:
        """The prediction from the cursor on, with the changes that were learned; empty while it is lost."""
        state = self._sequences[query.seq]
        if state is None:
            return NO_DRAFT
        tokens = state.cursor.draft(query.limit)
        if not tokens:
            return NO_DRAFT
        bucket = bisect_right(RUN_STARTS, state.cursor.run) if state.recent else START
        return Draft(tokens, self.name, bucket, PRIORS[bucket])

    def record_verified(self, seq: int, offered: int, accepted: int) -> None:
        """Count what the client is told."""
        state = self._sequences[seq]
        if state is not None:
            state.num_accepted += accepted
            state.num_rejected += offered - accepted

    def counts(self, seq: int) -> tuple[int, int]:
        """(accepted, rejected): tokens of drafts that were verified. Valid until close.

        For OpenAI's accepted_prediction_tokens and rejected_prediction_tokens. Tokens never offered, such
        as those after the place where the answer ended, count as neither.
        """
        state = self._sequences[seq]
        return (state.num_accepted, state.num_rejected) if state is not None else (0, 0)

    def close(self, seq: int) -> None:
        """Forget the sequence."""
        del self._sequences[seq]
