"""Recognize by its shape how a text shows a file, and return the file's own lines.

A tool that reads files puts numbers before the lines, a tool that searches also puts paths there, and a diff
puts signs there. An answer that copies the lines has none of these:

    "   11→def f():\\n   12→    return 1"          def f():\\n    return 1
    "a.py:11:def f():\\na.py-12-    return 1"       def f():\\n    return 1
    "@@ -11,2 +11,2 @@\\n def f():\\n+    return 1"   def f():\\n    return 1

Only drafts depend on the shapes, so a text that merely looks like one does no harm.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pydantic_core import from_json

MIN_NUMBERED = 3
"""Lines in a row that must be numbered to be taken for a file's, unless an arrow or a path stands there."""

_NUMBERED = re.compile(r"(?:<\w+>)?[ ]*L?(?P<number>\d{1,7})(?P<mark>→|\t| ?\||[:-])(?P<line>.*)")
"""A line with its number. A tag may be glued to the first line of a file."""

_FOUND = re.compile(r"(?P<path>[\w./~][^\s:]*?)(?P<mark>[:-])(?P<number>\d{1,7})(?P=mark)(?P<line>.*)")
"""A line that was found, or stands beside one, as grep prints it."""

_HUNK = re.compile(r"@@ .*@@.*|@@.*")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.){80,}"')
"""A long string of JSON, as in the result of a tool that answers with JSON."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A text in which shown files are as on disk. plain: the whole text. cut: only the lines that differ."""

    plain: str
    cut: str


def read_shapes(text: str) -> Shown:
    """Find the files that a text shows, and return the text with the files as on disk."""
    plain: list[str] = []
    cut: list[str] = []
    for lines, is_cut in _parts(text.split("\n")):
        plain += lines
        cut += lines if is_cut else ()
    for quoted in _QUOTED.findall(text) if "\\n" in text else ():
        if "\n" in (inner := _unquoted(quoted)):
            lines = read_shapes(inner).plain.split("\n")
            plain += lines
            cut += lines
    return Shown("\n".join(plain), "".join(f"{line}\n" for line in cut))


def _unquoted(quoted: str) -> str:
    try:
        return str(from_json(quoted))
    except ValueError:
        return ""


def _parts(lines: Sequence[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield the lines in parts, those of files without what stands before them, and whether it was cut."""
    at = 0
    while at < len(lines):
        for read in (_read_diff, _read_found, _read_numbered):
            num_lines, found = read(lines, at)
            if num_lines:
                yield found, True
                break
        else:
            num_lines = 1
            yield [lines[at]], False
        at += num_lines


def _read_diff(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return how many lines from start on are a hunk of a diff, and the new lines of the file."""
    if not _HUNK.fullmatch(lines[start]):
        return 0, []
    found: list[str] = []
    at = start + 1
    while at < len(lines) and (not lines[at] or lines[at][0] in " +-\\"):
        if lines[at][:4] in ("--- ", "+++ "):
            break
        if lines[at][:1] in (" ", "+", ""):
            found.append(lines[at][1:])
        at += 1
    return at - start, found


def _read_found(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return how many lines from start on were found in one file, and the lines of the file."""
    found: list[str] = []
    path = ""
    for line in lines[start:]:
        match = _FOUND.fullmatch(line)
        if match is None or path not in ("", match["path"]):
            break
        path = match["path"]
        found.append(match["line"])
    return len(found), found


def _read_numbered(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return how many lines from start on are numbered, and the lines of the file."""
    found: list[str] = []
    first, last = "", 0
    for line in lines[start:]:
        match = _NUMBERED.fullmatch(line)
        if match is None:
            break
        number, mark = int(match["number"]), match["mark"]
        # A search finds some lines, and marks those beside them otherwise.
        is_found = mark in ":-" and first in ":-"
        if found and not (number > last if is_found else mark == first and number == last + 1):
            break
        first, last = first or mark, number
        found.append(match["line"])
    if len(found) < MIN_NUMBERED and first != "→":
        return 0, []
    return len(found), found if first in "→\t" else _without_gap(found)


def _without_gap(lines: list[str]) -> list[str]:
    """Return lines without the space between the mark and each of them, if there is one."""
    depths = [len(line) - len(line.lstrip(" ")) for line in lines if line.strip()]
    least = min(depths, default=0)
    # Files are indented by even numbers of spaces, so an odd one has the gap in it.
    return [line[1:] for line in lines] if least % 2 else lines
