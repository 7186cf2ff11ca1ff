"""Set keys in the text of a TOML file. All other lines stay, comments too."""

import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from reprise.config.agents.merge import merge

_HEADER = re.compile(r"\s*\[")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class TomlTextError(ValueError):
    """The text is written in a way that cannot be edited line by line."""


def set_keys(text: str, settings: Mapping[str, Any]) -> str:
    """Return the text with the settings set.

    settings: text, numbers and booleans, in tables of any depth.
    Raises TOMLDecodeError if the text is not TOML, and TomlTextError if the text has these settings in a form
    that is not edited here (an inline table, a dotted key). The result is parsed again, so it is never wrong.
    """
    expected = merge(tomllib.loads(text), settings)
    lines = text.splitlines()
    for path, values in _tables((), settings):
        start, end = _find_table(lines, path)
        for key, value in values.items():
            line = f"{_written(key)} = {json.dumps(value, ensure_ascii=False)}"
            found = [
                at for at in range(start, end) if re.match(rf"\s*{re.escape(_written(key))}\s*=", lines[at])
            ]
            if found:
                lines[found[0]] = line
            else:
                lines.insert(end, line)
                end += 1
    changed = "\n".join(lines) + "\n"
    try:
        is_right = tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise TomlTextError("it holds these settings in another form, such as inline tables")
    return changed


def _tables(
    path: tuple[str, ...], settings: Mapping[str, Any]
) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    values = {key: value for key, value in settings.items() if not isinstance(value, Mapping)}
    found = [(path, values)] if values else []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            found += _tables((*path, key), value)
    return found


def _find_table(lines: list[str], path: tuple[str, ...]) -> tuple[int, int]:
    """Return the first and last line of a table's keys, as a range; add its header if there is none."""
    start = 0
    if path:
        header = f"[{'.'.join(map(_written, path))}]"
        heads = [at for at, line in enumerate(lines) if line.partition("#")[0].strip() == header]
        if not heads:
            lines += ["", header] if lines else [header]
            return len(lines), len(lines)
        start = heads[0] + 1
    end = next((at for at in range(start, len(lines)) if _HEADER.match(lines[at])), len(lines))
    last = end
    while last > start and not lines[last - 1].strip():
        last -= 1
    return start, last


def _written(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False)
