"""Draft what followed the longest earlier occurrence of a sequence's end.

Matches are looked up in the sequence itself, prompt and answer, in its views, and in the tenant's finished
requests. While the answer copies a source, a cursor follows it there. Beyond a match, the cursor knows what
the answer changes, and where it resumes after a change. When the cursor is lost, the longest match is drafted
and the cursor jumps to it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from reprise.drafters.base import (
    NO_DRAFT,
    Draft,
    DraftQuery,
    SequenceStart,
    Slices,
    TableFileError,
    View,
    finish,
)
from reprise.drafters.checked_file import owner_of
from reprise.drafters.copies.answers import AnswerTable
from reprise.drafters.copies.copying import MIN_JUMP_TOKENS, CopyCursor, GrowingText
from reprise.drafters.copies.history import DEFAULT_TOKENS, History, HistoryFile, Shelf, salt_of
from reprise.drafters.copies.occurrences import Ids, Match

CLASS_STARTS = (3, 4, 6, 9, 16, 32)
"""Match lengths at which the next class starts: <3, 3, 4-5, 6-8, 9-15, 16-31, 32 and more tokens."""

NUM_CLASSES = len(CLASS_STARTS) + 1

NUM_KINDS = 7
CURSOR, MATCH, DISPUTED, VIEW, SUCCESSOR, FINISHED, RESTORED = range(NUM_KINDS)
"""Kinds of evidence: the copy cursor; a match in this request; a disputed match, where equally long ones have
different next tokens; a match in a view; what most often followed the last token of late; a match in a
finished request; one in a request of an earlier run, which may be of last month and has an acceptance rate of
its own. bucket = kind * NUM_CLASSES + length class."""

PRIORS = (
    (0.65, 0.75, 0.80, 0.85, 0.92, 0.94, 0.98),
    (0.50, 0.70, 0.72, 0.80, 0.90, 0.93, 0.97),
    (0.25, 0.30, 0.40, 0.45, 0.50, 0.60, 0.70),
    (0.50, 0.70, 0.72, 0.80, 0.90, 0.93, 0.97),
    (0.25,) * NUM_CLASSES,
    (0.30, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95),
    (0.30, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95),
)
"""Expected acceptance rate per token, by kind and class; rounded down from the table in README.md."""

GUESS_PRIORS = (0.14, 0.31, 0.69, 0.14, 0.33, 0.75, 0.29, 0.53, 0.79, 0.46, 0.72, 0.91)
"""The same of tokens that followed in earlier answers, by the strength of the memory."""

_GUESSED = tuple((NUM_KINDS * NUM_CLASSES + at, prior) for at, prior in enumerate(GUESS_PRIORS))
"""(bucket, prior), by strength."""

MAX_GUESS_TOKENS = 4
"""Maximum length of a draft of what followed in earlier answers."""

_WEAK = 0.75
"""Drafts with lower priors are compared with what followed in earlier answers."""

_LAST = CLASS_STARTS[-1]
_CLASSES = tuple(bisect_right(CLASS_STARTS, length) for length in range(_LAST + 1))
_STRENGTHS = tuple(
    tuple((priors[at], kind * NUM_CLASSES + at) for at in _CLASSES) for kind, priors in enumerate(PRIORS)
)
"""(prior, bucket), by kind and length."""

_TRUSTED_RUN = 8  # length of the cursor's run from which on no match is looked up
_LONG_MATCH = 16  # length of a match in this request from which on finished requests are not searched

Evidence = tuple[float, int, int, int]
"""Where to draft from: (prior, bucket, kind, position).

The position is in the history for FINISHED and RESTORED, in the shelf for VIEW, else in the sequence's
text."""


def _make_evidence(kind: int, length: int, position: int) -> Evidence:
    prior, bucket = _STRENGTHS[kind][length if length < _LAST else _LAST]
    return prior, bucket, kind, position


class _Sequence:
    """An open sequence.

    answer_start: number of tokens of its prompt.
    shelf: its views; None without any.
    best: the evidence with the highest prior, or None.
    finished: [position, length] of the history match being followed, or None.
    """

    __slots__ = ("answer_start", "best", "cursor", "finished", "owner", "salt", "shelf", "text")

    def __init__(self, start: SequenceStart, text: GrowingText, cursor: CopyCursor) -> None:
        self.owner = owner_of(start.tenant)
        self.salt = salt_of(self.owner)
        self.text = text
        self.cursor = cursor
        self.answer_start = len(start.prompt)
        self.shelf: Shelf | None = None
        self.best: Evidence | None = None
        self.finished: list[int] | None = None

    def place_of(self, kind: int, position: int) -> tuple[Ids, int, int | None]:
        """Return the source, position and stop of a match, for the cursor."""
        if kind == VIEW:
            assert self.shelf is not None
            return self.shelf.tokens, position, self.shelf.end_of(position)
        return self.text.tokens, position, None


class SuffixDrafter:
    """Drafts the tokens that followed the longest earlier occurrence of each sequence's end.

    history_tokens: capacity for finished requests, in tokens; 0 for no history.
    file: stores them between runs, or None.
    name: the drafter's name in requests and figures: ngram-simple without a history.
    use_cursor: whether a copy cursor is used. learn_changes: whether it learns and drafts changes.
    """

    def __init__(
        self,
        history_tokens: int = DEFAULT_TOKENS,
        file: HistoryFile | None = None,
        *,
        name: str = "suffix",
        use_cursor: bool = True,
        learn_changes: bool = True,
    ) -> None:
        self.name = name
        self._history = History(history_tokens) if history_tokens else None
        self._answers = AnswerTable() if history_tokens else None
        self._file = file
        self._is_restored = False
        self._use_cursor, self._learn_changes = use_cursor, learn_changes
        self._sequences: dict[int, _Sequence] = {}

    @property
    def num_open(self) -> int:
        """Number of open sequences."""
        return len(self._sequences)

    def open(self, start: SequenceStart) -> Slices:
        """Return the work of indexing the prompt. Drafts come from the part indexed so far."""
        text = GrowingText(start.prompt)
        state = _Sequence(start, text, CopyCursor(text.tokens, self._learn_changes))
        self._sequences[start.seq] = state
        return self._index(state)

    def _index(self, state: _Sequence) -> Slices:
        yield from state.text.index_tokens()
        self._update_best(state)

    def add_view(self, seq: int, view: View) -> Slices:
        """Return the work of indexing a text."""
        state = self._sequences[seq]
        state.shelf = state.shelf or Shelf(2 * state.answer_start)
        return state.shelf.add(view)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Move the cursor, and look for matches unless the cursor's run is long enough to be trusted."""
        state = self._sequences[seq]
        cursor, text, answers = state.cursor, state.text, self._answers
        for token in tokens:
            if answers is not None:
                answers.learn(text.tail.hashes, token, state.salt)
            cursor.advance(token)
            text.append(token)
        if state.finished is not None:
            self._follow_finished(state, tokens)
        self._update_best(state)

    def propose(self, query: DraftQuery) -> Draft:
        """Draft from the best evidence; nothing if the end of the sequence has not occurred before."""
        state = self._sequences[query.seq]
        draft = NO_DRAFT
        if state.best is not None:
            prior, bucket, kind, position = state.best
            if tokens := self._draft(state, kind, position, query.limit):
                draft = Draft(tokens, self.name, bucket, prior, is_guess=kind == SUCCESSOR)
        if self._answers is None:
            return draft
        if draft.prior < _WEAK and (guess := self._guess(state, self._answers, draft, query.limit)):
            return guess
        if draft.tokens and not draft.is_guess:
            draft.support = self._answers.support(state.text.end, draft.tokens, state.salt)
        return draft

    def _guess(self, state: _Sequence, answers: AnswerTable, weak: Draft, limit: int) -> Draft | None:
        """Return what followed in earlier answers, if that is likelier than a weak draft of other tokens."""
        tokens, strengths = answers.guess(state.text.tail, min(limit, MAX_GUESS_TOKENS), state.salt)
        by_token = [_GUESSED[strength] for strength in strengths]
        if not tokens or by_token[0][1] < weak.prior:
            return None
        is_guess = weak.is_guess or not weak.tokens
        if not is_guess and tokens[0] == weak.tokens[0]:
            return None
        return Draft(tokens, self.name, *by_token[0], by_token, is_guess)

    def _draft(self, state: _Sequence, kind: int, position: int, limit: int) -> list[int]:
        cursor, own = state.cursor, state.text.tokens
        if kind in (FINISHED, RESTORED):
            assert self._history is not None
            return self._history.copy(position, limit)
        if kind == SUCCESSOR:
            return own[position : position + 1].tolist()
        if kind == CURSOR:
            tokens, source = cursor.draft(limit), cursor.source
        else:
            source, _, stop = state.place_of(kind, position)
            tokens = cursor.draft_in(source, position, stop, limit)
        if source is own and tokens:
            # The source reaches the end of the text, so the draft continues with itself.
            tokens += [tokens[at % len(tokens)] for at in range(limit - len(tokens))]
        return tokens

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
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
            self._answers = AnswerTable()
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
        """Return the work of adding the file's finished requests; None without any, or on a second call.

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
        found: list[Evidence] = []
        if cursor.position is not None:
            found.append(_make_evidence(CURSOR, cursor.run, cursor.position))
            if cursor.run >= _TRUSTED_RUN:
                state.best = found[0]
                return
        kind, match = self._find_match(state)
        length = 0
        if match is not None:
            length = match.length
            found.append(_make_evidence(kind, length, match.position))
            if self._use_cursor and cursor.position is None and length >= MIN_JUMP_TOKENS:
                cursor.jump(*state.place_of(kind, match.position), length)
        if length < _LONG_MATCH and (finished := self._find_finished(state)) is not None:
            found.append(finished)
        # Of equally likely ones the first.
        state.best = max(found, key=itemgetter(0), default=None)

    def _find_finished(self, state: _Sequence) -> Evidence | None:
        """Return the match in a finished request, if there is one."""
        history = self._history
        if history is None:
            return None
        if state.finished is None and history.num_texts:
            recalled = history.find(state.owner, state.text.tail.hashes, state.text.end)
            if recalled is not None:
                state.finished = [recalled.position, recalled.length]
        if state.finished is None:
            return None
        position, length = state.finished
        kind = RESTORED if position <= history.restored_end else FINISHED
        return _make_evidence(kind, length, position)

    def _find_match(self, state: _Sequence) -> tuple[int, Match | None]:
        """Return the longest match in the sequence or its views, and its kind."""
        text = state.text
        match = text.find_earlier()
        length, position = (match.length, match.position) if match is not None else (0, -1)
        # Text in the prompt continues differently than its view, and the answer continues like the answer.
        is_answer = position >= state.answer_start
        viewed = state.shelf.find(text.tail.hashes, text.end) if state.shelf is not None else None
        if viewed is not None and viewed.length >= length + is_answer:
            return VIEW, viewed
        if length == 1:
            return SUCCESSOR, match
        return DISPUTED if match is not None and match.num_disagreeing else MATCH, match
