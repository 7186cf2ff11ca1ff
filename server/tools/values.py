"""Convert models' values to JSON: literals, and text whose type comes from the parameter's schema."""

import re
from functools import cache
from typing import Any

from pydantic_core import from_json, to_json

from reprise.server.requests.fields import parse_finite
from reprise.server.requests.json_schema import list_of, target_of
from reprise.server.tools.formats import PYTHONIC, ListedFormat

STRING = frozenset({"string"})
GUESSED = frozenset({"string", "object", "array"})
"""The types of a value without a known type: JSON objects and arrays are recognized, all else is a string."""

STRING_OR_NULL = frozenset({"string", "null"})
_NESTED = frozenset({"object", "array"})
ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
NOT_STRING = ALL_TYPES - STRING
MAX_SIGNS = 2**16
"""Limit for the commas and opening brackets of JSON that is parsed at once, on the loop, in about 10 ms.

Long strings take hardly any time.
"""
MAX_LITERAL_CHARACTERS = 2**14
"""Limit for text that only Python's code reads, at once: the worst of that length takes about 10 ms."""

_MAX_DEPTH = 16
_JSON_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


def find_types(schema: object, root: dict[str, Any], depth: int = 0) -> frozenset[str] | None:
    """Return the JSON types that a schema allows; None if the schema does not restrict them.

    root: the document that the schema's references point into. depth: how deep the schema is nested.
    """
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    if (target := target_of(root, schema)) is not None:
        return find_types(target, root, depth + 1)
    kinds = schema.get("type")
    if isinstance(kinds, str | list):
        return frozenset([kinds] if isinstance(kinds, str) else map(str, kinds)) & ALL_TYPES or None
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset(map(_kind_of, values))
    for name in ("anyOf", "oneOf"):
        found = [find_types(choice, root, depth + 1) for choice in list_of(schema.get(name))]
        if found:
            return None if None in found else frozenset().union(*(types for types in found if types))
    for part in list_of(schema.get("allOf")):
        if (types := find_types(part, root, depth + 1)) is not None:
            return types
    return None


def _kind_of(value: object) -> str:
    return _JSON_NAMES.get(type(value), "null")


def to_json_value(text: str, types: frozenset[str]) -> str:
    """Convert a value's text to JSON of one of the types, or else to a JSON string."""
    if types != STRING:
        try:
            value = parse_json(text.strip())
        except ValueError:
            # Python's constants, too, in any case.
            value = _WORDS.get(text.strip().lower(), text)
            if types & _NESTED and (written := _nested_literal(text)) is not None:
                value = from_json(written)
        if isinstance(value, float) and value.is_integer() and "integer" in types:
            value = int(value)
        kind = _kind_of(value)
        if kind != "string" and (kind in types or (kind == "integer" and "number" in types)):
            return to_json(value).decode()
    return to_json(text).decode()


def guessed_to_json(text: str) -> str:
    """Convert a value's text to JSON: parse JSON and Python literals, and make anything else a string."""
    text = text.strip()
    constant = _CONSTANTS.get(text)
    if constant is not None:
        return constant
    return text if is_json(text) else _nested_literal(text) or to_json(text).decode()


def check_signs(text: str) -> None:
    """Raise ValueError if a text has more than MAX_SIGNS."""
    if len(text) > MAX_SIGNS and sum(map(text.count, ",[{")) > MAX_SIGNS:
        raise ValueError("too many values")


def parse_json(text: str) -> Any:
    """Parse JSON. Raises ValueError if it is none, has more than MAX_SIGNS, or a number that is too large."""
    check_signs(text)
    return parse_finite(text)


def is_json(text: str) -> bool:
    """Return whether parse_json() can parse a text."""
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _nested_literal(text: str) -> str | None:
    """Convert a Python dict or list literal to JSON; None if the text is neither."""
    text = text.strip()
    if not text.startswith(("{", "[")) or len(text) > MAX_LITERAL_CHARACTERS:
        return None
    written = convert_words(text, PYTHONIC)
    return written if written is not None and is_json(written) else None


def escape_entities(name: str) -> str:
    """Escape the quotes and ampersands in a name, so that it can stand between an attribute's quotes."""
    return name.replace("&", "&amp;").replace('"', "&quot;")


def unescape_entities(name: str) -> str:
    """Undo escape_entities()."""
    return name.replace("&quot;", '"').replace("&amp;", "&")


_HEX = "[0-9a-fA-F]"
_ESCAPE = re.compile(
    rf"\\(?:u(?P<high>[dD][89abAB]{_HEX}{{2}})\\u(?P<low>[dD][c-fC-F]{_HEX}{{2}})|u(?P<u>{_HEX}{{4}})"
    rf"|x(?P<x>{_HEX}{{2}})|U(?P<U>{_HEX}{{8}})|(?P<octal>[0-7]{{1,3}})|(?P<other>.))",
    re.DOTALL,
)
_PART_OF_ESCAPE = re.compile(
    rf"\\(?:u(?:{_HEX}{{,3}}|[dD][89abAB]{_HEX}{{2}}(?:\\(?:u{_HEX}{{,3}})?)?)|x{_HEX}?|U{_HEX}{{,7}}|[0-7]{{1,2}})?"
)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": ""}
_SIMPLE |= {sign: sign for sign in "\\\"'/"}
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_CONSTANTS |= {written: written for written in _CONSTANTS.values()}
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def unescape(text: str) -> tuple[str, int]:
    """Decode Python's or JSON's escape at the start of a text; return the result and the escape's length.

    As in Python, the backslash stays if this is no escape. The length is 0 if more text may belong to it.
    """
    if _PART_OF_ESCAPE.fullmatch(text) or (match := _ESCAPE.match(text)) is None:
        return "", 0
    try:
        return _character(match), match.end()
    except (ValueError, OverflowError):
        return match[0], match.end()


def _character(match: re.Match[str]) -> str:
    codes = [int(code, 16) for code in match.group("high", "low", "u", "x", "U") if code is not None]
    if match["octal"]:
        codes = [int(match["octal"], 8)]
    if not codes:
        return _SIMPLE.get(match["other"], match[0])
    # Halves of a character become one; a half without the other becomes U+FFFD.
    return "".join(map(chr, codes)).encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")


@cache
def _literals(layout: ListedFormat) -> re.Pattern[str]:
    """Return the parser of a literal's next token: a string, a word, or another character."""
    character = r"(?:\\.|[^\\])" if layout.is_python else "."
    strings = [
        f"{re.escape(q)}(?P<string{i}>{character}*?){re.escape(q)}" for i, q in enumerate(layout.quotes)
    ]
    # Possessive, and what is no name is skipped at once: hostile text must not take long.
    name = "" if layout.is_python else r"(?P<name>[^\s\[\]{}(),:]{1,256}+)(?=\s*:)|"
    rest = r"(?P<rest>[^\s\[\]{}(),:\"'<]++|.)"
    return re.compile(f"{'|'.join(strings)}|{name}(?P<word>[A-Za-z_][\\w.-]*)|{rest}", re.DOTALL)


def convert_words(text: str, layout: ListedFormat) -> str | None:
    """Convert a literal's words and strings to JSON; None if one has no meaning.

    The text may be a part of a literal that ends before or after one of the characters `,()[]{}`.
    """
    parts = []
    for match in _literals(layout).finditer(text):
        kind, found = match.lastgroup or "", match[match.lastgroup or 0]
        if kind.startswith("string"):
            parts.append(to_json(_unescape_all(found) if layout.is_python else found).decode())
        elif kind == "name":
            parts.append(to_json(found).decode())
        elif kind == "word":
            if found not in _CONSTANTS and layout.is_python:
                return None
            parts.append(_CONSTANTS.get(found) or to_json(found).decode())
        else:
            parts.append(found)
    return "".join(parts).strip()


def _unescape_all(text: str) -> str:
    parts, at = [], 0
    while (found := text.find("\\", at)) >= 0:
        character, length = unescape(text[found : found + 12] + ("" if found + 12 < len(text) else " " * 12))
        parts += [text[at:found], character]
        at = found + max(1, length)
    return "".join([*parts, text[at:]])
