"""Convert values as models write them to JSON: literals, and text whose type a parameter's schema decides."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic_core import from_json, to_json

from reprise.server.requests.json_schema import dict_of, list_of, target_of
from reprise.server.tools.formats import PYTHONIC, ListedFormat, OtherForm

Json = dict[str, Any]
STRING = frozenset({"string"})
GUESSED = frozenset({"string", "object", "array"})
"""The types of a value without a known type: JSON objects and arrays are recognized, all else is a string."""

NOT_STRING = frozenset({"number", "integer", "boolean", "null", "object", "array"})
STRING_OR_NULL = frozenset({"string", "null"})
_NESTED = frozenset({"object", "array"})
ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
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
    """Convert a value's text to JSON of one of the types, or to a JSON string if it has none of them."""
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
    """Convert a value's text to JSON: JSON and Python's literals as what they mean, else as a string."""
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
    """Parse JSON. Raises ValueError if it is none, or has more than MAX_SIGNS."""
    check_signs(text)
    return from_json(text, allow_inf_nan=False)


def is_json(text: str) -> bool:
    """Return whether parse_json() can parse a text."""
    try:
        parse_json(text)
    except ValueError:
        return False
    return True


def _nested_literal(text: str) -> str | None:
    """Return an object or a list in Python's notation as JSON; None if the text is none."""
    text = text.strip()
    if not text.startswith(("{", "[")) or len(text) > MAX_LITERAL_CHARACTERS:
        return None
    written = convert_words(text, PYTHONIC)
    return written if written is not None and is_json(written) else None


def escape_entities(name: str) -> str:
    """Escape the quotes and ampersands in a name, so that it can stand between an attribute's quotes."""
    return name.replace("&", "&amp;").replace('"', "&quot;")


def unescape_entities(name: str) -> str:
    """Undo escape_entities(): return the name that stands between an attribute's quotes."""
    return name.replace("&quot;", '"').replace("&amp;", "&")


_ESCAPE = re.compile(
    r"\\(?:u(?P<high>[dD][89abAB]..)\\u(?P<low>[dD][c-fC-F]..)|u(?P<u>....)|x(?P<x>..)|(?P<other>[^ux]))",
    re.DOTALL,
)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": ""}
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_CONSTANTS |= {written: written for written in _CONSTANTS.values()}
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def unescape(text: str) -> tuple[str, int]:
    """Decode the escape at the start of a text; return its character and its length in the text.

    The length is 0 if the escape is not complete yet.
    """
    is_high = re.match(r"\\u[dD][89abAB]", text) is not None
    if is_high and len(text) < 12 and "\\u".startswith(text[6:8]):
        return "", 0
    if (match := _ESCAPE.match(text)) is None:
        return "", 0
    try:
        return _character(match), match.end()
    except ValueError:
        return match[0], match.end()


def _character(match: re.Match[str]) -> str:
    if match["high"] is not None:
        units = (int(match["high"], 16), int(match["low"], 16))
        return b"".join(unit.to_bytes(2, "big") for unit in units).decode("utf-16-be")
    if (code := match["u"] or match["x"]) is not None:
        character = chr(int(code, 16))
        return "\ufffd" if "\ud800" <= character <= "\udfff" else character
    return _SIMPLE.get(match["other"], match["other"])


@cache
def _literals(layout: ListedFormat) -> re.Pattern[str]:
    """Return the parser of a literal's next token: a string, a word, or another character."""
    character = r"(?:\\.|[^\\])" if layout.has_escapes else "."
    strings = [
        f"{re.escape(q)}(?P<string{i}>{character}*?){re.escape(q)}" for i, q in enumerate(layout.quotes)
    ]
    # Possessive, and what is no name is skipped at once: hostile text must not take long.
    name = r"(?P<name>[^\s\[\]{}(),:]{1,256}+)(?=\s*:)|" if layout.has_bare_keys else ""
    rest = r"(?P<rest>[^\s\[\]{}(),:\"'<]++|.)"
    return re.compile(f"{'|'.join(strings)}|{name}(?P<word>[A-Za-z_][\\w.-]*)|{rest}", re.DOTALL)


def convert_words(text: str, layout: ListedFormat) -> str | None:
    """Write the words and strings of a literal as JSON has them; None if one has no meaning.

    The text may be a part of a literal that ends before or after one of the characters `,()[]{}`.
    """
    parts = []
    for match in _literals(layout).finditer(text):
        kind, found = match.lastgroup or "", match[match.lastgroup or 0]
        if kind.startswith("string"):
            parts.append(to_json(_unescape_all(found) if layout.has_escapes else found).decode())
        elif kind == "name":
            parts.append(to_json(found).decode())
        elif kind == "word":
            if found not in _CONSTANTS and not layout.has_bare_keys:
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


_NAMED = re.compile(r"\s*(?P<name>[\w.-]+)\s+(?P<arguments>\S.*)", re.DOTALL)
_PAIR = re.compile(
    r"\s*(?P<key>[^\s=\"']+)=(?:\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)'|(?P<bare>[^\s\"']*))(?!\S)"
)


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A tool call that the model wrote. arguments: a JSON object as text. id: the model's own, if any."""

    name: str
    arguments: str
    id: str | None = None


def read_other_forms(
    text: str, forms: tuple[OtherForm, ...], schemas: Mapping[str, dict[str, Any]]
) -> list[WrittenCall]:
    """Return the calls of a section in one of these forms, in order; empty if any of it is no call.

    schemas: the schemas of the arguments, by the names of the tools.
    """
    is_plain = "plain" in forms
    try:
        parsed = _loads(text)
    except ValueError:
        return _read_plain(text, schemas) if is_plain else []
    if ("list" if isinstance(parsed, list) else "object") not in forms:
        return []
    try:
        calls = parsed if isinstance(parsed, list) else [parsed]
        return [_call_of(_unwrapped(call) if is_plain else call) for call in calls]
    except ValueError:
        return []


def normalized(arguments: str) -> str:
    """Return a JSON object with the spaces that json.dumps() writes, unless it has too many values."""
    try:
        return _dumps(_loads(arguments))
    except ValueError:
        return arguments


def _loads(text: str) -> Any:
    """Parse JSON. Raises ValueError, also if it is nested too deep or has more than MAX_SIGNS."""
    check_signs(text)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _dumps(arguments: dict[str, Any]) -> str:
    """Return an object as JSON. Raises ValueError if JSON has no such number."""
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return text if _is_encodable(text) else json.dumps(arguments, allow_nan=False)


def _is_encodable(text: str) -> bool:
    """Return whether a text has no half of a UTF-16 pair (from a JSON escape), which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _call_of(call: Any) -> WrittenCall:
    if not isinstance(call, dict):
        raise ValueError("not an object")
    name, arguments, own_id = call.get("name"), call.get("arguments", {}), call.get("id")
    arguments = _loads(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(name, str) or not name or not _is_encodable(name) or not isinstance(arguments, dict):
        raise ValueError("not a call")
    has_id = isinstance(own_id, str) and own_id and _is_encodable(own_id)
    return WrittenCall(name, _dumps(arguments), own_id if has_id else None)


def _unwrapped(call: Any) -> Any:
    """Return a call that GLM has written within another object, or with the name under `function`."""
    if not isinstance(call, dict) or "name" in call:
        return call
    inner = call.get("tool", call.get("function"))
    return inner if isinstance(inner, dict) else call | {"name": inner}


def _read_plain(text: str, schemas: Mapping[str, dict[str, Any]]) -> list[WrittenCall]:
    """Return the call that is a name and an object, or a name and words like key=value; empty if none."""
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


def _pairs(text: str, schema: dict[str, Any]) -> Json:
    """Return the keys and values of words like key=value; empty if there is anything else."""
    properties = dict_of(schema.get("properties"))
    found: Json = {}
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
