"""Read an agent's configuration file, and render it with settings merged into it."""

import json
import tomllib
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any

import yaml

from reprise.config.agents import json_text, toml_text, yaml_text
from reprise.config.agents.json_text import JsonTextError
from reprise.config.agents.known import AgentFile
from reprise.config.agents.merge import merge
from reprise.config.agents.toml_text import TomlTextError
from reprise.config.agents.yaml_text import YamlTextError


class ConfigFileError(Exception):
    """A file that cannot be read or written, or that could not be merged into without a loss."""


def render(file: AgentFile, text: str | None) -> str:
    """Return the file's text with the settings merged into it.

    text: the file's present text; None without a file.
    Comments stay. Raises ConfigFileError if the text cannot be parsed, or if a comment would be lost.
    """
    if text is None or not text.strip():
        settings = {**file.new_file, **file.settings}
        return toml_text.set_keys("", settings) if file.format == "toml" else _dump(file, settings)
    try:
        return _set_keys(file, text)
    except json.JSONDecodeError as error:
        raise _refusal(file, f"it is not valid JSON: {error}") from None
    except (tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        reason = f"it is not valid {file.format.upper()}: {str(error).splitlines()[0]}"
        raise _refusal(file, reason) from None
    except (TomlTextError, JsonTextError, YamlTextError) as error:
        raise _refusal(file, str(error)) from None


def _set_keys(file: AgentFile, text: str) -> str:
    if file.format == "toml":
        return toml_text.set_keys(text, file.settings)
    if file.format == "yaml":
        return yaml_text.set_keys(text, file.settings)
    try:
        held = json.loads(text)
    except json.JSONDecodeError:
        return json_text.set_keys(text, file.settings)
    if not isinstance(held, Mapping):
        raise JsonTextError("it does not hold a table")
    merged = merge(held, file.settings)
    return text if merged == held else _dump(file, merged)


def difference(path: Path, before: str | None, after: str) -> str:
    """Return a unified diff, empty if the texts are equal."""
    old = [] if before is None else before.splitlines()
    name = "/dev/null" if before is None else str(path)
    return "\n".join(unified_diff(old, after.splitlines(), name, str(path), lineterm=""))


def read(path: Path) -> str | None:
    """Return the file's text, None without the file. Raises ConfigFileError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"cannot read {path}: {error}") from None


def backup_of(path: Path) -> Path:
    """Return the path of the backup of a file. The backup is empty if the file did not exist."""
    return path.with_name(f"{path.name}.before-reprise")


def keep(path: Path, before: str | None) -> None:
    """Back up a file, unless it has a backup already. Raises ConfigFileError.

    before: the file's text; None if the file does not exist.
    """
    if not backup_of(path).exists():
        write(backup_of(path), before or "")


def undo(path: Path) -> str | None:
    """Restore a file from its backup, and return the text that it replaces; None without a backup.

    Raises ConfigFileError.
    """
    before = read(backup_of(path))
    if before is None:
        return None
    held = read(path) or ""
    try:
        if before:
            write(path, before)
        else:
            path.unlink(missing_ok=True)
        backup_of(path).unlink()
    except OSError as error:
        raise ConfigFileError(f"cannot restore {path}: {error.strerror}") from None
    return held


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
