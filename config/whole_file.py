"""Files that are written whole or not at all, also where the process is killed or the power fails."""

import os
import re
import secrets
import time
from pathlib import Path

UNFINISHED_S = 600
"""An unfinished file so old was left by a process that was killed; a newer one may be at work."""


def write_whole(path: Path, content: bytes) -> None:
    """Put content in place of what the file held, if anything. Raises OSError; then nothing has changed.

    Only its owner may read it.
    """
    new = unfinished_path(path)
    number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def unfinished_path(path: Path) -> Path:
    """Where a file is while it is being written: beside it, by a name that is used once."""
    return path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")


def remove_unfinished(folder: Path, names: str) -> None:
    """Remove what killed processes left of files, and nothing else. What cannot be removed stays.

    names: a regular expression of the names that these files would have had.
    """
    pattern = re.compile(rf"(?:{names})\.[0-9a-f]{{16}}\.new")
    stale_at = time.time() - UNFINISHED_S
    try:
        left = [entry for entry in os.scandir(folder) if pattern.fullmatch(entry.name)]
    except OSError:
        return
    for entry in left:
        try:
            told = entry.stat(follow_symlinks=False)
            if entry.is_file(follow_symlinks=False) and told.st_mtime < stale_at:
                Path(entry.path).unlink()
        # Another process was quicker, or it is not ours to remove.
        except OSError:
            continue
