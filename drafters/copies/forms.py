"""Follow an answer through the forms that it fills in: tool calls, search-and-replace blocks.

    {"name": "Edit", "arguments": {"old_string": "a = 1", "new_string": "a = 2"}}
    |------------- fixed[0] ---------------------|     |-- fixed[1] --|     |fixed[2]

A fixed part is drafted once its first tokens are read. A value that often begins like an earlier value is
copied from it; for any other value, the tokens that last followed the same text are drafted. Where a copy
reaches the end of a value, in this answer or an earlier one, the fixed part after the present value follows.

A value may begin or end within a token that also holds fixed text, such as `)",`.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reprise.drafters.base import SLICE_TOKENS, Frame, SignedLines, Slices
from reprise.drafters.copies.copying import CopyCursor
from reprise.drafters.copies.history import Shelf
from reprise.drafters.copies.occurrences import Hashes, Ids, Match

_Node = dict[int, Any]
"""A trie of forms' beginnings by token; _FRAME holds the frame whose beginning is complete."""

_FRAME = -1
_SURE_TOKENS = 3  # tokens of a fixed part after which its last one may be merged with the start of a value

Recall = Callable[[list[int]], Sequence[int]]
"""Returns the tokens that last followed the sequence's end extended by these tokens."""

NUM_KINDS = 5
HEAD, FIRST, FIXED, COPIED, RECALLED = range(NUM_KINDS)
"""Kinds of drafted tokens: fixed, where one token of a form's beginning, or of another part, was read; fixed,
where more was; of a value that begins like an earlier one; of a value that is recalled."""


@dataclass(slots=True)
class Value:
    """A value in an answer.

    start, stop: positions in the sequence of all its tokens but the last. last: its last token; None if it is
        empty.
    opening: the token before start, which may contain the beginning of the value.
    """

    start: int
    opening: int
    stop: int = 0
    last: int | None = None


class Forms:
    """One sequence's forms, and the answer's position in them.

    num_matched: tokens of a fixed part that the answer ends with; 0 in a value or outside of forms.
    """

    def __init__(self) -> None:
        self._heads: _Node = {}
        # Token that ends a value -> the value's own last token, if merged with it, and the tokens that
        # follow.
        self._ends: dict[int, tuple[int | None, set[int]]] = {}
        self.num_matched = 0
        # The node of the beginning being read, if any. The form being filled in, if any; the index and tokens
        # of its next # fixed part; its values; and the answer's last token.
        self._node: _Node | None = None
        self._frame: Frame | None = None
        self._next = 0
        self._fixed: tuple[int, ...] = ()
        self._values: list[Value] = []
        self._newest = 0

    def add(self, frame: Frame) -> None:
        """Add a form. If two forms have the same beginning, only the first is followed."""
        node = self._heads
        for token in frame.fixed[0]:
            node = node.setdefault(token, {})
        node.setdefault(_FRAME, frame)
        for fixed, joints in zip(frame.fixed[1:], frame.joints, strict=False):
            for last, tokens in ((None, fixed), *joints.items()):
                _, seconds = self._ends.setdefault(tokens[0], (last, set()))
                seconds.update(tokens[1:2])

    def advance(self, token: int, end: int) -> bool:
        """Move past the answer's next token; return whether a value begins after it.

        end: the position in the sequence after the token.
        """
        before, self._newest = self._newest, token
        if self._frame is not None:
            if self._read_fixed(self._frame, token, before, end):
                return self._frame is not None
            if self.num_matched:
                self._node = None
                return False
        return self._read_head(token, end)

    def _read_fixed(self, frame: Frame, token: int, before: int, end: int) -> bool:
        """Read the next fixed part's token, if it matches; return whether that completes the part."""
        fixed, matched = self._fixed, self.num_matched
        has_value = self._next < len(frame.copied)
        is_joint = has_value and _SURE_TOKENS <= matched == len(fixed) - 1
        if matched and (token == fixed[matched] or is_joint):
            matched += 1
        else:
            matched = int(self._end_value(frame, token, before, end))
        self.num_matched = matched
        if matched < len(self._fixed) or not matched:
            return False
        self._next += 1
        self.num_matched = 0
        self._values.append(Value(end, token))
        if not has_value:
            self._frame = None
        return True

    def _end_value(self, frame: Frame, token: int, before: int, end: int) -> bool:
        """Return whether a token begins the fixed part after the present value; if so, end the value."""
        last, _ = self._ends.get(token, (None, ()))
        joint = None if last is None else frame.joints[self._next - 1].get(last)
        self._fixed = joint or frame.fixed[self._next]
        if token != self._fixed[0]:
            return False
        value = self._values[-1]
        if joint:
            value.stop, value.last = end - 1, last
        elif end - 1 > value.start:
            value.stop, value.last = end - 2, before
        else:
            value.stop, value.last = end - 1, None
        return True

    def _read_head(self, token: int, end: int) -> bool:
        """Read a token of a form's beginning, if it matches; return whether that completes it."""
        was_head, node = self._node is not None, (self._node or {}).get(token)
        if node is None and (node := self._heads.get(token)) is not None:
            was_head, self.num_matched = True, 0
        if node is None and self.num_matched >= _SURE_TOKENS and len(self._node or ()) == 1:
            # The last token may be merged with the start of the value.
            ((_, only),) = (self._node or {}).items()
            node = only if _FRAME in only else None
        self._node = node
        if node is None:
            if was_head:
                self.num_matched = 0
            return False
        self.num_matched += 1
        if (frame := node.get(_FRAME)) is None:
            return False
        self._frame, self._next, self._node, self.num_matched = frame, 1, None, 0
        self._values = [Value(end, token)]
        return True

    @property
    def source(self) -> tuple[int, int] | None:
        """(start, stop) of the earlier value that the present one probably copies; None if there is none."""
        if self._frame is None or self.num_matched > 1:
            return None
        value = self._source_of(self._frame, self._next - 1)
        return (value.start, value.stop) if value is not None else None

    def _source_of(self, frame: Frame, at: int) -> Value | None:
        copied = frame.copied[at] if at < len(frame.copied) else None
        if copied is None or frame is not self._frame or copied >= len(self._values):
            return None
        return self._values[copied]

    @property
    def is_fixed(self) -> bool:
        """Whether the answer is in a fixed part, so that the next token is known."""
        if self._node is not None:
            return len(self._node) == 1
        return self._frame is not None and self.num_matched > 0

    @property
    def kind(self) -> int:
        """The kind of the next token, if it is fixed: HEAD, FIRST or FIXED."""
        return FIXED if self.num_matched != 1 else FIRST if self._node is None else HEAD

    def draft(self, tokens: Sequence[int], limit: int, recall: Recall) -> tuple[list[int], list[int]]:
        """Return up to limit next tokens of the form, fixed parts and values, and each token's kind.

        Within a copied value, the draft begins with the copied value's last token.
        tokens: of the sequence. recall: returns the tokens that last followed the text's end and a draft.
        """
        drafted, frame, value = [], self._frame, self._next
        if self._node is not None:
            node: _Node = self._node
            while len(node) == 1 and _FRAME not in node:
                ((token, node),) = node.items()
                drafted.append(token)
            frame, value = node.get(_FRAME) if len(node) == 1 else None, 0
        elif frame is not None and self.num_matched:
            drafted += self._fixed[self.num_matched :]
        elif frame is not None and (source := self._source_of(frame, value - 1)) is not None:
            drafted += _close(frame, value - 1, source.last)
        kinds = [self.kind] * len(drafted)
        while frame is not None and value < len(frame.copied) and len(drafted) < limit:
            if (source := self._source_of(frame, value)) is not None:
                copied = frame.fixed[frame.copied[value] or 0]
                if drafted and drafted[-1] == frame.fixed[value][-1] == copied[-1]:
                    drafted[-1] = source.opening
                stop = min(source.stop, source.start + limit)
                body, last, kind = tokens[source.start : stop], source.last, COPIED
            elif (found := self._find_end(recall(drafted))) is not None:
                (body, last), kind = found, RECALLED
            else:
                break
            closing = _close(frame, value, last)
            drafted += *body, *closing
            kinds += *(kind,) * len(body), *(kind,) * len(closing)
            value += 1
        return drafted[:limit], kinds[:limit]

    def end_copy(self, copied: list[int]) -> list[int] | None:
        """Cut copied tokens where the copied value ends, and append the end of the present value.

        Returns None if the answer is in no value, or if no value ends in the copied tokens.
        """
        if self._frame is None or self.num_matched or (found := self._find_end(copied)) is None:
            return None
        body, last = found
        return [*body, *_close(self._frame, self._next - 1, last)]

    def _find_end(self, tokens: Sequence[int]) -> tuple[Sequence[int], int | None] | None:
        """Return a value's tokens before its last, and its last; None if it does not end in these.

        tokens: from within the value on.
        """
        for at, token in enumerate(tokens):
            if (end := self._ends.get(token)) is not None:
                last, seconds = end
                if seconds and tokens[at + 1 : at + 2] and tokens[at + 1] not in seconds:
                    continue
                if last is not None:
                    return tokens[:at], last
                return (tokens[: at - 1], tokens[at - 1]) if at else ((), None)
        return None


def _close(frame: Frame, value: int, last: int | None) -> tuple[int, ...]:
    """Return a value's last token, merged with the fixed tokens after it."""
    fixed = frame.fixed[value + 1]
    return fixed if last is None else frame.joints[value].get(last, (last, *fixed))


CONTEXT_LINES = 3
"""Unchanged lines that patches show before and after a change, by convention."""

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
"""The next tokens: source, start, stop, and the kind of the first one; the others are INSIDE."""


class Hunks:
    """The lines of a sequence's texts, and the answer's position in them.

    num_tokens: capacity for kept and removed lines. shelf: holds these lines.
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
        """Return the work of adding a text's lines, as many as fit."""
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
        """Return the longest occurrence of a text's end; None unless it contains a line's sign.

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
        """Move the cursor past the answer's next token if it begins a line with an unexpected sign.

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
        """Continue after the present change if the token begins the line there."""
        if self._next is None or token != self.shelf.tokens[start := self._starts[KEPT][self._next]]:
            return False
        cursor.start(self.shelf.tokens, start + 1, self.shelf.end_of(start), cursor.run + 1)
        self._line, self._num_kept, self._has_changed, self._next = self._next, 0, True, None
        return True

    def _find_next(self, cursor: CopyCursor, before: int, token: int) -> bool:
        """Continue after a change in which the cursor was lost, if two tokens begin the line there."""
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
        """Return the sign and the line of a position."""
        signs = (ADDED,) if source is self._added else (KEPT, REMOVED) if source is self.shelf.tokens else ()
        for sign in signs:
            line = bisect_right(self._starts[sign], position) - 1
            if line >= 0 and position < self._ends[sign][line]:
                return sign, line
        return KEPT, _NOWHERE

    def _kept_before(self, line: int, since: int) -> tuple[int, bool]:
        """Return how many consecutive lines were kept before a line, and whether a change precedes them.

        since: where the answer began to copy, if its earlier position is unknown.
        """
        if line == self._line:
            return self._num_kept, self._has_changed
        return max(line - bisect_left(self._starts[KEPT], since), 0), False

    def draft(
        self, cursor: CopyCursor, place: tuple[Ids, int, int | None], limit: int
    ) -> tuple[list[int], list[int]]:
        """Return up to limit tokens of a patch's lines from place on, and each token's kind; see Part.

        Returns none if place is in no line. cursor: has the learned changes to apply.
        place: source, position and stop; see CopyCursor.
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
        """Yield the kept lines from a line on, then the change after them."""
        while line < len(self._starts[KEPT]):
            is_enough = num_kept >= CONTEXT_LINES
            if is_enough and not has_changed:
                yield self._part(REMOVED, line, REMOVE)
                yield from self._go_on_removing(line, line + 1)
                return
            yield self._part(KEPT, line, KEEP_MORE if is_enough else KEEP)
            line, num_kept = line + 1, num_kept + 1

    def _go_on_removing(self, first: int, line: int) -> Iterator[Part]:
        """Yield the added lines after removed lines: a second one is seldom the last."""
        if line - first == 1:
            yield from self._go_on_adding(first, line, ADD)
            return
        while line < len(self._starts[REMOVED]):
            yield self._part(REMOVED, line, REMOVE_MORE)
            line += 1

    def _go_on_adding(self, line: int, stop: int, kind: int) -> Iterator[Part]:
        """Yield the added lines that replace removed ones up to a line, then the kept lines."""
        while line < stop:
            yield self._part(ADDED, line, kind)
            line, kind = line + 1, ADD_MORE
        yield from self._go_on(stop, 0, True)

    def _part(self, sign: int, line: int, kind: int) -> Part:
        source = self._added if sign == ADDED else self.shelf.tokens
        return source, self._starts[sign][line], self._ends[sign][line], kind
