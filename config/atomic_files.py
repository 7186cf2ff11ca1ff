"""Write files completely or not at all, even if the process is killed or the power fails; read them again."""

import json
import os
import re
import secrets
import time
from contextlib import suppress
from errno import EIO
from logging import Logger
from pathlib import Path
from typing import Any

UNFINISHED_S = 600
"""Seconds after which an unfinished file counts as left by a killed process; a newer one may be in use."""


def write_whole(path: Path, content: bytes, mode: int = 0o600, *, compares: bool = False) -> None:
    """Replace or create the file. After an OSError the old file is unchanged.

    mode: who may read and write it; by default its owner only.
    compares: whether to verify the written content before it replaces the old file.
    """
    new = unfinished_path(path)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if compares and new.read_bytes() != content:
            raise OSError(EIO, "the disk does not hold what was written")
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_in_folder(path: Path, content: bytes, names: str | None = None) -> None:
    """Write a file as write_whole() does, after making its folder and removing unfinished files from it.

    names: whose unfinished files to remove, as in remove_unfinished(); None for this file's own.
    """
    remove_unfinished(path.parent, names or re.escape(path.name))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(path, content)


def read_object(path: Path, log: Logger, instead: str) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if there is no file, or if it cannot be read.

    log: gets a warning if the file cannot be read. instead: the warning's text about what happens then.
    """
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as fault:
        log.warning("cannot read %s (%s); %s", path, fault, instead)
        return {}
    return found if isinstance(found, dict) else {}


def unfinished_path(path: Path) -> Path:
    """Return an unused name in the same folder, under which the file is written before it is renamed."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")


def remove_unfinished(folder: Path, names: str) -> None:
    """Remove unfinished files that killed processes left in a folder. Skip those that cannot be removed.

    names: a regular expression for the names that the finished files would have had.
    """
    pattern = re.compile(rf"(?:{names})\.[0-9a-f]{{16}}\.new")
    stale_at = time.time() - UNFINISHED_S
    try:
        left = [entry for entry in os.scandir(folder) if pattern.fullmatch(entry.name)]
    except OSError:
        return
    for entry in left:
        try:
            modified_at = entry.stat(follow_symlinks=False).st_mtime
            if entry.is_file(follow_symlinks=False) and modified_at < stale_at:
                Path(entry.path).unlink()
        # Another process removed it first, or this user may not.
        except OSError:
            continue


def remove_oldest(folder: Path, names: str, num_kept: int) -> None:
    """Remove all files but the newest from a folder. Skip those that cannot be removed.

    names: a regular expression for the names of the files.
    """
    pattern = re.compile(names)
    with suppress(OSError):
        found = [Path(entry.path) for entry in os.scandir(folder) if pattern.fullmatch(entry.name)]
        for path in sorted(found, key=_modified_at, reverse=True)[num_kept:]:
            with suppress(OSError):
                path.unlink()


def _modified_at(path: Path) -> float:
    """Return when a file was modified; 0 if another process has removed it."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
