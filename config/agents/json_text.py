"""Set keys in the text of a JSON file with comments and trailing commas. All other text stays."""

import json
import re
from collections.abc import Mapping
from typing import Any

from reprise.config.agents.merge import merge

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
_SPACE = re.compile(r"[\s,]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DECODER = json.JSONDecoder()


class JsonTextError(ValueError):
    """A comment would be lost, or the text is written in a way that cannot be edited."""


def plain(text: str) -> str:
    """Return the text with spaces in place of its comments and trailing commas: JSON of the same length."""

    def blank(found: re.Match[str]) -> str:
        part = found[0]
        return part if part.startswith('"') else re.sub(r"[^\n]", " ", part)

    without = _TOKEN.sub(blank, text)
    return _TRAILING.sub(lambda found: found[1] or " ", without)


def set_keys(text: str, settings: Mapping[str, Any]) -> str:
    """Return the text with the settings set.

    settings: values, in tables of any depth. A value that is replaced must have no comment within.
    Raises JSONDecodeError if the text is not JSON apart from comments and commas, and JsonTextError.
    """
    held = json.loads(plain(text))
    if not isinstance(held, Mapping):
        raise JsonTextError("it does not hold a table")
    expected = merge(held, settings)
    changed = _set(text, plain(text).index("{"), held, settings, 1)
    if json.loads(plain(changed)) != expected:
        raise JsonTextError("it holds these settings in another form")
    return changed


def _set(text: str, opening: int, held: Mapping[str, Any], settings: Mapping[str, Any], depth: int) -> str:
    """Return the text with settings set in the object that opens at a place. held: what it holds."""
    for key, value in reversed(list(settings.items())):
        spans = _members(plain(text), opening)
        before = held.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            text = _set(text, spans[key][0], before, value, depth + 1)
            continue
        new = merge(held, {key: value})[key]
        if key not in spans:
            text = _insert(text, opening, f"{json.dumps(key)}: {dump(new, depth)}", bool(spans), depth)
        elif new != before:
            start, end = spans[key]
            if plain(text)[start:end] != text[start:end]:
                raise JsonTextError(f'the comments in "{key}" would be lost')
            text = text[:start] + dump(new, depth) + text[end:]
    return text


def _members(text: str, opening: int) -> dict[str, tuple[int, int]]:
    """Return where the values of an object begin and end, by their keys. text: plain."""
    spans: dict[str, tuple[int, int]] = {}
    at = _skip(text, opening + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, text.index(":", at) + 1)
        _, at = _DECODER.raw_decode(text, start)
        spans[key] = start, at
        at = _skip(text, at)
    return spans


def _insert(text: str, opening: int, member: str, has_more: bool, depth: int) -> str:
    """Return the text with a member at an object's beginning, after a comment on the line of its brace."""
    at = opening + 1
    line, _, _ = text[at:].partition("\n")
    if line.strip().startswith("//") and not plain(text)[at : at + len(line)].strip():
        at += len(line)
    indent = "  " * depth
    rest = text[at:]
    end = "," if has_more else ""
    if not rest.startswith("\n"):
        end += "\n" + (indent if has_more else indent[2:])
        rest = rest.lstrip(" ")
    return f"{text[:at]}\n{indent}{member}{end}{rest}"


def dump(value: Any, depth: int = 0) -> str:
    """Return a value as JSON. depth: of the objects that it is in."""
    text = json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + "  " * depth)
    # Half of a UTF-16 pair, which JSON may hold and no file can.
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found
    return found.end()
