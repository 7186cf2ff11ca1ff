"""Draft what followed the longest earlier occurrence of a sequence's end.

Matches are looked up in the sequence itself, prompt and answer, and in the tenant's finished requests. While
the answer copies a source, a cursor follows it there. The cursor knows more than a match does: what the
answer changes, and where it resumes after a change. When the cursor is lost, the longest match is drafted and
the cursor jumps to it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from drafters.base import NO_DRAFT, Draft, DraftQuery, SequenceStart, Slices, TableFileError, finish
from drafters.checked_file import owner_of
from drafters.copies.copying import CopyCursor
from drafters.copies.growing_text import GrowingText
from drafters.copies.history import DEFAULT_TOKENS, History
from drafters.copies.history_file import HistoryFile

CLASS_STARTS = (3, 4, 6, 9, 16, 32)
"""Match lengths at which the next class starts: <3, 3, 4-5, 6-8, 9-15, 16-31, 32 and more tokens."""

NUM_CLASSES = len(CLASS_STARTS) + 1

CURSOR, MATCH, DISPUTED, FINISHED, RESTORED = range(5)
"""Kinds of evidence: the copy cursor; a match in this request; a disputed match, where equally long ones have
different next tokens; a match in a finished request; one in a request of an earlier run, which may be of last
month and has an acceptance rate of its own. bucket = kind * NUM_CLASSES + length class."""

PRIORS = (
    (0.65, 0.75, 0.80, 0.85, 0.92, 0.94, 0.98),
    (0.50, 0.70, 0.72, 0.80, 0.90, 0.93, 0.97),
    (0.25, 0.30, 0.40, 0.45, 0.50, 0.60, 0.70),
    (0.30, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95),
    (0.30, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95),
)
"""Expected acceptance rate per token, by kind and class; rounded down from the table in README.md."""

_LAST = CLASS_STARTS[-1]
_CLASSES = tuple(bisect_right(CLASS_STARTS, length) for length in range(_LAST + 1))
_STRENGTHS = tuple(
    tuple((priors[at], kind * NUM_CLASSES + at) for at in _CLASSES) for kind, priors in enumerate(PRIORS)
)
"""(prior, bucket), by kind and length."""

_TRUSTED_RUN = 8  # length of the cursor's run from which on no match is looked up
_LONG_MATCH = 16  # length of a match in this request from which on finished requests are not searched
_MIN_JUMP_TOKENS = 4  # minimum length of a match to which a lost cursor jumps

Evidence = tuple[float, int, int, int]
"""Where to draft from: (prior, bucket, kind, position), from FINISHED on a position in the history."""


def _make_evidence(kind: int, length: int, position: int) -> Evidence:
    prior, bucket = _STRENGTHS[kind][length if length < _LAST else _LAST]
    return prior, bucket, kind, position


class _Sequence:
    """An open sequence.

    best: the evidence with the highest prior, or None.
    finished: [position, length] of the match in the history that is being followed, or None.
    """

    __slots__ = ("best", "cursor", "finished", "owner", "text")

    def __init__(self, owner: str, text: GrowingText, cursor: CopyCursor) -> None:
        self.owner = owner
        self.text = text
        self.cursor = cursor
        self.best: Evidence | None = None
        self.finished: list[int] | None = None


class SuffixDrafter:
    """Drafts what followed the longest earlier occurrence of each sequence's end.

    history_tokens: number of tokens of finished requests to keep; 0 for no history.
    file: keeps them from one run to the next; None for none.
    use_cursor: whether a copy cursor is used. learn_changes: whether it learns and drafts changes.
    """

    name = "suffix"

    def __init__(
        self,
        history_tokens: int = DEFAULT_TOKENS,
        file: HistoryFile | None = None,
        *,
        use_cursor: bool = True,
        learn_changes: bool = True,
    ) -> None:
        self._history = History(history_tokens) if history_tokens else None
        self._file = file
        self._is_restored = False
        self._use_cursor = use_cursor
        self._learn_changes = learn_changes
        self._sequences: dict[int, _Sequence] = {}

    @property
    def num_open(self) -> int:
        """Number of open sequences."""
        return len(self._sequences)

    def open(self, start: SequenceStart) -> Slices:
        """Return the work of indexing the prompt. Drafts look in what is indexed so far."""
        text = GrowingText(start.prompt)
        state = _Sequence(owner_of(start.tenant), text, CopyCursor(text.tokens, self._learn_changes))
        self._sequences[start.seq] = state
        return self._read(state)

    def _read(self, state: _Sequence) -> Slices:
        yield from state.text.read()
        self._update_best(state)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Move the cursor, and look for matches unless the cursor's run is long enough to be trusted."""
        state = self._sequences[seq]
        for token in tokens:
            state.cursor.advance(token)
            state.text.append(token)
        if state.finished is not None:
            self._follow_finished(state, tokens)
        self._update_best(state)

    def propose(self, query: DraftQuery) -> Draft:
        """Draft from the best evidence; nothing if the end of the sequence has not occurred before."""
        state = self._sequences[query.seq]
        if state.best is None:
            return NO_DRAFT
        prior, bucket, kind, position = state.best
        limit = query.limit
        if kind >= FINISHED:
            assert self._history is not None
            tokens = self._history.read(position, limit)
        else:
            cursor = state.cursor
            tokens = cursor.draft(limit) if kind == CURSOR else cursor.draft_from(position, limit)
            if 0 < len(tokens) < limit:
                # The source reaches the end of the text, so the draft continues with itself.
                for at in range(limit - len(tokens)):
                    tokens.append(tokens[at])
        return Draft(tokens, self.name, bucket, prior) if tokens else NO_DRAFT

    def record_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Do nothing: the committed tokens are all that matters here."""

    def close(self, seq: int) -> Slices | None:
        """Free the sequence, and return the work of adding its text to the history.

        Does nothing if its open raised.
        """
        state = self._sequences.pop(seq, None)
        if state is None or self._history is None:
            return None
        return self._history.add(state.owner, state.text)

    def status(self) -> dict[str, Any]:
        """Return the size of the history and the number of open sequences."""
        history = self._history
        return {
            "finished_requests": history.num_texts if history else 0,
            "tokens": history.num_tokens if history else 0,
            "capacity_tokens": history.capacity if history else 0,
            "open_sequences": self.num_open,
        }

    def reset(self) -> None:
        """Forget all finished requests, in the file too."""
        if self._history is not None:
            self._history.reset()
        if self._file is not None:
            self._file.delete()

    def save(self) -> str:
        """Write the finished requests to the file, and return a summary. Raises TableFileError."""
        file, history = self._kept()
        texts = history.texts()
        num_bytes = file.write(texts)
        return f"wrote {len(texts)} finished requests ({num_bytes} bytes) to {file.path}"

    def load(self) -> str:
        """Add the finished requests in the file, and return a summary. Raises TableFileError."""
        file, history = self._kept()
        texts = file.read(history.capacity)
        finish(history.restore(texts))
        return f"read {len(texts)} finished requests from {file.path}"

    def restore(self) -> Slices | None:
        """Return the work of adding the finished requests in the file; None if there are none, or not again.

        Raises TableFileError.
        """
        if self._file is None or self._history is None or self._is_restored:
            return None
        self._is_restored = True
        texts = self._file.read(self._history.capacity)
        return self._history.restore(texts) if texts else None

    def _kept(self) -> tuple[HistoryFile, History]:
        if self._file is None or self._history is None:
            raise TableFileError("finished requests are kept in memory only; start with --prefix-cache-dir")
        return self._file, self._history

    def _follow_finished(self, state: _Sequence, tokens: Sequence[int]) -> None:
        """Extend the match in a finished request by these tokens, or drop it if they differ."""
        assert self._history is not None
        assert state.finished is not None
        position, length = state.finished
        for token in tokens:
            if not self._history.follow(position, token):
                state.finished = None
                return
            position += 1
            length += 1
        state.finished = [position, length]

    def _update_best(self, state: _Sequence) -> None:
        """Set state.best to the evidence with the highest prior. The cursor may jump to a match."""
        cursor = state.cursor
        best = None
        if cursor.position is not None:
            best = _make_evidence(CURSOR, cursor.run, cursor.position)
            if cursor.run >= _TRUSTED_RUN:
                state.best = best
                return
        match = state.text.find_earlier()
        length = 0
        if match is not None:
            length = match.length
            found = _make_evidence(DISPUTED if match.num_disagreeing else MATCH, length, match.position)
            if self._use_cursor and best is None and length >= _MIN_JUMP_TOKENS:
                cursor.jump(match.position, length)
            if best is None or found[0] > best[0]:
                best = found
        if self._history is not None and length < _LONG_MATCH:
            if state.finished is None and self._history.num_texts:
                recalled = self._history.find(state.owner, state.text.tail.hashes, state.text.end)
                if recalled is not None:
                    state.finished = [recalled.position, recalled.length]
            if state.finished is not None:
                position, length = state.finished
                kind = RESTORED if position <= self._history.restored_end else FINISHED
                found = _make_evidence(kind, length, position)
                if best is None or found[0] > best[0]:
                    best = found
        state.best = best
