"""The input of a free-form tool: text in the only argument of a function, `input`."""

import re
from typing import Any

_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_PART = re.compile(r'[^"\\]+|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u]')


def input_schema(pattern: str | None = None) -> dict[str, Any]:
    """Return the schema of a free-form tool's arguments. pattern: a regular expression for the input."""
    text = {"type": "string"} | ({} if pattern is None else {"pattern": pattern})
    return {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }


class InputDecoder:
    """Decodes a free-form tool's input from the JSON of the call's arguments, which arrives bit by bit."""

    def __init__(self) -> None:
        self._pending = ""
        self._is_inside = False

    def feed(self, arguments: str) -> str:
        """Add text of the arguments' JSON; return the part of the decoded input that is certain now."""
        self._pending += arguments
        if not self._is_inside:
            head = _HEAD.match(self._pending)
            if head is None:
                return ""
            self._is_inside = True
            self._pending = self._pending[head.end() :]
        decoded = []
        while (part := _PART.match(self._pending)) is not None:
            decoded.append(_decode(part[0]))
            self._pending = self._pending[part.end() :]
        return "".join(decoded)


def _decode(part: str) -> str:
    if not part.startswith("\\"):
        return part
    escapes = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
    if part[1] != "u":
        return escapes.get(part[1], part[1])
    try:
        units = [int(unit, 16) for unit in part.split("\\u")[1:]]
        return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be", "replace")
    except ValueError:
        return part
