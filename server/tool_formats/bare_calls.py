"""Find calls that a model begins without the marker that should come first, as Qwen's models sometimes do."""

from collections.abc import Collection
from dataclasses import dataclass

from reprise.engine.text.markers import Markers
from reprise.server.tool_formats.partial_text import count_partial_marker


@dataclass(frozen=True, slots=True)
class BareCalls:
    """The strings with which a call without its start marker begins and ends.

    starts: how calls of the request's tools begin, up to the first argument or the end of the call, since a
        mere mention of a function is text. They count only at the start of a line.
    prefix: the common beginning of all starts.
    """

    starts: frozenset[str]
    prefix: str
    end: str

    def starts_in(self, text: str) -> list[str]:
        """Return the strings, each with a line break before it, with which bare calls may begin in a text.

        Empty if the text has no line that begins with prefix, and does not end with a part of such a line.
        """
        start = f"\n{self.prefix}"
        if start not in text and not count_partial_marker(text, [start]):
            return []
        return [f"\n{one}" for one in self.starts]


def bare_calls(markers: Markers, names: Collection[str]) -> BareCalls | None:
    """Return the form of calls without a start marker; None if in this format they look like text.

    names: the names of the request's tools.
    """
    if markers.call_format != "qwen3_coder" or not names:
        return None
    heads = [f"<function={name}>{space}" for name in names for space in ("", "\n")]
    starts = (head + after for head in heads for after in ("<parameter=", "</function>"))
    return BareCalls(frozenset(starts), "<function=", "</function>")
