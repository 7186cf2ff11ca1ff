"""Read tool calls while the model writes them, in all formats of formats.py."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic_core import to_json

from reprise.engine.text.markers import Markers
from reprise.server.requests.json_schema import dict_of
from reprise.server.tools.formats import CallFormat, ListedFormat, TaggedFormat
from reprise.server.tools.values import (
    GUESSED,
    MAX_LITERAL_CHARACTERS,
    MAX_SIGNS,
    NOT_STRING,
    STRING,
    STRING_OR_NULL,
    check_signs,
    convert_words,
    find_types,
    guessed_to_json,
    is_json,
    to_json_value,
    unescape,
    unescape_entities,
)

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
    """Tracks whether partial JSON ends inside a string (is_open)."""

    def __init__(self) -> None:
        self.is_open = False
        self._escape = ""

    def feed(self, text: str) -> None:
        """Read the next piece of the JSON."""
        text = self._escape + text
        num_backslashes = len(text) - len(text.rstrip("\\"))
        self._escape = "\\" if num_backslashes % 2 else ""
        quotes = _QUOTE_OR_ESCAPE.findall(text).count('"')
        self.is_open ^= quotes % 2 == 1


MAX_PARTS = 4 * MAX_SIGNS
"""Limit for the parts of a literal, which are its words, signs and bits of strings."""

MAX_PENDING_CHARACTERS = 1024
"""Limit for text that is neither a name nor a value; beyond it the text is not a call."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call that the model wrote. arguments: a JSON object as text. id: the model's own, if any."""

    name: str
    arguments: str
    id: str | None = None


@dataclass(frozen=True, slots=True)
class OpenedCall:
    """The beginning of a call. id: the model's own, if any."""

    name: str
    id: str | None = None


CallFragment = OpenedCall | str | WrittenCall
"""The beginning of a call, the next bit of its arguments, as JSON, or a whole call."""

Schemas = Mapping[str, dict[str, Any]]
"""The schemas of the arguments, by the names of the tools."""


class Reader:
    """Reads the calls of one section.

    A call of an unknown tool is returned only when complete, since the text may turn out to be no call.

    num_closed: complete calls so far. is_open: whether a call has begun and not ended.
    is_broken: whether the section has text that the reader cannot read.
    """

    def __init__(self, call_format: CallFormat, schemas: Schemas) -> None:
        self.num_closed = 0
        self.is_broken = False
        self.is_open = False
        self._format = call_format
        self._schemas = schemas
        self._pending = ""
        self._trailing: list[str] = []
        self._unknown: OpenedCall | None = None
        self._held: list[str] = []
        self._fragments: list[CallFragment] = []

    @property
    def rest(self) -> str:
        """The unread text, without what closes the section."""
        rest = "".join((self._pending, *self._trailing))
        closing = self._format.closing
        return (
            rest.lstrip().removeprefix(closing) if closing and self.num_closed and not self.is_open else rest
        )

    @property
    def is_quoting(self) -> bool:
        """Whether the reader is within a value, so that a following marker would be a part of it."""
        raise NotImplementedError

    def feed(self, text: str) -> list[CallFragment]:
        """Read the next text of the section; return the fragments that are certain now."""
        if self._trailing:
            self._trailing.append(text)
            return []
        self._pending += text
        while not self.is_broken and self._pending and self._advance():
            pass
        fragments, self._fragments = self._fragments, []
        return fragments

    def read_other_forms(self, text: str) -> list[WrittenCall]:
        """Return the calls of a whole section that feed() cannot read; empty unless all of it is calls."""
        forms = self._format.other_forms
        is_plain = "plain" in forms
        try:
            parsed = _loads(text)
        except ValueError:
            return _read_plain(text, self._schemas) if is_plain else []
        if ("list" if isinstance(parsed, list) else "object") not in forms:
            return []
        try:
            calls = parsed if isinstance(parsed, list) else [parsed]
            return [_call_of(_unwrapped(call) if is_plain else call) for call in calls]
        except ValueError:
            return []

    def _advance(self) -> bool:
        raise NotImplementedError

    def _add(self, arguments: str) -> None:
        (self._fragments if self._unknown is None else self._held).append(arguments)

    def _open(self, pattern: re.Pattern[str]) -> str:
        """Read the beginning of a call; return its name, "" if there is more to come."""
        match = self._match(pattern)
        if match is None:
            return ""
        call = OpenedCall(match["name"], match.groupdict().get("id"))
        if call.name in self._schemas:
            self._fragments.append(call)
        elif self._format.needs_known_name:
            self.is_broken = True
            return ""
        else:
            self._unknown, self._held = call, []
        self.is_open = True
        return call.name

    def _close(self) -> None:
        if (call := self._unknown) is not None:
            self._unknown = None
            self._fragments.append(WrittenCall(call.name, normalized("".join(self._held)), call.id))
        self.is_open = False
        self.num_closed += 1

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Match the pending text and drop what matched; None if there is more to come."""
        match = pattern.match(self._pending)
        if match is not None:
            self._pending = self._pending[match.end() :]
        elif len(self._pending) > MAX_PENDING_CHARACTERS:
            if self.num_closed and not self.is_open:
                # No call follows.
                self._trailing, self._pending = [self._pending], ""
            else:
                self.is_broken = True
        return match


def is_object(text: str) -> bool:
    """Return whether a text is a JSON object."""
    return text.lstrip().startswith("{") and is_json(text)


def normalized(arguments: str) -> str:
    """Return a JSON object with the spaces that json.dumps() writes, unless it has too many values."""
    try:
        return _dumps(_loads(arguments))
    except ValueError:
        return arguments


def _loads(text: str) -> Any:
    """Parse JSON, whose strings may have raw line breaks and the like.

    Raises ValueError, also if it is nested too deep or has more than MAX_SIGNS.
    """
    check_signs(text)
    try:
        return json.loads(text, strict=False)
    except RecursionError:
        raise ValueError("nested too deep") from None


_HALF = re.compile("[\\ud800-\\udfff]")
"""Half of a UTF-16 pair, from a JSON escape, which UTF-8 cannot encode."""


def _dumps(arguments: dict[str, Any]) -> str:
    """Return an object as JSON. Raises ValueError if JSON has no such number."""
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return json.dumps(arguments, allow_nan=False) if _HALF.search(text) else text


def _call_of(call: Any) -> WrittenCall:
    if not isinstance(call, dict):
        raise ValueError("not an object")
    name, own_id = call.get("name"), call.get("id")
    # With other keys, an object's arguments stand somewhere else.
    without: Any = {} if call.keys() <= {"name", "id", "type"} else None
    arguments = call.get("arguments", call.get("parameters", without))
    arguments = _loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(name, str) or not name or _HALF.search(name) or not isinstance(arguments, dict):
        raise ValueError("not a call")
    has_id = isinstance(own_id, str) and own_id and not _HALF.search(own_id)
    return WrittenCall(name, _dumps(arguments), own_id if has_id else None)


def _unwrapped(call: Any) -> Any:
    """Unwrap a call that GLM wrote within another object, or with its name under `function`."""
    if not isinstance(call, dict) or "name" in call:
        return call
    inner = call.get("tool", call.get("function"))
    rest = {key: value for key, value in call.items() if key not in ("tool", "function")}
    return inner if isinstance(inner, dict) else rest | {"name": inner}


_NAMED = re.compile(r"\s*(?P<name>[\w.:/-]+)\s+(?P<arguments>\S.*)", re.DOTALL)
_PAIR = re.compile(
    r"\s*(?P<key>[^\s=\"']+)=(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^\s\"']*))(?!\S)"
)


def _read_plain(text: str, schemas: Schemas) -> list[WrittenCall]:
    """Read a call written as a name and an object, or a name and key=value words; empty if it is none."""
    match = _NAMED.fullmatch(text) if len(text) <= MAX_LITERAL_CHARACTERS else None
    if match is None:
        return []
    name, rest = match["name"], match["arguments"]
    if rest.startswith("{"):
        try:
            return [_call_of({"name": name, "arguments": json.loads(guessed_to_json(rest))})]
        except ValueError:
            return []
    pairs = _pairs(rest, schemas.get(name, {}))
    return [_call_of({"name": name, "arguments": pairs})] if pairs else []


def _pairs(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the keys and values of words like key=value; empty if there is anything else."""
    properties = dict_of(schema.get("properties"))
    found: dict[str, Any] = {}
    at, text = 0, text.rstrip()
    while at < len(text):
        if (match := _PAIR.match(text, at)) is None:
            return {}
        at = match.end()
        value = next(one for one in match.group("double", "single", "bare") if one is not None)
        types = find_types(properties.get(match["key"]), schema)
        written = guessed_to_json(value) if types is None else to_json_value(value, types)
        found[match["key"]] = json.loads(written)
    return found


def escaped(text: str) -> str:
    """Return a text escaped for a JSON string, without quotes around it."""
    return to_json(text).decode()[1:-1]


_JSON_MARK = re.compile(r'\\.|["{}\[\]\0-\x1f]|\\$', re.DOTALL)


def make_reader(call_format: CallFormat, schemas: Schemas) -> Reader:
    """Return a reader for one section of tool calls in the format."""
    if isinstance(call_format, TaggedFormat):
        return TaggedReader(call_format, schemas)
    if isinstance(call_format, ListedFormat):
        return ListedReader(call_format, schemas)
    return JsonReader(call_format, schemas)


class _ArgumentReader(Reader):
    """The base of readers of formats in which each argument has a name and a value."""

    _format: TaggedFormat | ListedFormat

    def __init__(self, call_format: TaggedFormat | ListedFormat, schemas: Schemas) -> None:
        super().__init__(call_format, schemas)
        self._schema: dict[str, Any] = {}
        self._keys: set[str] = set()
        self._has_object = False

    def _advance(self) -> bool:
        if not self.is_open:
            if name := self._open(self._format.head):
                self._schema, self._keys = self._schemas.get(name, {}), set()
                self._has_object = False
                self._add("{")
            return self.is_open
        if (match := self._format.key.match(self._pending)) is not None:
            self._pending = self._pending[match.end() :]
            self._start_value(match)
            return True
        if self._match(self._format.tail) is not None:
            self._add("}")
            self._close()
            return True
        return False

    def _start_value(self, match: re.Match[str]) -> None:
        """Store an argument's name; its value follows."""
        key = self._key(match)
        if key in self._keys:
            self.is_broken = True
            return
        self._add(f"{', ' if self._keys else ''}{to_json(key).decode()}: ")
        self._keys.add(key)

    def _key(self, match: re.Match[str]) -> str:
        return match["key"]


class ListedReader(_ArgumentReader):
    """Reads calls whose arguments are names and literals. See Reader.

    Strings are emitted as they arrive, other values once they are complete.
    """

    _format: ListedFormat

    def __init__(self, call_format: ListedFormat, schemas: Schemas) -> None:
        super().__init__(call_format, schemas)
        self._quote = ""
        self._value: list[str] | None = None
        self._depth = 0
        quotes = "|".join(map(re.escape, call_format.quotes))
        self._marks = re.compile(rf"{quotes}|[\[\](){{}},]")

    @property
    def is_quoting(self) -> bool:
        """See Reader."""
        return bool(self._quote)

    def _advance(self) -> bool:
        if self._quote:
            return self._read_string()
        return super()._advance() if self._value is None else self._read_value(self._value)

    def _start_value(self, match: re.Match[str]) -> None:
        super()._start_value(match)
        self._value, self._depth = [], 0

    def _read_string(self) -> bool:
        """Read a string: a value of its own, or a part of one."""
        add = self._add if self._value is None else self._value.append
        marks = (self._quote, "\\") if self._format.is_python else (self._quote,)
        found = find_first_marker(self._pending, marks)
        end = len(self._pending) - count_partial_marker(self._pending, marks) if found is None else found[0]
        if end:
            add(escaped(self._pending[:end]))
            self._pending = self._pending[end:]
        if found is None:
            return False
        if found[1] == self._quote:
            self._pending, self._quote = self._pending[len(self._quote) :], ""
            add('"')
            return True
        text, length = unescape(self._pending)
        if text:
            add(escaped(text))
        self._pending = self._pending[length:]
        return length > 0

    def _read_value(self, value: list[str]) -> bool:
        """Read a value up to its next delimiter, or find that it is a string."""
        if not value:
            self._pending = self._pending.lstrip()
        mark = self._marks.search(self._pending)
        if mark is None:
            # Words are read once it is certain where they end.
            self.is_broken = len(self._pending) > MAX_PENDING_CHARACTERS
            return False
        words, sign = self._pending[: mark.start()], mark[0]
        if not self._depth and sign in ",)}]":
            self._pending = self._pending[mark.start() :]
            self._end_value(value, words)
            return True
        self._pending = self._pending[mark.end() :]
        if sign in self._format.quotes:
            self._quote, written = sign, '"'
            if not value and not words:
                self._value = None
                self._add(written)
                return True
        else:
            self._depth += 1 if sign in "[{(" else -1 if sign in "]})" else 0
            written = sign
        converted = convert_words(words, self._format)
        self.is_broken = converted is None or len(value) > MAX_PARTS
        value += [converted, written] if converted else [written]
        return True

    def _end_value(self, value: list[str], words: str) -> None:
        """Add a value that is not a string. words: its end, or all of it."""
        self._value = None
        converted = convert_words(words, self._format)
        written = None if converted is None else "".join((*value, converted))
        if written is not None and is_json(written):
            self._add(written)
        elif not value and words.strip():
            # Text that should have quotes.
            self._add(to_json(words.strip()).decode())
        else:
            self.is_broken = True


class JsonReader(Reader):
    """Reads calls whose arguments are a JSON object. See Reader.

    Control characters in strings, which JSON does not allow, are escaped.
    """

    is_quoting = False

    def __init__(self, call_format: CallFormat, schemas: Schemas) -> None:
        super().__init__(call_format, schemas)
        self._arguments: list[str] | None = None
        self._depth = 0

    def _advance(self) -> bool:
        if self._arguments is not None:
            return self._read_arguments(self._arguments)
        if self.is_open:
            if self._match(self._format.tail) is not None:
                self._close()
                return True
            return False
        if self._open(self._format.head):
            self._arguments, self._depth = [], 0
        return self.is_open

    def _read_arguments(self, arguments: list[str]) -> bool:
        text = self._pending
        start, end, mended = 0, len(text), list[str]()
        for mark in _JSON_MARK.finditer(text):
            match mark[0]:
                case '"':
                    self.is_quoting = not self.is_quoting
                case "{" | "[" if not self.is_quoting:
                    self._depth += 1
                case "}" | "]" if not self.is_quoting:
                    self._depth -= 1
                case "\\":
                    # The character that it escapes is yet to come.
                    end = mark.start()
                case control if control < " " and self.is_quoting:
                    mended += [text[start : mark.start()], escaped(control)]
                    start = mark.end()
            if not self._depth:
                end = mark.end()
                break
        self._pending = text[end:]
        if read := "".join([*mended, text[start:end]]):
            arguments.append(read)
            self._add(read)
        if self._depth:
            return False
        self._arguments = None
        if not is_object("".join(arguments)):
            self.is_broken = True
        elif not self._format.tail.pattern:
            self._close()
        return True


class TaggedReader(_ArgumentReader):
    """Reads calls in which each argument has tags of its own. See Reader.

    Strings are emitted as they arrive. A value that may have another type is converted once it is complete.
    """

    _format: TaggedFormat

    def __init__(self, call_format: TaggedFormat, schemas: Schemas) -> None:
        super().__init__(call_format, schemas)
        self._types: frozenset[str] | None = None
        self._value: list[str] = []
        self._has_started_value = False
        self._is_quoted = False
        self._is_in_object = False

    @property
    def is_quoting(self) -> bool:
        """See Reader."""
        return self._types is not None or self._is_in_object

    def _advance(self) -> bool:
        if self._is_in_object:
            return self._read_object()
        if self._types is not None:
            return self._read_value(self._types)
        head = self._format.object_head
        if head is not None and self.is_open and (match := head.match(self._pending)) is not None:
            self._pending = self._pending[match.end() :]
            self._value, self._is_in_object = [], True
            return True
        return super()._advance()

    def _read_object(self) -> bool:
        """Read all arguments as one JSON object with braces."""
        end = self._format.object_end
        before, found, after = self._pending.partition(end)
        if not found:
            certain = len(before) - count_partial_marker(before, (end,))
            before, after = before[:certain], before[certain:]
        self._value.append(before)
        self._pending = after
        if not found:
            return False
        written = "".join(self._value).strip()
        self.is_broken = bool(self._keys) or self._has_object or not is_object(written)
        self._is_in_object, self._has_object = False, True
        self._add(written[1:-1])
        return True

    def _key(self, match: re.Match[str]) -> str:
        return unescape_entities(match["key"]) if self._format.has_entities else match["key"].strip()

    def _start_value(self, match: re.Match[str]) -> None:
        super()._start_value(match)
        self.is_broken |= self._has_object
        self._types = self._find_types(match)
        self._value, self._has_started_value, self._is_quoted = [], False, False

    def _find_types(self, match: re.Match[str]) -> frozenset[str]:
        """Return the types that a value may have: as its tag says, or as the tool's schema does."""
        if "is_text" in match.re.groupindex:
            return STRING if match["is_text"] in ("true", "string", None) else NOT_STRING
        if self._unknown is not None:
            return GUESSED if self._format.guesses_json else STRING_OR_NULL
        known = dict_of(self._schema.get("properties")).get(self._key(match))
        return find_types(known, self._schema) or GUESSED

    def _read_value(self, types: frozenset[str]) -> bool:
        layout = self._format
        if not self._has_started_value and not self._start_text(types):
            return False
        end = layout.value_end.strip("\n")
        end = layout.quotes[1] + end if layout.quotes and self._is_quoted else end
        is_stripped = layout.quotes is not None and not self._is_quoted
        at = self._pending.find(end)
        if at < 0:
            # Hold back what may be the tag, and the whitespace before it.
            ends = (f"\n{end}", end) if layout.has_breaks else (end,)
            certain = len(self._pending) - count_partial_marker(self._pending, ends)
            self._take_value(types, len(self._pending[:certain].rstrip()) if is_stripped else certain)
            return False
        text = self._pending[:at]
        self._pending = self._pending[at + len(end) :]
        text = text.removesuffix("\n") if layout.has_breaks else text
        text = text.rstrip() if is_stripped else text
        if types == STRING:
            self._add(f'{escaped(text)}"')
        else:
            self._add(self._converted("".join([*self._value, text]), types))
        self._types = None
        return True

    def _converted(self, text: str, types: frozenset[str]) -> str:
        if types == GUESSED and self._format.guesses_json:
            is_string = text.strip().startswith('"') and is_json(text.strip())
            if self._unknown is not None or is_string:
                return guessed_to_json(text)
        return to_json_value(text, types)

    def _start_text(self, types: frozenset[str]) -> bool:
        """Drop the space before a value; return whether the value has begun."""
        if self._format.has_breaks:
            self._pending = self._pending.removeprefix("\n")
        if self._format.quotes is not None:
            opening = self._format.quotes[0]
            self._pending = self._pending.lstrip()
            self._is_quoted = self._pending.startswith(opening)
            if not self._is_quoted and opening.startswith(self._pending):
                return False
            self._pending = self._pending.removeprefix(opening)
        self._has_started_value = True
        if types == STRING:
            self._add('"')
        return True

    def _take_value(self, types: frozenset[str], end: int) -> None:
        text, self._pending = self._pending[:end], self._pending[end:]
        if text and types == STRING:
            self._add(escaped(text))
        elif text:
            self._value.append(text)


@dataclass(frozen=True, slots=True)
class BareCalls:
    """The strings with which a call without its start marker begins and ends.

    starts: the beginnings of calls of the request's tools, up to the first argument or the end of the call,
        since a mere mention of a function is text. They count only at the start of a line.
    """

    prefix: ClassVar = "<function="
    end: ClassVar = "</function>"
    starts: frozenset[str]

    def starts_in(self, text: str) -> list[str]:
        """Return the strings, preceded by a line break, that may begin a bare call in a text.

        Empty if no line of the text begins with prefix, or may yet begin with it.
        """
        start = f"\n{self.prefix}"
        if start not in text and not count_partial_marker(text, [start]):
            return []
        return [f"\n{one}" for one in self.starts]


def bare_calls(markers: Markers, names: Collection[str]) -> BareCalls | None:
    """Return the form of calls without a start marker; None if this format's look like text.

    names: the names of the request's tools.
    """
    if markers.call_format != "qwen3_coder" or not names:
        return None
    heads = [f"{BareCalls.prefix}{name}>{space}" for name in names for space in ("", "\n")]
    return BareCalls(frozenset(head + after for head in heads for after in ("<parameter=", BareCalls.end)))
