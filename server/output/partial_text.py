"""Markers in text that is still growing, and where a JSON string has been left open."""

import re
from collections.abc import Sequence

_QUOTE_OR_ESCAPE = re.compile(r'\\.|"', re.DOTALL)


def find_first(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """Where the first marker to be complete begins, and which it is; of those that end there, the longest."""
    found = [(at + len(marker), at, marker) for marker in markers if (at := text.find(marker)) >= 0]
    if not found:
        return None
    _, at, marker = min(found)
    return at, marker


def count_undecided(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a marker."""
    longest = max(map(len, markers), default=1) - 1
    for at in range(max(0, len(text) - longest), len(text)):
        ending = text[at:]
        if any(marker.startswith(ending) for marker in markers):
            return len(ending)
    return 0


class JsonStrings:
    """Follows JSON as it grows: is_open tells whether it stands inside a string."""

    def __init__(self) -> None:
        self.is_open = False
        self._escape = ""

    def feed(self, text: str) -> None:
        """Take more of the JSON."""
        text = self._escape + text
        num_backslashes = len(text) - len(text.rstrip("\\"))
        self._escape = "\\" if num_backslashes % 2 else ""
        quotes = _QUOTE_OR_ESCAPE.findall(text).count('"')
        self.is_open ^= quotes % 2 == 1
