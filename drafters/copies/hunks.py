"""Follow an answer through a patch: through the lines that it keeps, removes and adds.

     def area(w, h):          kept: lines of a text in order, by convention three
    -    return w             removed: the lines behind them
    +    return w * h         added: begins like the first line that was removed
     def half(w):             kept: what is behind the last line that was removed

Each line of a text is stored three times, once with each sign. Where the answer begins a line with another
sign than expected, the cursor moves to the same line with that sign; where the answer adds a line, to the
first line that it removed.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from reprise.drafters.base import SLICE_TOKENS, SignedLines, Slices
from reprise.drafters.copies.copying import CopyCursor
from reprise.drafters.copies.occurrences import Hashes, Ids, Match
from reprise.drafters.copies.shelf import Shelf

CONTEXT_LINES = 3
"""Lines that patches keep before and behind a change, by convention."""

MAX_BLOCK_LINES = 64
"""Maximum number of removed lines that added ones are copied from."""

KEPT, REMOVED, ADDED = range(3)
"""The signs of lines."""

INSIDE, KEEP, KEEP_MORE, REMOVE, REMOVE_MORE, ADD, ADD_MORE = range(7)
"""Kinds of drafted tokens: within a line; else the first one of a kept line, of one behind CONTEXT_LINES
others, of the first removed one, of another, and the same of added ones."""

_SLICE_LINES = SLICE_TOKENS // 8
_NOWHERE = -2  # no line, and not the one before a line

Part = tuple[Ids, int, int, int]
"""Tokens that follow: source, start and stop, and the kind of the first one; the others are INSIDE."""


class Hunks:
    """The lines of a sequence's texts, and where its answer is in them.

    num_tokens: how many tokens of kept and removed lines to have room for. shelf: holds these lines.
    """

    def __init__(self, num_tokens: int) -> None:
        self.shelf = Shelf(num_tokens)
        self._added: Ids = array("I")
        # Where lines start and end, by sign; and what added ones begin with.
        self._starts: tuple[Ids, Ids, Ids] = array("I"), array("I"), array("I")
        self._ends: tuple[Ids, Ids, Ids] = array("I"), array("I"), array("I")
        self._pluses: set[int] = set()
        # The kept line that began last, how many were kept in a row before it, and whether a change was
        # before these.
        self._line, self._num_kept, self._has_changed = _NOWHERE, 0, False
        # The first line that the present change removes, and the one that is expected behind it.
        self._first = 0
        self._next: int | None = None
        self._newest = -1

    def add(self, lines: SignedLines) -> Slices:
        """Return the work of adding the lines of a text, as many as there is room for."""
        kept, removed, added = lines.ends
        num_lines = bisect_right(range(len(kept)), self.shelf.room, key=lambda at: kept[at] + removed[at])
        if not num_lines:
            return
        firsts = [len(self.shelf.tokens)]
        yield from self.shelf.add(lines.kept, kept[num_lines - 1])
        firsts += len(self.shelf.tokens), len(self._added)
        yield from self.shelf.add(lines.removed, removed[num_lines - 1])
        # All signs of a line at once, so that there is none without the others.
        for at in range(0, num_lines, _SLICE_LINES):
            stop = min(at + _SLICE_LINES, num_lines)
            self._added += array("I", lines.added[added[at - 1] if at else 0 : added[stop - 1]])
            for sign, first in enumerate(firsts):
                ends = [first + end for end in lines.ends[sign][at:stop]]
                starts = [self._ends[sign][-1] if at else first, *ends[:-1]]
                self._starts[sign].extend(starts)
                self._ends[sign].extend(ends)
            self._pluses.update([self._added[start] for start in starts])
            yield len(ends)

    def find(self, hashes: Hashes, end: Ids) -> Match | None:
        """Return the longest occurrence of a text's end; None unless it has a line's sign, as in a patch.

        For the parameters see Occurrences.find.
        """
        match = self.shelf.find(hashes, end)
        if match is None:
            return None
        last = match.position - 1
        sign, line = self._place(self.shelf.tokens, last)
        return (
            match if line != _NOWHERE and self._starts[sign][line] >= match.position - match.length else None
        )

    def change_sign(self, cursor: CopyCursor, token: int) -> bool:
        """Move the cursor past the answer's next token, if it begins a line with another sign than expected.

        Returns whether the cursor was moved.
        """
        before, self._newest = self._newest, token
        if cursor.position is None:
            return self._find_next(cursor, before, token)
        sign, line = self._place(cursor.source, cursor.position)
        if line == _NOWHERE or cursor.position != self._starts[sign][line]:
            return False
        if sign == ADDED:
            return self._keep(cursor, token)
        if cursor.position == cursor.stop:
            return False
        if sign == KEPT:
            num_kept, self._has_changed = self._kept_before(line - 1, cursor.position - cursor.run)
            self._line, self._num_kept = line, num_kept + 1
        self._next = line
        if token == self.shelf.tokens[cursor.position]:
            return False
        return self._remove(cursor, line, token) if sign == KEPT else self._add(cursor, line, token)

    def _remove(self, cursor: CopyCursor, line: int, token: int) -> bool:
        start = self._starts[REMOVED][line]
        if token != self.shelf.tokens[start]:
            return False
        self._first = line
        cursor.start(self.shelf.tokens, start + 1, self.shelf.end_of(start), cursor.run + 1)
        return True

    def _add(self, cursor: CopyCursor, line: int, token: int) -> bool:
        if token not in self._pluses:
            return self._keep(cursor, token)
        starts, first = self._starts[ADDED], self._first_removed(line)
        cursor.start(self._added, starts[first], starts[line], cursor.run)
        cursor.advance(token)
        return True

    def _keep(self, cursor: CopyCursor, token: int) -> bool:
        """Go on behind the present change, if the token begins the line there."""
        if self._next is None or token != self.shelf.tokens[start := self._starts[KEPT][self._next]]:
            return False
        cursor.start(self.shelf.tokens, start + 1, self.shelf.end_of(start), cursor.run + 1)
        self._line, self._num_kept, self._has_changed, self._next = self._next, 0, True, None
        return True

    def _find_next(self, cursor: CopyCursor, before: int, token: int) -> bool:
        """Go on behind a change in which the cursor was lost, if two tokens begin the line there."""
        if self._next is None:
            return False
        start = self._starts[KEPT][self._next]
        if self.shelf.tokens[start : start + 2] != array("I", (before, token)):
            return False
        self._keep(cursor, before)
        cursor.advance(token)
        return True

    def _first_removed(self, line: int) -> int:
        """Return the first of the lines that were removed up to a line, exclusive."""
        return self._first if 0 < line - self._first <= MAX_BLOCK_LINES else line - 1

    def _place(self, source: Ids, position: int) -> tuple[int, int]:
        """Return the sign and the line that a position is in."""
        signs = (ADDED,) if source is self._added else (KEPT, REMOVED) if source is self.shelf.tokens else ()
        for sign in signs:
            line = bisect_right(self._starts[sign], position) - 1
            if line >= 0 and position < self._ends[sign][line]:
                return sign, line
        return KEPT, _NOWHERE

    def _kept_before(self, line: int, since: int) -> tuple[int, bool]:
        """Return how many lines were kept in a row before a line, and whether a change was before them.

        since: from where on the answer has copied, if it is not known where it was.
        """
        if line == self._line:
            return self._num_kept, self._has_changed
        return max(line - bisect_left(self._starts[KEPT], since), 0), False

    def draft(
        self, cursor: CopyCursor, place: tuple[Ids, int, int | None], limit: int
    ) -> tuple[list[int], list[int]]:
        """Return up to limit tokens of a patch's lines from a place on, and the kind of each token.

        Returns no tokens if the place is in no line. cursor: has the learned changes, which are applied.
        place: source, position and stop, as a CopyCursor has them.
        """
        tokens: list[int] = []
        kinds: list[int] = []
        for source, start, stop, kind in self._parts(*place, cursor.run):
            part = cursor.draft_in(source, start, stop, limit - len(tokens))
            kinds += (kind, *(INSIDE,) * (len(part) - 1)) if part else ()
            tokens += part
            if len(tokens) == limit:
                break
        return tokens, kinds

    def _parts(self, source: Ids, position: int, stop: int | None, run: int) -> Iterator[Part]:
        sign, line = self._place(source, position)
        if line == _NOWHERE:
            return
        if position == self._starts[sign][line]:
            line -= 1
        else:
            yield source, position, self._ends[sign][line], INSIDE
        if sign == KEPT:
            num_kept, has_changed = self._kept_before(line, position - run)
            yield from self._go_on(line + 1, num_kept + 1, has_changed)
        elif sign == REMOVED:
            yield from self._go_on_removing(self._first_removed(line + 1), line + 1)
        else:
            yield from self._go_on_adding(line + 1, bisect_left(self._starts[ADDED], stop or 0), ADD_MORE)

    def _go_on(self, line: int, num_kept: int, has_changed: bool) -> Iterator[Part]:
        """Yield the lines that are kept from a line on, and the change behind them."""
        while line < len(self._starts[KEPT]):
            is_enough = num_kept >= CONTEXT_LINES
            if is_enough and not has_changed:
                yield self._part(REMOVED, line, REMOVE)
                yield from self._go_on_removing(line, line + 1)
                return
            yield self._part(KEPT, line, KEEP_MORE if is_enough else KEEP)
            line, num_kept = line + 1, num_kept + 1

    def _go_on_removing(self, first: int, line: int) -> Iterator[Part]:
        """Yield the added lines that follow removed lines: a second one is seldom the last."""
        if line - first == 1:
            yield from self._go_on_adding(first, line, ADD)
            return
        while line < len(self._starts[REMOVED]):
            yield self._part(REMOVED, line, REMOVE_MORE)
            line += 1

    def _go_on_adding(self, line: int, stop: int, kind: int) -> Iterator[Part]:
        """Yield the added lines that stand for removed ones up to a line, and what is kept behind them."""
        while line < stop:
            yield self._part(ADDED, line, kind)
            line, kind = line + 1, ADD_MORE
        yield from self._go_on(stop, 0, True)

    def _part(self, sign: int, line: int, kind: int) -> Part:
        source = self._added if sign == ADDED else self.shelf.tokens
        return source, self._starts[sign][line], self._ends[sign][line], kind
