"""The longest match of a sequence's end: in what it was asked and has said, and in finished requests.

Where the answer copies, a cursor follows (see copying.py); it knows more than any match: what is changed
on the way, and where to go on after a change. Where it is lost, the longest match speaks, and sets it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart, TableFileError
from drafters.copying import CopyCursor
from drafters.history import DEFAULT_TOKENS, History
from drafters.occurrences import GrowingText

CLASS_STARTS = (3, 4, 6, 9, 16, 32)
"""Match lengths at which a next class begins: <3, 3, 4-5, 6-8, 9-15, 16-31, 32 and more tokens."""

NUM_CLASSES = len(CLASS_STARTS) + 1

CURSOR, MATCH, DISPUTED, FINISHED = range(4)
"""Kinds of evidence: the copy cursor, a match in this request, one that other matches speak against, and
one in a finished request. bucket = kind * NUM_CLASSES + class of the length."""

PRIORS = (
    (0.65, 0.75, 0.80, 0.85, 0.92, 0.94, 0.98),
    (0.50, 0.70, 0.72, 0.80, 0.90, 0.93, 0.97),
    (0.25, 0.30, 0.40, 0.45, 0.50, 0.60, 0.70),
    (0.30, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95),
)
"""Chance that a drafted token is right, by kind and class; rounded down from what
`python -m bench.replay --calibrate` says."""

_LAST = CLASS_STARTS[-1]
_CLASSES = tuple(bisect_right(CLASS_STARTS, length) for length in range(_LAST + 1))
_STRENGTHS = tuple(
    tuple((priors[step], kind * NUM_CLASSES + step) for step in _CLASSES)
    for kind, priors in enumerate(PRIORS)
)
"""(prior, bucket), by kind and length."""

_SURE = 8  # tokens in a row after which the cursor needs no second opinion
_LONG = 16  # matched tokens in this request after which no finished one is asked
_SETS_CURSOR = 4  # matched tokens from which on a lost cursor goes there

Evidence = tuple[float, int, int, int]
"""Where to draft from, and why: prior, bucket, kind, place (in the history, if the kind is FINISHED)."""


def _evidence(kind: int, length: int, place: int) -> Evidence:
    prior, bucket = _STRENGTHS[kind][length if length < _LAST else _LAST]
    return prior, bucket, kind, place


class _Sequence:
    """What is known of one open sequence.

    best: the surest evidence; None without any. finished: [place, length] of the match in the history that
    is being followed, if any.
    """

    __slots__ = ("best", "cursor", "finished", "tenant", "text")

    def __init__(self, tenant: str, text: GrowingText, cursor: CopyCursor) -> None:
        self.tenant = tenant
        self.text = text
        self.cursor = cursor
        self.best: Evidence | None = None
        self.finished: list[int] | None = None


class SuffixDrafter:
    """Drafts what followed the longest match of a sequence's end.

    history_tokens: of finished requests that are kept for later ones; 0 keeps none.
    follows: whether a copy cursor is used. learns: whether it drafts the changes that it saw.
    """

    name = "suffix"

    def __init__(
        self, history_tokens: int = DEFAULT_TOKENS, *, follows: bool = True, learns: bool = True
    ) -> None:
        self._history = History(history_tokens) if history_tokens else None
        self._follows = follows
        self._learns = learns
        self._sequences: dict[int, _Sequence] = {}

    @property
    def num_open(self) -> int:
        """Sequences that are open."""
        return len(self._sequences)

    def open(self, opening: SequenceStart) -> None:
        """Index the prompt: some 2 microseconds a token."""
        text = GrowingText(opening.prompt)
        state = _Sequence(opening.tenant, text, CopyCursor(text.tokens, self._learns))
        self._sequences[opening.seq] = state
        self._look(state)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Follow the cursor, and look for matches where it is not sure."""
        state = self._sequences[seq]
        for token in tokens:
            state.cursor.advance(token)
            state.text.append(token)
        if state.finished is not None:
            self._go_on(state, tokens)
        self._look(state)

    def propose(self, query: DraftQuery) -> Draft:
        """The surest continuation; empty if the end of the sequence never occurred before."""
        state = self._sequences[query.seq]
        if state.best is None:
            return NO_DRAFT
        prior, bucket, kind, place = state.best
        limit = query.limit
        if kind == FINISHED:
            assert self._history is not None
            tokens = self._history.read(place, limit)
        else:
            cursor = state.cursor
            tokens = cursor.draft(limit) if kind == CURSOR else cursor.draft_from(place, limit)
            if 0 < len(tokens) < limit:
                # The source runs into the end of the text: what follows there is this draft itself.
                for at in range(limit - len(tokens)):
                    tokens.append(tokens[at])
        return Draft(tokens, self.name, bucket, prior) if tokens else NO_DRAFT

    def record_verified(self, seq: int, offered: int, accepted: int) -> None:
        """Nothing to learn here: what was observed says it all."""

    def close(self, seq: int) -> None:
        """Forget the sequence; the history keeps its text."""
        state = self._sequences.pop(seq)
        if self._history is not None:
            self._history.add(state.tenant, state.text.tokens)

    def status(self) -> dict[str, Any]:
        """What the history holds."""
        history = self._history
        return {
            "finished_requests": history.num_texts if history else 0,
            "tokens": history.num_tokens if history else 0,
            "capacity_tokens": history.room if history else 0,
            "open_sequences": self.num_open,
        }

    def reset(self) -> None:
        """Forget all finished requests."""
        if self._history is not None:
            self._history.reset()

    def save(self) -> str:
        """Raises TableFileError: finished requests are kept in memory only."""
        raise TableFileError("the suffix drafter keeps finished requests in memory only; there is no file")

    def load(self) -> str:
        """Raises TableFileError, as save does."""
        raise TableFileError("the suffix drafter keeps finished requests in memory only; there is no file")

    def _go_on(self, state: _Sequence, tokens: Sequence[int]) -> None:
        """Follow the match in a finished request through these tokens, or drop it."""
        assert self._history is not None
        assert state.finished is not None
        place, length = state.finished
        for token in tokens:
            if not self._history.follows(place, token):
                state.finished = None
                return
            place += 1
            length += 1
        state.finished = [place, length]

    def _look(self, state: _Sequence) -> None:
        """Weigh what speaks for which continuation now."""
        cursor = state.cursor
        best = None
        if cursor.place is not None:
            best = _evidence(CURSOR, cursor.run, cursor.place)
            if cursor.run >= _SURE:
                state.best = best
                return
        match = state.text.earlier()
        length = 0
        if match is not None:
            length = match.length
            found = _evidence(DISPUTED if match.against else MATCH, length, match.place)
            if self._follows and best is None and length >= _SETS_CURSOR:
                cursor.set(match.place, length)
            if best is None or found[0] > best[0]:
                best = found
        if self._history is not None and length < _LONG:
            if state.finished is None and self._history.num_texts:
                recalled = self._history.find(state.tenant, state.text.tail.hashes, state.text.tokens)
                if recalled is not None:
                    state.finished = [recalled.place, recalled.length]
            if state.finished is not None:
                place, length = state.finished
                found = _evidence(FINISHED, length, place)
                if best is None or found[0] > best[0]:
                    best = found
        state.best = best
