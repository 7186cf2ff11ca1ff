"""Read an agent's configuration file, and render it with settings merged into it."""

import json
import tomllib
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any

import yaml

from config.agents.known import AgentFile
from config.agents.merge import merge
from config.agents.toml_text import TomlTextError, set_keys


class ConfigFileError(Exception):
    """A file that cannot be read or written, or that could not be merged into without a loss."""


def render(file: AgentFile, text: str | None) -> str:
    """Return the file's text with the settings merged into it.

    text: what the file holds; None if there is none.
    Raises ConfigFileError if the text cannot be parsed, or if writing it again would lose comments.
    """
    if text is None or not text.strip():
        settings = {**file.new_file, **file.settings}
        return set_keys("", settings) if file.format == "toml" else _dump(file, settings)
    try:
        if file.format == "toml":
            return set_keys(text, file.settings)
        held = json.loads(text) if file.format == "json" else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        reason = f"it is not plain JSON: {error}"
        if "//" in text or "/*" in text:
            reason = f"it has comments, which would be lost, or is not JSON: {error}"
        raise _refusal(file, reason) from None
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        reason = f"it is not valid {file.format.upper()}: {str(error).splitlines()[0]}"
        raise _refusal(file, reason) from None
    except TomlTextError as error:
        raise _refusal(file, str(error)) from None
    if not isinstance(held, Mapping):
        raise _refusal(file, "it does not hold a table")
    if file.format == "yaml" and _has_comments(text):
        raise _refusal(file, "it has comments, which would be lost")
    merged = merge(held, file.settings)
    return text if merged == held else _dump(file, merged)


def difference(path: Path, before: str | None, after: str) -> str:
    """Return a unified diff, empty if the texts are equal."""
    old = [] if before is None else before.splitlines()
    name = "/dev/null" if before is None else str(path)
    return "\n".join(unified_diff(old, after.splitlines(), name, str(path), lineterm=""))


def read(path: Path) -> str | None:
    """Return the file's text, or None if there is none. Raises ConfigFileError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"cannot read {path}: {error}") from None


def write(path: Path, text: str) -> None:
    """Write the file. A new one can be read by its owner alone, since it may hold a key.

    Raises ConfigFileError if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigFileError(f"cannot write {path}: {error.strerror}") from None


def _refusal(file: AgentFile, reason: str) -> ConfigFileError:
    return ConfigFileError(
        f"~/{file.path} is left as it is: {reason}. Add the settings by hand, as shown without --write"
    )


def _dump(file: AgentFile, settings: Mapping[str, Any]) -> str:
    if file.format == "json":
        return json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    return str(yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True))


def _has_comments(text: str) -> bool:
    """Find a # outside of scalars, which is where YAML's comments are."""
    rest = list(text)
    for token in yaml.scan(text):
        if isinstance(token, yaml.ScalarToken):
            start, end = token.start_mark.index, token.end_mark.index
            rest[start:end] = " " * (end - start)
    return "#" in rest
