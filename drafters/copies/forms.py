"""Follow an answer through the forms that it fills in: calls of tools, blocks that search and replace.

    {"name": "Edit", "arguments": {"old_string": "a = 1", "new_string": "a = 2"}}
    |------------- fixed[0] ---------------------|     |-- fixed[1] --|     |fixed[2]

A fixed part is drafted once its first tokens are read. A value that often begins like an earlier value is
copied from it; of any other value, the tokens that last followed the same text are recalled. Where a copy
reaches the end of a value, of this answer or an earlier one, the fixed part behind the present value follows.

A value may begin or end within a token that also holds fixed text, such as `)",`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reprise.drafters.base import Frame

_Node = dict[int, Any]
"""The beginnings of forms by token; a frame stands at _FRAME where all of its beginning was read."""

_FRAME = -1
_SURE_TOKENS = 3  # tokens of what is fixed after which its last one may be one with the start of a value

Recall = Callable[[list[int]], Sequence[int]]
"""Returns the tokens that followed the sequence's end and these tokens when they last occurred."""

NUM_KINDS = 5
HEAD, FIRST, FIXED, COPIED, RECALLED = range(NUM_KINDS)
"""Kinds of drafted tokens: fixed, where one token of a form's beginning, or of another part, was read; fixed,
where more was; of a value that begins like an earlier one; of a value that is recalled."""


@dataclass(slots=True)
class Value:
    """A value in an answer.

    start, stop: positions in the sequence of its tokens but the last one. last: its last token; None if it is
    empty. opening: the token before start, which may also hold the beginning of the value.
    """

    start: int
    opening: int
    stop: int = 0
    last: int | None = None


class Forms:
    """The forms of one sequence, and the answer's place in them.

    num_matched: how many tokens of a fixed part the answer ends with; 0 in a value, and outside of forms.
    """

    def __init__(self) -> None:
        self._heads: _Node = {}
        # By a token that ends a value: the value's own last token that is one with it, if it is, and the
        # tokens that follow it.
        self._ends: dict[int, tuple[int | None, set[int]]] = {}
        self.num_matched = 0
        # The node of the beginning that is being read, if one is.
        # The form that is being filled in, if one is; which of its fixed parts comes next, and as which
        # tokens; its values; and the answer's last token.
        self._node: _Node | None = None
        self._frame: Frame | None = None
        self._next = 0
        self._fixed: tuple[int, ...] = ()
        self._values: list[Value] = []
        self._newest = 0

    def add(self, frame: Frame) -> None:
        """Add a form. Of two forms that begin alike only the first is followed."""
        node = self._heads
        for token in frame.fixed[0]:
            node = node.setdefault(token, {})
        node.setdefault(_FRAME, frame)
        for fixed, joints in zip(frame.fixed[1:], frame.joints, strict=False):
            for last, tokens in ((None, fixed), *joints.items()):
                _, seconds = self._ends.setdefault(tokens[0], (last, set()))
                seconds.update(tokens[1:2])

    def advance(self, token: int, end: int) -> bool:
        """Move past the answer's next token; return whether a value begins behind it.

        end: the position in the sequence behind the token.
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
        """Read a token of the next fixed part, if it is one; return whether it was the part's last one."""
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
        """Return whether a token begins what is fixed behind the present value, and note its end."""
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
        """Read a token of a form's beginning, if it is one; return whether it was the last one."""
        was_head, node = self._node is not None, (self._node or {}).get(token)
        if node is None and (node := self._heads.get(token)) is not None:
            was_head, self.num_matched = True, 0
        if node is None and self.num_matched >= _SURE_TOKENS and len(self._node or ()) == 1:
            # The last token may be one with the start of the value.
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
        """(start, stop) of the earlier value that the present value probably copies; None without one."""
        if self._frame is None or self.num_matched > 1:
            return None
        value = self._source_of(self._frame, self._next - 1)
        return (value.start, value.stop) if value is not None else None

    def _source_of(self, frame: Frame, at: int) -> Value | None:
        copied = frame.copied[at] if at < len(frame.copied) else None
        return None if copied is None or frame is not self._frame else self._values[copied]

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
        """Return up to limit next tokens of the form, in fixed parts and values, and the kind of each token.

        Within a copied value, the draft begins with the last token of the value that is copied.
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
        """Cut copied tokens where the copied value ends, and add the end of the present value.

        Returns None if the answer is in no value, or if no value ends in the copied tokens.
        """
        if self._frame is None or self.num_matched or (found := self._find_end(copied)) is None:
            return None
        body, last = found
        return [*body, *_close(self._frame, self._next - 1, last)]

    def _find_end(self, tokens: Sequence[int]) -> tuple[Sequence[int], int | None] | None:
        """Return a value's tokens that stand before its last one, and that one; None if it ends elsewhere.

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
    """Return the end of a value, its last token, with the fixed tokens behind it."""
    fixed = frame.fixed[value + 1]
    return fixed if last is None else frame.joints[value].get(last, (last, *fixed))
