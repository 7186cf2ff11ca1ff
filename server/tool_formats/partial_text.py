"""Search text that is still growing: find markers, and track whether a JSON string is open."""

import re
from collections.abc import Sequence

_QUOTE_OR_ESCAPE = re.compile(r'\\.|"', re.DOTALL)


def find_first_marker(text: str, markers: Sequence[str]) -> tuple[int, str] | None:
    """Return the start of the marker that ends first in the text, and the marker.

    If several end at the same place, return the longest.
    """
    found = [(at + len(marker), at, marker) for marker in markers if (at := text.find(marker)) >= 0]
    if not found:
        return None
    _, at, marker = min(found)
    return at, marker


def count_partial_marker(text: str, markers: Sequence[str]) -> int:
    """Count the characters at the end of the text that may be the start of a marker."""
    longest = max(map(len, markers), default=1) - 1
    for at in range(max(0, len(text) - longest), len(text)):
        ending = text[at:]
        if any(marker.startswith(ending) for marker in markers):
            return len(ending)
    return 0


class JsonStringTracker:
    """Tracks whether JSON that arrives bit by bit currently ends inside a string (is_open)."""

    def __init__(self) -> None:
        self.is_open = False
        self._escape = ""

    def feed(self, text: str) -> None:
        """Read the next bit of the JSON."""
        text = self._escape + text
        num_backslashes = len(text) - len(text.rstrip("\\"))
        self._escape = "\\" if num_backslashes % 2 else ""
        quotes = _QUOTE_OR_ESCAPE.findall(text).count('"')
        self.is_open ^= quotes % 2 == 1
