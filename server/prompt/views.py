"""Make views of conversations for drafters: texts that an answer may copy, in the answer's form.

drafters/README.md explains views. They are encoded in slices of work, and cached for the next turn.
"""

import contextlib
import hashlib
import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic_core import from_json

from reprise.engine.interface.bounded_cache import BoundedCache
from reprise.engine.interface.request import View
from reprise.server.prompt.encoder import to_harmony_messages

if TYPE_CHECKING:
    from reprise.engine.engine import Engine
    from reprise.engine.generating.generating_engine import GeneratingEngine

Json = dict[str, Any]
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


@dataclass(frozen=True, slots=True)
class ArgumentForm:
    """How a model writes text within an argument.

    written: character code -> the text written for it, if that is not the character itself.
    is_ascii: whether non-ASCII characters become JSON escapes.
    """

    written: dict[int, str] = field(default_factory=dict)
    is_ascii: bool = False

    @property
    def has_escapes(self) -> bool:
        """Whether line breaks are escaped, which changes a text of several lines."""
        return ord("\n") in self.written

    def write(self, text: str) -> str:
        """Return a text as the model would write it in an argument."""
        written = text.translate(self.written) if self.written else text
        return _NOT_ASCII.sub(lambda some: json.dumps(some[0])[1:-1], written) if self.is_ascii else written


AS_IT_IS = ArgumentForm()
AS_JSON = ArgumentForm({ord(one): json.dumps(one)[1:-1] for one in '\n\t\r"\\'})
"""As models write JSON: characters that are not ASCII stand for themselves."""
PROBED = "\n\t\r\"\\/<>&'é"
"""Characters some of which are written otherwise within arguments."""


def probe_arguments(render: Callable[[list[Json]], str]) -> ArgumentForm | None:
    """Return how a chat template writes arguments; None if it does not show them.

    render: returns the text of rendered messages; it may raise ValueError.
    """
    marks = [f"q{at:02}z" for at in range(len(PROBED) + 1)]
    probe = "".join(map("".join, zip(marks, PROBED, strict=False))) + marks[-1]
    call = {"name": "look", "arguments": {"text": probe}}
    asked: list[Json] = [
        {"role": "user", "content": "a"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "probeid01", "type": "function", "function": call}],
        },
    ]
    rest = render(asked).partition(marks[0])[2]
    written: dict[str, str] = {}
    for character, mark in zip(PROBED, marks[1:], strict=True):
        written[character], found, rest = rest.partition(mark)
        if not found:
            return None
    changed = {ord(one): text for one, text in written.items() if text != one and one.isascii()}
    return ArgumentForm(changed, written["é"].startswith("\\u"))


MIN_NUMBERED = 3
"""Lines in a row that must be numbered to be taken for a file's, unless an arrow or a path stands there."""
_NUMBERED = re.compile(r"(?:<\w+>)?[ ]*L?(?P<number>\d{1,7})(?P<mark>→|\t| ?\||[:-])(?P<line>.*)")
"""A line with its number. A tag may be glued to the first line of a file."""
_FOUND = re.compile(r"(?P<path>[\w./~][^\s:]*?)(?P<mark>[:-])(?P<number>\d{1,7})(?P=mark)(?P<line>.*)")
"""A line that was found, or stands beside one, as grep prints it."""
_QUOTED = re.compile(r'(?<!\\)"(?:[^"\\\n]|\\.){80,}+"')
"""A long string of JSON, as in the result of a tool that answers with JSON."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A text with quoted files restored as on disk. plain: the whole text. cut: only the changed lines."""

    plain: str
    cut: str


def read_shapes(text: str) -> Shown:
    """Find the files that a text quotes, and restore them as on disk."""
    plain: list[str] = []
    cut: list[str] = []
    lines, at = text.split("\n"), 0
    while at < len(lines):
        for read in (_read_diff, _read_found, _read_numbered):
            num_lines, found = read(lines, at)
            if num_lines:
                break
        cut += found
        plain += found if num_lines else [lines[at]]
        at += num_lines or 1
    for quoted in _QUOTED.findall(text) if "\\n" in text else ():
        with contextlib.suppress(ValueError):
            if "\n" in (inner := str(from_json(quoted))):
                found = read_shapes(inner).plain.split("\n")
                plain += found
                cut += found
    return Shown("\n".join(plain), "".join(f"{line}\n" for line in cut))


def _read_diff(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return the number of lines from start that form a diff's hunk, and the file's new lines."""
    if not lines[start].startswith("@@"):
        return 0, []
    found: list[str] = []
    at = start + 1
    while at < len(lines) and lines[at][:1] in " +-\\" and lines[at][:4] not in ("--- ", "+++ "):
        if lines[at][:1] in " +":
            found.append(lines[at][1:])
        at += 1
    return at - start, found


def _read_found(lines: Sequence[str], start: int) -> tuple[int, list[str]]:
    """Return the number of lines from start that are one file's search results, and the file's lines."""
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
    """Return the number of numbered lines from start, and the file's lines."""
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
    if first not in "→\t":
        # Files are indented by even numbers of spaces, so an odd one has the gap behind the mark in it.
        depths = [len(line) - len(line.lstrip(" ")) for line in found if line.strip()]
        if min(depths, default=0) % 2:
            found = [line[1:] for line in found]
    return len(found), found


MIN_CHARACTERS = 40
"""Shorter texts have no views, nor have those of one line."""


def _is_long(text: Any) -> bool:
    return isinstance(text, str) and len(text) >= MIN_CHARACTERS and "\n" in text


MAX_TOKENS = 1 << 17
"""Maximum tokens of the views of one request. Those of the newest texts come first."""
SLICE_CHARACTERS, SLICE_LINES = 4096, 96
"""What one slice reads or encodes: characters (about 1,000 tokens) up to the end of a line or word; lines, as
short ones take time by their number."""
MAX_SLICE_CHARACTERS = 4 * SLICE_CHARACTERS
"""A longer line or word is cut: other threads wait for a slice, and there only some drafts are lost."""
_BEFORE_WORD = re.compile(r"(?<=[a-zA-Z]) (?=[a-zA-Z])")

Views = list[View]
Source = tuple[str, bool, ArgumentForm | None]
"""A text; whether to add all of it as on disk, else only the changed lines; and how call arguments escape it,
if they do."""


class ViewMaker:
    """Makes the views of conversations, a slice of work at a time.

    max_kept_bytes: limit of the cached views, evicted by last use; a token takes four bytes.
    """

    def __init__(self, engine: "Engine | GeneratingEngine", max_kept_bytes: int) -> None:
        self._engine = engine
        # A text without views is remembered too, and counts.
        self._kept = BoundedCache[Views](lambda views: 4 * (16 + _count(views)), max_kept_bytes)

    @property
    def kept_bytes(self) -> int:
        """The bytes of all cached views."""
        return self._kept.num_bytes

    @cached_property
    def _arguments(self) -> ArgumentForm:
        """How the model writes text in call arguments."""
        if not self._engine.tokenizer.markers.can_call:
            return AS_IT_IS
        try:
            return probe_arguments(self._render) or AS_JSON
        # Not every template shows calls.
        except ValueError:
            return AS_JSON

    def _render(self, messages: Sequence[Json]) -> str:
        tokenizer = self._engine.tokenizer
        given = to_harmony_messages(messages) if tokenizer.markers.is_harmony else list(messages)
        return tokenizer.decode(tokenizer.render_chat(given, end="messages"))

    def make(
        self, messages: Sequence[Json], tools: Sequence[Json], owner: str, views: Views
    ) -> Iterator[None]:
        """Add views to the list: cached ones at once, then new ones in slices, newest texts first.

        messages, tools: as chat templates expect them. owner: only views made for the same owner are reused.
        """
        missing: list[tuple[bytes, Source]] = []
        room_tokens = MAX_TOKENS
        for source in self._sources(messages, has_tools=bool(tools)):
            text, *how = source
            seed = f"{owner}\0{how}\0{text}".encode(errors="surrogatepass")
            key = hashlib.blake2b(seed, digest_size=16).digest()
            if (kept := self._kept.get(key)) is None:
                missing.append((key, source))
                # Room for new views, before cached ones of older texts: about a token for each character.
                room_tokens -= len(text)
            elif room_tokens >= (num_tokens := _count(kept)):
                views += kept
                room_tokens -= num_tokens
        room_tokens = MAX_TOKENS - _count(views)
        for key, source in missing:
            yield
            made: Views = []
            yield from self._make_texts(*source, made)
            self._kept.put(key, made)
            if (room_tokens := room_tokens - _count(made)) < 0:
                return
            views += made

    def _sources(self, messages: Sequence[Json], has_tools: bool) -> Iterator[Source]:
        """Yield the texts to make views of, the newest first."""
        arguments = self._arguments if has_tools else AS_IT_IS
        escapes = arguments if arguments.has_escapes else None
        for message in reversed(messages):
            for call in reversed(message.get("tool_calls", ())):
                given = call["function"]["arguments"]
                values = given.values() if isinstance(given, dict) else ()
                # The prompt already has a call's text as the next call would write it.
                yield from ((text, escapes is not None, None) for text in values if _is_long(text))
            text = message["content"]
            if message["role"] != "system" and _is_long(text):
                yield text, False, escapes

    def _make_texts(
        self, text: str, has_plain: bool, escapes: ArgumentForm | None, made: Views
    ) -> Iterator[None]:
        """Add a text in each form in which an answer may quote the files in it; see Source."""
        parts: list[list[str]] = []
        for lines in _cut_lines(text):
            read = read_shapes(lines)
            parts.append([read.plain if has_plain else read.cut])
            if escapes is not None:
                parts[-1].append(escapes.write(read.plain))
            yield
        for written in map("".join, zip(*parts, strict=True)):
            view = array("I")
            for chunk in _cut_words(written):
                view.extend(self._engine.tokenizer.encode_answer(chunk))
                yield
            if view:
                made.append(view)


def _count(views: Sequence[View]) -> int:
    """Count the tokens of views, plus an allowance for their containers."""
    return sum(16 + len(view) for view in views)


def _cut_lines(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        most = start + MAX_SLICE_CHARACTERS
        end = text.find("\n", start + SLICE_CHARACTERS, most) + 1 or min(most, len(text))
        line_end = start
        for _ in range(SLICE_LINES):
            if not (line_end := text.find("\n", line_end, end) + 1):
                break
        end = line_end or end
        yield text[start:end]
        start = end


def _cut_words(text: str) -> Iterator[str]:
    """Split a text before words within lines, where tokenizers split it too."""
    start = 0
    while start < len(text):
        most = start + MAX_SLICE_CHARACTERS
        match = _BEFORE_WORD.search(text, start + SLICE_CHARACTERS, most)
        end = match.start() if match else min(most, len(text))
        yield text[start:end]
        start = end
