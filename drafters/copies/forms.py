"""Follow an answer through the forms that it fills in: calls of tools, blocks that search and replace.

    {"name": "Edit", "arguments": {"old_string": "a = 1", "new_string": "a = 2"}}
    |------------- fixed[0] ---------------------|     |-- fixed[1] --|     |fixed[2]

What is fixed follows from its first tokens. A value that is often like an earlier one is copied from it.
"""

from collections.abc import Sequence
from typing import Any

from drafters.base import Frame

_Node = dict[int, Any]
"""The beginnings of forms by token; a frame stands at _FRAME where all of its beginning was read."""

_FRAME = -1


class Forms:
    """The forms of one sequence, and where its answer is in them.

    num_matched: how many tokens of what is fixed the answer ends with; 0 in a value, and outside of forms.
    """

    def __init__(self) -> None:
        self._heads: _Node = {}
        self.num_matched = 0
        # The node of the beginning that is being read, if one is.
        # The form that is being filled in, if one is; which of its fixed parts comes next; and where its
        # values start and end in the sequence.
        self._node: _Node | None = None
        self._frame: Frame | None = None
        self._next = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, frame: Frame) -> None:
        """Add a form. Of two that begin alike the first counts."""
        node = self._heads
        for token in frame.fixed[0]:
            node = node.setdefault(token, {})
        node.setdefault(_FRAME, frame)

    def advance(self, token: int, end: int) -> bool:
        """Move past the answer's next token; return whether a value begins behind it.

        end: the position in the sequence behind the token.
        """
        if self._frame is not None and self._read_fixed(self._frame, token, end):
            return self._frame is not None
        return self._read_head(token, end)

    def _read_fixed(self, frame: Frame, token: int, end: int) -> bool:
        """Read a token of the next fixed part, if it is one; return whether it was the part's last one."""
        fixed, matched = frame.fixed[self._next], self.num_matched
        if token == fixed[matched]:
            matched += 1
        else:
            # The first token may be one with the end of the value.
            matched = 1 if token == fixed[0] else 2 if len(fixed) > 2 and token == fixed[1] else 0
        if matched and not self.num_matched:
            self._ends[self._next - 1 :] = [end - 1]
        self.num_matched = matched
        if matched < len(fixed):
            return False
        self._next += 1
        self.num_matched = 0
        self._starts.append(end)
        if self._next == len(frame.fixed):
            self._frame = None
        return True

    def _read_head(self, token: int, end: int) -> bool:
        """Read a token of a form's beginning, if it is one; return whether it was the last one."""
        was_head, node = self._node is not None, (self._node or {}).get(token)
        if node is None and (node := self._heads.get(token)) is not None:
            was_head, self.num_matched = True, 0
        self._node = node
        if node is None:
            if was_head:
                self.num_matched = 0
            return False
        self.num_matched += 1
        if (frame := node.get(_FRAME)) is None:
            return False
        self._frame, self._next, self._node, self.num_matched = frame, 1, None, 0
        self._starts, self._ends = [end], []
        return True

    @property
    def source(self) -> tuple[int, int] | None:
        """Where the earlier value starts and ends that the present one is often like; None without any."""
        if self._frame is None or self.num_matched:
            return None
        return self._source_of(self._frame, self._next - 1)

    def _source_of(self, frame: Frame, value: int) -> tuple[int, int] | None:
        copied = frame.copied[value] if value < len(frame.copied) else None
        return None if copied is None else (self._starts[copied], self._ends[copied])

    @property
    def is_fixed(self) -> bool:
        """Whether the answer is in a fixed part, so that the next token is known."""
        if self._node is not None:
            return len(self._node) == 1
        return self._frame is not None and self.num_matched > 0

    def draft(self, tokens: Sequence[int], limit: int) -> list[int]:
        """Return up to limit tokens: the rest of the fixed part, or of the next one if the value ends here.

        If the value behind it is often like an earlier one, that follows. tokens: of the sequence.
        """
        drafted: list[int] = []
        if self._node is not None:
            node = self._node
            while len(node) == 1 and len(drafted) < limit and _FRAME not in node:
                ((token, node),) = node.items()
                drafted.append(token)
        elif (frame := self._frame) is not None:
            drafted += frame.fixed[self._next][self.num_matched :][:limit]
            if (source := self._source_of(frame, self._next)) is not None:
                start, end = source
                drafted += tokens[start : min(end, start + limit - len(drafted))]
        return drafted
