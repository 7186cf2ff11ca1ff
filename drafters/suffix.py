"""Draft what followed the longest earlier occurrence of a sequence's end.

Matches are looked up in the sequence itself, prompt and answer, and in the tenant's finished requests. While
the answer copies a source, a cursor follows it there. The cursor knows more than a match does: what the
answer changes, and where it resumes after a change. When the cursor is lost, the longest match is drafted and
the cursor jumps to it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from drafters.base import NO_DRAFT, Draft, DraftQuery, Frame, SequenceStart, Slices, TableFileError, View
from drafters.copies.copying import CopyCursor
from drafters.copies.forms import Forms
from drafters.copies.growing_text import GrowingText
from drafters.copies.history import DEFAULT_TOKENS, History
from drafters.copies.shelf import Shelf

CLASS_STARTS = (3, 4, 6, 9, 16, 32)
"""Match lengths at which the next class starts: <3, 3, 4-5, 6-8, 9-15, 16-31, 32 and more tokens."""

NUM_CLASSES = len(CLASS_STARTS) + 1

CURSOR, MATCH, DISPUTED, FINISHED, VIEW, SUCCESSOR, FORM = range(7)
"""Kinds of evidence: the copy cursor; a match in this request; a disputed match, where equally long ones have
different next tokens; a match in a finished request; a match in a view;
what most often followed the last token alone. bucket = kind * NUM_CLASSES + length class."""

PRIORS = (
    (0.65, 0.75, 0.80, 0.85, 0.92, 0.94, 0.98),
    (0.50, 0.70, 0.72, 0.80, 0.90, 0.93, 0.97),
    (0.25, 0.30, 0.40, 0.45, 0.50, 0.60, 0.70),
    (0.30, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95),
    (0.50, 0.70, 0.72, 0.80, 0.90, 0.93, 0.97),
    (0.25, 0.25, 0.25, 0.25, 0.25, 0.25, 0.25),
    (0.60, 0.95, 0.95, 0.97, 0.97, 0.97, 0.97),
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
"""Where to draft from: (prior, bucket, kind, position); for kind FINISHED a position in the history."""


def _make_evidence(kind: int, length: int, position: int) -> Evidence:
    prior, bucket = _STRENGTHS[kind][length if length < _LAST else _LAST]
    return prior, bucket, kind, position


class _Sequence:
    """An open sequence.

    views: what is read of its views; None without any. best: the evidence with the highest prior, or None.
    finished: [position, length] of the match in the history that is being followed, or None.
    """

    __slots__ = ("best", "cursor", "finished", "tenant", "text", "views", "forms", "num_tokens", "form_end", "num_prompt")

    def __init__(self, tenant: str, text: GrowingText, cursor: CopyCursor, num_prompt: int) -> None:
        self.tenant = tenant
        self.text = text
        self.cursor = cursor
        self.views: Shelf | None = None
        self.forms: Forms | None = None
        self.num_tokens = self.num_prompt = num_prompt
        self.form_end: int | None = None
        self.best: Evidence | None = None
        self.finished: list[int] | None = None


class SuffixDrafter:
    """Drafts what followed the longest earlier occurrence of each sequence's end.

    history_tokens: number of tokens of finished requests to keep; 0 for no history.
    use_cursor: whether a copy cursor is used. learn_changes: whether it learns and drafts changes.
    """

    name = "suffix"

    def __init__(
        self, history_tokens: int = DEFAULT_TOKENS, *, use_cursor: bool = True, learn_changes: bool = True
    ) -> None:
        self._history = History(history_tokens) if history_tokens else None
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
        state = _Sequence(start.tenant, text, CopyCursor(text.tokens, self._learn_changes), len(start.prompt))
        self._sequences[start.seq] = state
        return self._read(state)

    def _read(self, state: _Sequence) -> Slices:
        yield from state.text.read()
        self._update_best(state)

    def add_view(self, seq: int, view: View) -> Slices | None:
        """Return the work of indexing a view of the sequence's texts."""
        state = self._sequences[seq]
        if isinstance(view, Frame):
            state.forms = state.forms or Forms()
            state.forms.add(view)
            return None
        state.views = state.views or Shelf()
        return state.views.add(view)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Move the cursor, and look for matches unless the cursor's run is long enough to be trusted."""
        state = self._sequences[seq]
        for token in tokens:
            state.cursor.advance(token)
            state.text.append(token)
            state.num_tokens += 1
            if state.forms is not None and state.forms.advance(token, state.num_tokens):
                source = state.forms.source()
                state.form_end = None
                if source is not None:
                    state.form_end = source[1]
                    cursor = state.cursor
                    cursor.start(source[0], state.text.tokens, source[1])
        if state.finished is not None:
            self._follow_finished(state, tokens)
        self._update_best(state)

    def propose(self, query: DraftQuery) -> Draft:
        """Draft from the best evidence; nothing if the end of the sequence has not occurred before."""
        state = self._sequences[query.seq]
        if state.best is None:
            return NO_DRAFT
        prior, bucket, kind, position = state.best
        limit = query.limit if kind != SUCCESSOR else 1
        if kind == FINISHED:
            assert self._history is not None
            tokens = self._history.read(position, limit)
        elif kind == VIEW:
            views = state.views
            assert views is not None
            tokens = state.cursor.draft_in(views.tokens, views.end_of(position), position, limit)
        elif kind == FORM:
            tokens = state.forms.draft(state.text.tokens, limit)
        else:
            cursor = state.cursor
            tokens = cursor.draft(limit) if kind == CURSOR else cursor.draft_in(state.text.tokens, None, position, limit)
            if kind == CURSOR and state.forms is not None and cursor.stop is not None and cursor.stop == state.form_end and len(tokens) < limit:
                tokens += state.forms.draft(state.text.tokens, limit - len(tokens), is_at_end=True)
            elif cursor.source is state.text.tokens and cursor.stop is None and 0 < len(tokens) < limit:
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
        return self._history.add(state.tenant, state.text)

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
        """Forget all finished requests."""
        if self._history is not None:
            self._history.reset()

    def save(self) -> str:
        """Raise TableFileError, because finished requests are kept in memory only."""
        raise TableFileError("the suffix drafter keeps finished requests in memory only; there is no file")

    def load(self) -> str:
        """Raise TableFileError, as save does."""
        raise TableFileError("the suffix drafter keeps finished requests in memory only; there is no file")

    def _follow_finished(self, state: _Sequence, tokens: Sequence[int]) -> None:
        """Extend the match in a finished request by these tokens, or drop it if they differ."""
        assert self._history is not None
        assert state.finished is not None
        position, length = state.finished
        for token in tokens:
            if not self._history.has_token_at(position, token):
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
        if state.forms is not None and state.forms.draft(state.text.tokens, 1):
            found = _make_evidence(FORM, state.forms.num_matched, 0)
            if best is None or found[0] > best[0]:
                best = found
        match = state.text.find_earlier()
        length = match.length if match is not None else 0
        source, stop, kind = state.text.tokens, None, MATCH
        if state.views is not None:
            other = state.views.find(state.text.tail.hashes, state.text.end)
            is_own = match is not None and match.position >= state.num_prompt
            if other is not None and other.length >= length + is_own:
                match, length, kind = other, other.length, VIEW
                source, stop = state.views.tokens, state.views.end_of(other.position)
        if match is not None:
            if kind == MATCH and state.form_end is not None:
                start = state.forms.source()
                if start is not None and start[0] <= match.position <= start[1]:
                    stop = start[1]
            if length == 1:
                kind = SUCCESSOR
            elif match.num_disagreeing and kind == MATCH:
                kind = DISPUTED
            found = _make_evidence(kind, length, match.position)
            if self._use_cursor and cursor.position is None and length >= _MIN_JUMP_TOKENS:
                cursor.jump(match.position, length, source, stop)
            if best is None or found[0] > best[0]:
                best = found
        if self._history is not None and length < _LONG_MATCH:
            if state.finished is None and self._history.num_texts:
                recalled = self._history.find(state.tenant, state.text.tail.hashes, state.text.end)
                if recalled is not None:
                    state.finished = [recalled.position, recalled.length]
            if state.finished is not None:
                position, length = state.finished
                found = _make_evidence(FINISHED, length, position)
                if best is None or found[0] > best[0]:
                    best = found
        state.best = best
