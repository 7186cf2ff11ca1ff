"""Set keys in the text of a JSON, TOML or YAML file. All other text stays, including comments."""

import json
import re
import tomllib
from collections.abc import Mapping, MutableMapping
from typing import Any

import tomlkit
import yaml
from tomlkit.exceptions import TOMLKitError

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
_SPACE = re.compile(r"[\s,]*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_DECODER = json.JSONDecoder()


class TextError(ValueError):
    """A comment would be lost, or the text cannot be edited."""


def merge(held: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the given settings into the held ones.

    Tables are merged key by key. In a list of tables, one with the same "name" (or "displayName") is replaced
    in place, and others are appended. None removes a key. Any other value is replaced. Neither argument is
    changed.
    """
    merged = dict(held)
    for key, value in settings.items():
        before = held.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            merged[key] = merge(before if isinstance(before, Mapping) else {}, value)
        elif isinstance(before, list) and isinstance(value, list) and _are_named(value):
            merged[key] = _merge_named(before, value)
        else:
            merged[key] = value
    return merged


def _are_named(values: list[Any]) -> bool:
    return bool(values) and all(_name_of(value) is not None for value in values)


def _merge_named(held: list[Any], settings: list[Any]) -> list[Any]:
    by_name = {_name_of(value): value for value in settings}
    kept = [by_name.pop(_name_of(value), value) for value in held]
    return kept + list(by_name.values())


def _name_of(value: object) -> object:
    return value.get("name", value.get("displayName")) if isinstance(value, Mapping) else None


def plain(text: str) -> str:
    """Replace comments and trailing commas by spaces: JSON of the same length."""

    def blank(found: re.Match[str]) -> str:
        part = found[0]
        return part if part.startswith('"') else re.sub(r"[^\n]", " ", part)

    without = _TOKEN.sub(blank, text)
    return _TRAILING.sub(lambda found: found[1] or " ", without)


def set_json(text: str, settings: Mapping[str, Any]) -> str:
    """Return the text with the settings set.

    settings: values, in tables of any depth. A replaced value must contain no comment.
    Raises JSONDecodeError if the text is not JSON apart from comments and commas, and TextError.
    """
    held = json.loads(plain(text))
    if not isinstance(held, Mapping):
        raise TextError("it does not hold a table")
    expected = merge(held, settings)
    changed = _set_members(text, plain(text).index("{"), held, settings, 1)
    if json.loads(plain(changed)) != expected:
        raise TextError("it holds these settings in another form")
    return changed


def _set_members(
    text: str, opening: int, held: Mapping[str, Any], settings: Mapping[str, Any], depth: int
) -> str:
    """Return the text with settings set in the object that opens at an index. held: its content."""
    for key, value in reversed(list(settings.items())):
        spans = _members(plain(text), opening)
        before = held.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            text = _set_members(text, spans[key][0], before, value, depth + 1)
            continue
        new = merge(held, {key: value})[key]
        if key not in spans:
            text = _insert(text, opening, f"{json.dumps(key)}: {dump(new, depth)}", bool(spans), depth)
        elif new != before:
            start, end = spans[key]
            if plain(text)[start:end] != text[start:end]:
                raise TextError(f'the comments in "{key}" would be lost')
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
    """Insert a member at an object's beginning, after a comment on its opening line."""
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
    """Return a value as JSON. depth: its nesting, for indentation."""
    text = json.dumps(value, indent=2, ensure_ascii=False).replace("\n", "\n" + "  " * depth)
    # Half of a UTF-16 pair, which JSON may hold and no file can.
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found
    return found.end()


def set_toml(text: str, settings: Mapping[str, Any]) -> str:
    """Return the text with the settings set.

    settings: text, numbers, booleans and lists of them, in tables of any depth; None removes a key.
    Raises TOMLDecodeError if the text is not TOML, and TextError if it cannot be edited. The result is
    parsed again by another parser, so it is never wrong.
    """
    expected = merge(tomllib.loads(text), settings)
    try:
        document = tomlkit.parse(text)
        _set_table(document, settings)
        changed = tomlkit.dumps(document)
        is_right = tomllib.loads(changed) == expected
    except (TOMLKitError, tomllib.TOMLDecodeError):
        is_right = False
    if not is_right:
        raise TextError("it holds these settings in another form")
    return changed


def _set_table(table: MutableMapping[str, Any], settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        before = table.get(key)
        if isinstance(value, Mapping) and isinstance(before, MutableMapping):
            _set_table(before, value)
        elif isinstance(value, Mapping) and before is not None:
            raise TextError(f"its {key} is no table")
        elif value is None:
            table.pop(key, None)
        elif before != value:
            table[key] = merge({}, value) if isinstance(value, Mapping) else value


def set_yaml(text: str, settings: Mapping[str, Any]) -> str:
    """Return the text with the settings set.

    settings: values by the file's top-level keys. A replaced value must contain no comment.
    Raises YAMLError if the text is not YAML, and TextError.
    """
    held = yaml.safe_load(text)
    if not isinstance(held, Mapping):
        raise TextError("it does not hold a table")
    merged = merge(held, settings)
    changed = text if text.endswith("\n") else text + "\n"
    for key in settings:
        if key in held and held[key] == merged[key]:
            continue
        dumped = yaml.safe_dump({key: merged[key]}, sort_keys=False, allow_unicode=True)
        span = _span(changed, key)
        if span is None:
            changed += dumped
            continue
        start, end = span
        if _has_comments(changed[start:end]):
            raise TextError(f"the comments in {key} would be lost")
        changed = changed[:start] + dumped.rstrip() + changed[end:]
    if yaml.safe_load(changed) != merged:
        raise TextError("it holds these settings in another form")
    return changed


def _span(text: str, key: str) -> tuple[int, int] | None:
    """Return where a key and its value begin and end; None if it is not there.

    A one-line value ends before a comment on its line, any other with its last line.
    """
    node = yaml.compose(text)
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        raise TextError("it is written in braces")
    for name, value in node.value:
        if name.value == key:
            start = name.start_mark.index
            if value.start_mark.line == value.end_mark.line:
                return start, value.end_mark.index
            # A block's end is where the next token begins, after blank lines and comments of others.
            lines = text[start : value.end_mark.index].splitlines(keepends=True)
            while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
                lines.pop()
            return start, start + len("".join(lines).rstrip())
    return None


def _has_comments(text: str) -> bool:
    """Return whether there is a # outside of scalars, that is, a YAML comment."""
    rest = list(text)
    for token in yaml.scan(text):
        if isinstance(token, yaml.ScalarToken):
            start, end = token.start_mark.index, token.end_mark.index
            rest[start:end] = " " * (end - start)
    return "#" in rest
