"""Read an agent's configuration file, and render it with settings merged into it."""

import json
import os
import tomllib
from collections.abc import Callable, Mapping
from difflib import unified_diff
from errno import EACCES
from hashlib import sha256
from itertools import chain, count
from pathlib import Path
from stat import S_IMODE, S_IWUSR
from typing import Any

import yaml

from reprise.config.agents.edit_text import TextError, dump, plain, set_json, set_toml, set_yaml
from reprise.config.agents.known import AgentFile
from reprise.config.atomic_files import write_whole

_EDITORS: Mapping[str, Callable[[str, Mapping[str, Any]], str]] = {
    "json": set_json,
    "toml": set_toml,
    "yaml": set_yaml,
}
_PARSERS: Mapping[str, Callable[[str], object]] = {
    "json": lambda text: json.loads(plain(text)),
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}


_MOVED: Mapping[str, str] = {".codex": "CODEX_HOME", ".claude": "CLAUDE_CONFIG_DIR"}
"""Variables that name another folder for an agent's files."""


class ConfigFileError(Exception):
    """A file cannot be read or written, or merging would lose something."""


def locate(file: AgentFile) -> Path:
    """Return where the agent looks for its file, by its own environment variable if that is set."""
    folder, _, rest = file.path.partition("/")
    moved_to = os.environ.get(_MOVED.get(folder, ""))
    path = Path(moved_to).expanduser() / rest if moved_to else Path.home() / file.path
    # OpenCode reads opencode.jsonc last, so its model would replace the one in opencode.json.
    last = path.with_suffix(".jsonc")
    return last if path.name == "opencode.json" and last.exists() else path


def shown(path: Path) -> str:
    """Return a path as people write it, from ~ where it is in the home directory."""
    return f"~/{path.relative_to(Path.home())}" if path.is_relative_to(Path.home()) else str(path)


def render(file: AgentFile, text: str | None) -> str:
    """Return the file's text with the settings merged into it.

    text: the file's present text; None without a file.
    All other text stays, including comments and line ends. Raises ConfigFileError if the text cannot be
    parsed or a comment would be lost.
    """
    if text is None or not text.strip():
        settings = {**file.new_file, **file.settings}
        return set_toml("", settings) if file.format == "toml" else _dump(file, settings)
    lines = text.replace("\r\n", "\n")
    changed = _checked(file, lambda: _EDITORS[file.format](lines, file.settings))
    if changed == lines:
        return text
    return changed.replace("\n", "\r\n") if lines != text else changed


def _checked(file: AgentFile, read: Callable[[], str]) -> str:
    """Apply a parser to the file's text. Raises ConfigFileError if it fails."""
    try:
        return read()
    except TextError as error:
        reason = str(error)
    except RecursionError:
        reason = "it is nested too deep"
    # ValueError: also for a date that does not exist, or a number with thousands of digits.
    except (ValueError, yaml.YAMLError) as error:
        reason = f"it is not valid {file.format.upper()}: {str(error).splitlines()[0]}"
    place = shown(locate(file))
    raise ConfigFileError(
        f"{place} is left as it is: {reason}. Add the settings by hand, as shown without --write"
    )


def difference(path: Path, before: str | None, after: str) -> str:
    """Return a unified diff, empty if the texts are equal."""
    old = [] if before is None else before.splitlines()
    name = "/dev/null" if before is None else str(path)
    return "\n".join(unified_diff(old, after.splitlines(), name, str(path), lineterm=""))


def read(path: Path) -> str | None:
    """Return the file's text, None without the file. Raises ConfigFileError if it cannot be read."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"cannot read {path}: {error}") from None


def has_backup(path: Path) -> bool:
    """Return whether a file has a backup, or a mark that it did not exist."""
    return _backup_of(path).exists() or _absence_of(path).exists()


def keep(path: Path, before: str | None, text: str) -> None:
    """Back up a file that has no backup, and note the text that will replace it, so that undo() knows it.

    before: the file's present text; None if it does not exist. Raises ConfigFileError.
    """
    is_new = not has_backup(path)
    if is_new:
        write(_absence_of(path) if before is None else _backup_of(path), before or "")
    # What others have written since the last time stays theirs.
    if is_new or _is_noted(path, before):
        write(_note_of(path), _digest(text))


def forget(path: Path) -> None:
    """Remove the backup of a file. Raises OSError."""
    _backup_of(path).unlink(missing_ok=True)
    _absence_of(path).unlink(missing_ok=True)
    _note_of(path).unlink(missing_ok=True)


def undo(file: AgentFile, path: Path) -> Path | None:
    """Restore a file from its backup, and remove the backup.

    Returns the path of a copy of its text if others changed the file since keep(), else None. Raises
    ConfigFileError.
    """
    before, held, copy = read(_backup_of(path)), read(path), None
    if before is not None:
        _check_whole(file, path, before)
    if held and held != before and not _is_noted(path, held):
        names = (path.with_name(f"{path.name}.before-undo{end}") for end in chain([""], count(2)))
        copy = next(name for name in names if not name.exists())
        write(copy, held)
    try:
        if before is None:
            path.resolve().unlink(missing_ok=True)
        else:
            write(path, before)
        forget(path)
    except OSError as error:
        raise ConfigFileError(f"cannot restore {path}: {error.strerror}") from None
    return copy


def write(path: Path, text: str) -> None:
    """Write the file atomically. Only its owner can read a new one, since it may hold a key.

    Raises ConfigFileError if it cannot be written.
    """
    try:
        content = text.encode()
        # A link to a file elsewhere stays one.
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = S_IMODE(target.stat().st_mode) if target.exists() else 0o600
        if not mode & S_IWUSR:
            raise PermissionError(EACCES, "it may not be written")
        write_whole(target, content, mode, compares=True)
    except (OSError, UnicodeEncodeError) as error:
        raise ConfigFileError(f"cannot write {path}: {getattr(error, 'strerror', error)}") from None


def _backup_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.before-reprise")


def _absence_of(path: Path) -> Path:
    """Return the path of the mark for a missing file; an empty backup means an empty file."""
    return path.with_name(f"{path.name}.none.before-reprise")


def _note_of(path: Path) -> Path:
    """Return the path of the digest of the text that was written."""
    return path.with_name(f"{path.name}.written.before-reprise")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _is_noted(path: Path, text: str | None) -> bool:
    """Whether a text is the one that was last written."""
    return text is not None and read(_note_of(path)) == _digest(text)


def _check_whole(file: AgentFile, path: Path, before: str) -> None:
    """Raise ConfigFileError for a truncated backup, such as a full disk can leave."""
    try:
        if before.strip():
            _PARSERS[file.format](before)
    except (ValueError, yaml.YAMLError):
        raise ConfigFileError(
            f"{path} is left as it is: {_backup_of(path)} is not whole. Mend one of the two by hand, and "
            "remove the backup"
        ) from None


def _dump(file: AgentFile, settings: Mapping[str, Any]) -> str:
    if file.format == "json":
        return dump(settings) + "\n"
    return str(yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True))
