"""Calls that a model begins without the marker that should be before them, as Qwen's models sometimes do."""

from collections.abc import Collection
from dataclasses import dataclass

from engine.text.markers import Markers
from server.tool_formats.partial_text import count_partial_marker


@dataclass(frozen=True, slots=True)
class BareCalls:
    """How a call without its marker begins and ends.

    starts: beginnings of calls of the request's tools, up to the first argument or the end: a mere mention of
        a function is text. They count only at the start of a line. prefix: what all of them begin with.
    """

    starts: frozenset[str]
    prefix: str
    end: str

    def starts_in(self, text: str) -> list[str]:
        """Return the strings, each with its line break, with which bare calls may begin in this text.

        Empty if the text has no such beginning, nor ends with a part of one.
        """
        start = f"\n{self.prefix}"
        if start not in text and not count_partial_marker(text, [start]):
            return []
        return [f"\n{one}" for one in self.starts]


def bare_calls(markers: Markers, names: Collection[str]) -> BareCalls | None:
    """Return the form of calls without their marker; None if the format does not tell them from text."""
    if markers.call_format != "qwen3_coder" or not names:
        return None
    heads = [f"<function={name}>{space}" for name in names for space in ("", "\n")]
    starts = (head + after for head in heads for after in ("<parameter=", "</function>"))
    return BareCalls(frozenset(starts), "<function=", "</function>")
