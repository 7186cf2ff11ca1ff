"""Read tool calls while the model writes them, so that their arguments can be streamed.

A reader gets the text between the markers. A reader is strict: it sets `is_broken` at text that it does not
know, which is left to mlx-lm's parser.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

MAX_PENDING_CHARACTERS = 1024
"""Limit for text that is neither a name nor a value; beyond it the text is not a call."""


@dataclass(frozen=True, slots=True)
class OpenedCall:
    """The beginning of a call. id: the model's own, if any."""

    name: str
    id: str | None = None


CallFragment = OpenedCall | str
"""The beginning of a call, or the next bit of its arguments, as JSON."""

Schemas = Mapping[str, dict[str, Any]]
"""The schemas of the arguments, by the names of the tools."""


class Reader:
    """Reads the calls of one section, unless they name a tool that is not in the request.

    num_closed: complete calls so far. is_open: whether a call has begun and not ended.
    is_broken: whether the section has text that the reader cannot read.
    closing: what the format writes after all calls of a section.
    """

    def __init__(self, schemas: Schemas, closing: str) -> None:
        self.num_closed = 0
        self.is_broken = False
        self.is_open = False
        self._schemas = schemas
        self._closing = closing
        self._pending = ""
        self._fragments: list[CallFragment] = []

    @property
    def rest(self) -> str:
        """The text that the reader has not consumed yet, without what closes the section."""
        if self._closing and self.num_closed and not self.is_open:
            return self._pending.lstrip().removeprefix(self._closing)
        return self._pending

    @property
    def is_quoting(self) -> bool:
        """Whether the reader is within a value, so that a marker that comes next would be a part of it."""
        raise NotImplementedError

    def feed(self, text: str) -> list[CallFragment]:
        """Read the next text of the section; return the fragments that are certain now."""
        self._pending += text
        while not self.is_broken and self._pending and self._advance():
            pass
        fragments, self._fragments = self._fragments, []
        return fragments

    def _advance(self) -> bool:
        raise NotImplementedError

    def _open(self, pattern: re.Pattern[str]) -> str:
        """Read the beginning of a call; return its name, "" if there is more to come."""
        match = self._match(pattern)
        if match is None:
            return ""
        name = match["name"]
        if name not in self._schemas:
            self.is_broken = True
            return ""
        self.is_open = True
        self._fragments.append(OpenedCall(name, match.groupdict().get("id")))
        return name

    def _close(self) -> None:
        self.is_open = False
        self.num_closed += 1

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match the pending text and drop what matched; None if there is more to come."""
        match = pattern.match(self._pending)
        if match is not None:
            self._pending = self._pending[match.end() :]
        elif len(self._pending) > MAX_PENDING_CHARACTERS:
            self.is_broken = True
        return match


def is_object(text: str) -> bool:
    """Return whether a text is a JSON object."""
    try:
        return isinstance(from_json(text, allow_inf_nan=False), dict)
    except ValueError:
        return False


def escaped(text: str) -> str:
    """Return a text escaped for a JSON string, without quotes around it."""
    return to_json(text).decode()[1:-1]
