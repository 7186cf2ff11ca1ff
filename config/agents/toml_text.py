"""Set keys in the text of a TOML file. All other lines stay, comments too."""

import tomllib
from collections.abc import Mapping, MutableMapping
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from reprise.config.agents.merge import merge


class TomlTextError(ValueError):
    """The text is written in a way that cannot be edited."""


def set_keys(text: str, settings: Mapping[str, Any]) -> str:
    """Return the text with the settings set.

    settings: text, numbers, booleans and lists of them, in tables of any depth.
    Raises TOMLDecodeError if the text is not TOML, and TomlTextError if it cannot be edited. The result is
    parsed again by another parser, so it is never wrong.
    """
    expected = merge(tomllib.loads(text), settings)
    try:
        document = tomlkit.parse(text)
        _set(document, settings)
        changed = tomlkit.dumps(document)
        is_right = tomllib.loads(changed) == expected
    except (TOMLKitError, tomllib.TOMLDecodeError):
        is_right = False
    if not is_right:
        raise TomlTextError("it holds these settings in another form")
    return changed


def _set(table: MutableMapping[str, Any], settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        before = table.get(key)
        if isinstance(value, Mapping) and isinstance(before, MutableMapping):
            _set(before, value)
        elif isinstance(value, Mapping) and before is not None:
            raise TomlTextError(f"its {key} is no table")
        elif before != value:
            table[key] = value
