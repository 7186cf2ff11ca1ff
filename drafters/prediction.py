"""Draft from the answer that the client expects (OpenAI's `prediction`).

A copy cursor follows the answer through the prediction from its first token on. It learns what the
answer changes, and resumes after an insertion, deletion or replacement.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart, Slices
from reprise.drafters.copies.copying import MIN_JUMP_TOKENS, CopyCursor, GrowingText
from reprise.drafters.copies.occurrences import MAX_MATCH_TOKENS, Ids, Occurrences, TailHashes

RUN_STARTS = (2, 4, 8, 16, 32)
"""Lengths of the cursor's run at which the next bucket starts."""

AT_START = len(RUN_STARTS) + 1
"""The bucket of the first draft, before the answer has any token."""

PRIORS = (0.65, 0.75, 0.80, 0.88, 0.94, 0.98, 0.90)
"""Expected acceptance rate per token, by bucket."""


@dataclass(slots=True)
class _Sequence:
    """An open sequence with a prediction.

    index: of the prediction. tail: hashes of the answer's end. recent: the answer's last tokens.
    num_accepted, num_rejected: tokens of verified drafts.
    """

    cursor: CopyCursor
    index: Occurrences
    tail: TailHashes
    recent: Ids
    num_accepted: int = 0
    num_rejected: int = 0


class PredictionDrafter:
    """Drafts the prediction. A sequence without one costs nothing."""

    name = "prediction"

    def __init__(self) -> None:
        # None for a sequence without a prediction.
        self._sequences: dict[int, _Sequence | None] = {}

    @property
    def num_open(self) -> int:
        """Number of open sequences, with or without a prediction."""
        return len(self._sequences)

    def open(self, start: SequenceStart) -> Slices | None:
        """Place the cursor at the prediction's start, and return the work of indexing the prediction.

        Until that work is done, drafts end where the loaded part of the prediction ends.
        """
        if not start.prediction:
            self._sequences[start.seq] = None
            return None
        source = GrowingText(start.prediction)
        cursor = CopyCursor(source.tokens)
        cursor.position = 0
        self._sequences[start.seq] = _Sequence(cursor, source.index, TailHashes(), array("I"))
        # The first draft is the prediction's start, so that is loaded at once.
        next(source.take_tokens())
        return source.index_tokens()

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Move the cursor past committed tokens; if it is lost, search the prediction for the last ones."""
        state = self._sequences[seq]
        if state is None:
            return
        cursor, tail, recent = state.cursor, state.tail, state.recent
        for token in tokens:
            cursor.advance(token)
            tail.append(token)
            recent.append(token)
        del recent[:-MAX_MATCH_TOKENS]
        if cursor.position is None:
            match = state.index.find(tail.hashes, recent, min_ngram_size=MIN_JUMP_TOKENS)
            if match is not None:
                cursor.jump(cursor.source, match.position, None, match.length)

    def propose(self, query: DraftQuery) -> Draft:
        """Draft the prediction from the cursor on, with known changes applied; nothing if it is lost."""
        state = self._sequences[query.seq]
        if state is None:
            return NO_DRAFT
        tokens = state.cursor.draft(query.limit)
        if not tokens:
            return NO_DRAFT
        bucket = bisect_right(RUN_STARTS, state.cursor.run) if state.recent else AT_START
        return Draft(tokens, self.name, bucket, PRIORS[bucket])

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Count accepted and rejected tokens, for the response's usage."""
        state = self._sequences[seq]
        if state is not None:
            state.num_accepted += num_accepted
            state.num_rejected += num_verified - num_accepted

    def counts(self, seq: int) -> tuple[int, int]:
        """Return (accepted, rejected) tokens of verified drafts. Valid until close.

        These are OpenAI's accepted_prediction_tokens and rejected_prediction_tokens. Tokens that were never
        verified, such as those after the end of the answer, count as neither.
        """
        state = self._sequences[seq]
        return (state.num_accepted, state.num_rejected) if state is not None else (0, 0)

    def close(self, seq: int) -> None:
        """Free the sequence, even if its open raised."""
        self._sequences.pop(seq, None)
