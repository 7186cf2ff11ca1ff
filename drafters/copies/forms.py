"""Follow an answer through the forms that it fills in: calls of tools, blocks that search and replace.

    {"name": "Edit", "arguments": {"old_string": "   a = 1   ", "new_string": "   a = 2   "}}
    fixed[0]                                         fixed[1]                     fixed[2]

What is fixed follows from its first token. A value that is often like an earlier one is copied from there.
"""

from collections.abc import Sequence
from typing import Any

from drafters.base import Frame

_Node = dict[int, Any]
"""The beginnings of forms, by token; the frame stands at NO_TOKEN where one has begun."""

_NO_TOKEN = -1


class Forms:
    """The forms of one sequence, and where its answer is in them.

    num_matched: how many tokens of what is fixed the answer ends with; 0 if it is within a value or no form.
    """

    def __init__(self) -> None:
        self._heads: _Node = {}
        self._node: _Node = self._heads
        self.num_matched = 0
        self._frame: Frame | None = None
        # The next of what is fixed, and where the values before it start and end in the sequence.
        self._next = 0
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, frame: Frame) -> None:
        """Add a form. The first of two that begin alike counts."""
        node = self._heads
        for token in frame.fixed[0]:
            node = node.setdefault(token, {})
        node.setdefault(_NO_TOKEN, frame)

    def advance(self, token: int, end: int) -> bool:
        """Move past the answer's next token; return whether a value begins. end: tokens up to there."""
        if self._frame is not None and self._advance_within(self._frame, token, end):
            return True
        node = self._node.get(token)
        if node is None:
            node = self._heads.get(token)
        if node is None:
            if self._node is not self._heads:
                self._node = self._heads
            return False
        self._node = node
        frame = node.get(_NO_TOKEN)
        if frame is None:
            return False
        self._frame, self._next, self._node = frame, 1, self._heads
        self._starts, self._ends, self.num_matched = [end], [], 0
        return True

    def _advance_within(self, frame: Frame, token: int, end: int) -> bool:
        fixed, matched = frame.fixed[self._next], self.num_matched
        if token == fixed[matched]:
            matched += 1
        else:
            # The first token may be one with the end of the value.
            matched = 1 if token == fixed[0] else 2 if len(fixed) > 2 and token == fixed[1] else 0
        if matched and not self.num_matched:
            self._ends = [*self._ends[: self._next - 1], end - 1]
        if matched < len(fixed):
            self.num_matched = matched
            return False
        self.num_matched = 0
        self._next += 1
        if self._next == len(frame.fixed):
            self._frame = None
            return False
        self._starts.append(end)
        return True

    def source(self) -> tuple[int, int] | None:
        """Return where the value starts and ends that the present one is often like; None for none."""
        if self._frame is None or self.num_matched:
            return None
        return self._source_of(self._frame, self._next - 1)

    def _source_of(self, frame: Frame, value: int) -> tuple[int, int] | None:
        copied = frame.copied[value] if value < len(frame.copied) else None
        return None if copied is None else (self._starts[copied], self._ends[copied])

    def draft(self, tokens: Sequence[int], limit: int, is_at_end: bool = False) -> list[int]:
        """Return up to limit tokens that are fixed here, and of the value after them if it is often copied.

        tokens: of the sequence. is_at_end: the present value ends here.
        """
        frame = self._frame
        if frame is None or not (self.num_matched or is_at_end):
            return self._draft_head(limit)
        drafted = list(frame.fixed[self._next][self.num_matched :][:limit])
        source = self._source_of(frame, self._next)
        if source is not None and len(drafted) < limit:
            start, end = source
            drafted += tokens[start : min(end, start + limit - len(drafted))]
        return drafted

    def _draft_head(self, limit: int) -> list[int]:
        drafted: list[int] = []
        node = self._node
        while node is not self._heads and len(node) == 1 and len(drafted) < limit and _NO_TOKEN not in node:
            ((token, node),) = node.items()
            drafted.append(token)
        return drafted
