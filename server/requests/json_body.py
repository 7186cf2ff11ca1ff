"""Parse and validate request bodies, within limits."""

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from reprise.engine.interface.spans import span
from reprise.server.errors import BadRequestError
from reprise.server.requests.fields import MAX_FIELDS, AcceptsPeerFields, Notes, parse_finite, validate
from reprise.server.requests.peer_fields import translate_fields

FRAGMENT_BYTES = 2**18
FRAGMENT_VALUES = 20_000
"""Limits of a fragment: a few milliseconds of parsing."""
MAX_DEPTH = 200
_WHOLE_CHARACTERS = re.compile(
    rb"(?:[^\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}"
    rb"(?:\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?=[^\\]|\\[^u]|\\u(?![dD][c-fC-F])[0-9a-fA-F]{2})))*+"
)
"""As much of a text as does not end within an escape sequence, or between the halves of a character."""
_LONGEST_ESCAPE = 12
_OPENING, _CLOSING = b"[{", b"]}"
_QUOTE, _COLON, _COMMA = b'":,'


class Outline:
    """The positions of an unparsed body's brackets, commas and colons outside of strings.

    at: (n,) byte positions. kinds: (n,) the characters there. depths: (n,) the brackets open around each.
    num_values: an estimate. is_closed: whether every string and bracket is closed.
    The constructor raises UnicodeDecodeError.
    """

    def __init__(self, body: bytes, fragment_bytes: int = FRAGMENT_BYTES) -> None:
        is_structure = np.zeros(256, bool)
        is_structure[list(_OPENING + _CLOSING + bytes((_COLON, _COMMA)))] = True
        decoder = codecs.getincrementaldecoder("utf-8")()
        found: list[npt.NDArray[np.int64]] = []
        start, is_inside = 0, False
        while start < len(body):
            window = body[start : start + fragment_bytes]
            if (len(window) - len(window.rstrip(b"\\"))) % 2 and len(window) == fragment_bytes:
                window = window[:-1]
            try:
                decoder.decode(window, final=start + len(window) == len(body))
            except UnicodeDecodeError as fault:
                at = start + fault.start, start + fault.end
                raise UnicodeDecodeError(fault.encoding, b"", *at, fault.reason) from None
            text = np.frombuffer(window.replace(rb"\\", b"__").replace(rb"\"", b"__"), np.uint8)
            inside = np.logical_xor.accumulate(text == _QUOTE) ^ is_inside
            found.append(np.flatnonzero(is_structure[text] & ~inside) + start)
            is_inside = bool(inside[-1])
            start += len(window)
        self.at = np.concatenate(found) if found else np.zeros(0, np.int64)
        self.kinds = np.frombuffer(body, np.uint8)[self.at]
        opens = np.isin(self.kinds, list(_OPENING))
        after = np.cumsum(opens.astype(np.int64) - np.isin(self.kinds, list(_CLOSING)))
        self.depths = after - opens
        self.num_containers, self.num_members = int(opens.sum()), int((self.kinds == _COLON).sum())
        self.num_values = self.num_containers + int((self.kinds == _COMMA).sum())
        self.is_closed = not is_inside and (not len(after) or bool(after[-1] == 0 and after.min() >= 0))


@dataclass(frozen=True)
class FragmentParser:
    """Parses JSON fragment by fragment. parse_fragment: parses the text of one, or raises ValueError."""

    body: bytes
    outline: Outline
    parse_fragment: Callable[[str], Any]
    fragment_bytes: int = FRAGMENT_BYTES
    fragment_values: int = FRAGMENT_VALUES

    def parse(self) -> Any:
        """Return the body's value. Raises ValueError if it is not JSON."""
        if not self.outline.is_closed:
            raise ValueError("a string, an array or an object is not closed")
        return self._value(0, len(self.body), 0, len(self.outline.at))

    def _value(self, start: int, end: int, first: int, last: int) -> Any:
        """Return the value at body[start:end], whose structure is outline[first:last]."""
        if end - start <= self.fragment_bytes and last - first <= self.fragment_values:
            return self._fragment(start, end)
        if first == last:
            return self._long_text(start, end)
        opening, closing = int(self.outline.at[first]), int(self.outline.at[last - 1])
        kind = _OPENING.find(self.body[opening])
        is_pair = kind >= 0 and _CLOSING[kind] == self.body[closing]
        if not is_pair or not self._is_blank(start, opening) or not self._is_blank(closing + 1, end):
            raise ValueError(f"invalid structure near byte {start}")
        if last - first == 2 and self._is_blank(opening + 1, closing):
            return {} if _OPENING[kind] == ord("{") else []
        return self._object(first, last) if _OPENING[kind] == ord("{") else self._array(first, last)

    def _array(self, first: int, last: int) -> list[Any]:
        made: list[Any] = []
        for start, end, inner_first, inner_last, is_small in self._groups(first, last):
            if is_small:
                made += self._fragment(start, end, b"[", b"]")
            else:
                made.append(self._value(start, end, inner_first, inner_last))
        return made

    def _object(self, first: int, last: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for start, end, colon, inner_last, is_small in self._groups(first, last):
            if is_small:
                made |= self._fragment(start, end, b"{", b"}")
                continue
            if colon == inner_last or self.outline.kinds[colon] != _COLON:
                raise ValueError(f"a member without a name near byte {start}")
            at = int(self.outline.at[colon])
            key = self._value(start, at, colon, colon)
            if not isinstance(key, str):
                raise ValueError(f"a name that is not a string near byte {start}")
            made[key] = self._value(at + 1, end, colon + 1, inner_last)
        return made

    def _groups(self, first: int, last: int) -> list[tuple[int, int, int, int, bool]]:
        """Yield a container's elements in fragments; a large element is alone.

        For each fragment: start and end in the body, first and last of its structure, and whether it is
        small.
        """
        outline = self.outline
        depth = outline.depths[first] + 1
        inner = slice(first + 1, last - 1)
        is_comma = (outline.kinds[inner] == _COMMA) & (outline.depths[inner] == depth)
        commas = np.flatnonzero(is_comma) + first + 1
        firsts = np.concatenate(([first], commas)) + 1
        lasts = np.concatenate((commas, [last - 1]))
        starts, ends = outline.at[firsts - 1] + 1, outline.at[lasts]
        groups, at = [], 0
        while at < len(starts):
            by_size = int(np.searchsorted(ends, starts[at] + self.fragment_bytes, "right"))
            by_count = int(np.searchsorted(lasts, firsts[at] + self.fragment_values, "right"))
            after = max(at + 1, min(by_size, by_count))
            is_small = min(by_size, by_count) > at
            place = int(starts[at]), int(ends[after - 1]), int(firsts[at]), int(lasts[after - 1])
            groups.append((*place, is_small))
            at = after
        return groups

    def _long_text(self, start: int, end: int) -> Any:
        """Return a value that is neither an array nor an object; a string in slices of whole characters."""
        text = self.body
        start, end = self._without_blanks(start, end)
        if end - start <= self.fragment_bytes:
            return self.parse_fragment(text[start:end].decode())
        if text[start] != _QUOTE or text[end - 1] != _QUOTE:
            raise ValueError(f"neither a string nor a number near byte {start}")
        parts, at, last = [], start + 1, end - 1
        while at < last:
            cut = min(last, at + self.fragment_bytes)
            while cut < last and text[cut] & 0xC0 == 0x80:
                cut -= 1
            whole = _WHOLE_CHARACTERS.match(text, at, cut)
            if whole and cut < last and cut - _LONGEST_ESCAPE < whole.end():
                cut = whole.end()
            parts.append(self.parse_fragment(f'"{text[at:cut].decode()}"'))
            at = cut
        return "".join(parts)

    def _is_blank(self, start: int, end: int) -> bool:
        return self._without_blanks(start, end)[0] >= end

    def _without_blanks(self, start: int, end: int) -> tuple[int, int]:
        """Return start and end without surrounding white space. Copies little at a time."""
        while start < end:
            window = self.body[start : min(end, start + self.fragment_bytes)]
            left = window.lstrip()
            start += len(window) - len(left)
            if left:
                break
        while start < end:
            window = self.body[max(start, end - self.fragment_bytes) : end]
            left = window.rstrip()
            end -= len(window) - len(left)
            if left:
                break
        return start, end

    def _fragment(self, start: int, end: int, opening: bytes = b"", closing: bytes = b"") -> Any:
        text = self.body[start:end]
        if opening and not text.strip():
            raise ValueError(f"nothing between two commas near byte {start}")
        try:
            return self.parse_fragment((opening + text + closing).decode())
        except ValueError as fault:
            said = re.sub(r" at line .*", "", str(fault))
            raise ValueError(f"{said} near byte {start}") from None


ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_VALUES, MAX_CONTAINERS, MAX_MEMBERS = 1_000_000, 100_000, 100_000
"""Limits of a body. Millions of values take gigabytes, and seconds for which the GIL is held."""
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rf"((?<!\\)(?:\\\\)*)(?:{_HIGH}(?!{_LOW})|(?<!{_HIGH}){_LOW})")
"""Half of a character of JavaScript: agents leave one where they cut a text in the middle of an emoji."""


@span("bodies")
def parse_liberally(body: bytes, model: type[ModelT], names: dict[str, str], notes: Notes) -> ModelT:
    """Parse a body that may have other servers' fields. names: see translate_fields().

    notes: records parts that are left out, or understood in another form. Raises BadRequestError.
    """
    given = _parse(body, notes)
    if issubclass(model, AcceptsPeerFields):
        given, ignored = translate_fields(given, model.field_names(), names)
        for name in ignored:
            notes.left_out(name, is_peers=True)
    return validate(given, model, notes)


def _parse(body: bytes, notes: Notes) -> dict[str, Any]:
    """Parse a body; replace lone surrogates. Raises BadRequestError unless it is an object within limits."""
    parse_fragment = partial(_from_json, notes)
    body = body.removeprefix(codecs.BOM_UTF8)
    try:
        if len(body) <= FRAGMENT_BYTES:
            given = parse_fragment(body.decode())
        else:
            outline = Outline(body)
            check_counts(outline)
            given = FragmentParser(body, outline, parse_fragment).parse()
    except UnicodeDecodeError as fault:
        message = f"The request body is not valid UTF-8 (at byte {fault.start})."
        raise BadRequestError(message, code="invalid_utf8") from None
    except ValueError as fault:
        if "recursion limit" in str(fault):
            raise _too_deep() from None
        raise BadRequestError(f"The request body is not valid JSON: {fault}.", code="invalid_json") from None
    if not isinstance(given, dict):
        raise BadRequestError("The request body must be a JSON object.", code="invalid_type")
    if len(given) > MAX_FIELDS:
        message = f"The request body has {len(given)} members; at most {MAX_FIELDS} are allowed."
        raise BadRequestError(message, code="invalid_value")
    return given


def _from_json(notes: Notes, text: str) -> Any:
    try:
        return parse_finite(text)
    except ValueError as fault:
        mended = _LONE.sub(r"\1\\ufffd", text) if "hex escape" in str(fault) else text
        if notes.refuses or mended == text:
            raise
        notes.understood("lone surrogates")
        return parse_finite(mended)


def check_values(text: bytes) -> None:
    """Refuse JSON that has too many values, before it is parsed. Raises BadRequestError."""
    # The cheap count first: most have few brackets and commas, even including those inside strings.
    num_containers = text.count(b"[") + text.count(b"{")
    has_many = num_containers > MAX_CONTAINERS or text.count(b":") > MAX_MEMBERS
    if has_many or num_containers + text.count(b",") > MAX_VALUES:
        check_counts(Outline(text))


def check_counts(outline: Outline) -> None:
    """Refuse JSON that has too many values or is nested too deeply. Raises BadRequestError."""
    has_many = outline.num_containers > MAX_CONTAINERS or outline.num_members > MAX_MEMBERS
    if has_many or outline.num_values > MAX_VALUES:
        raise BadRequestError(
            f"The JSON in the request body has more than {MAX_VALUES} values, more than {MAX_CONTAINERS} "
            f"arrays and objects, or more than {MAX_MEMBERS} members of objects. Send a smaller body.",
            code="json_too_large",
        )
    if len(outline.depths) and outline.depths.max() >= MAX_DEPTH:
        raise _too_deep()


def _too_deep() -> BadRequestError:
    message = "The JSON in the request body is nested too deeply. Flatten it."
    return BadRequestError(message, code="json_too_deep")
