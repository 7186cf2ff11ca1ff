"""Read whole sections in which models write calls in another form than their format's own.

A section is read at once, on the event loop, so it must not have more values than MAX_SIGNS allows.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from reprise.server.tools.formats import OtherForm
from reprise.server.tools.values import (
    MAX_LITERAL_CHARACTERS,
    check_signs,
    find_types,
    guessed_to_json,
    to_json_value,
)

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
    """Return an object's call. Raises ValueError if it is none."""
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
    pairs = dict(_pairs(rest, schemas.get(name, {})))
    return [_call_of({"name": name, "arguments": pairs})] if pairs and None not in pairs else []


def _pairs(text: str, schema: dict[str, Any]) -> Iterator[tuple[str | None, Any]]:
    """Yield the keys and values of words like key=value; a key of None if there is anything else."""
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    at, text = 0, text.rstrip()
    while at < len(text):
        if (match := _PAIR.match(text, at)) is None:
            yield None, None
            return
        at = match.end()
        value = next(found for found in match.group("double", "single", "bare") if found is not None)
        types = find_types(properties.get(match["key"]), schema)
        written = guessed_to_json(value) if types is None else to_json_value(value, types)
        yield match["key"], json.loads(written)
