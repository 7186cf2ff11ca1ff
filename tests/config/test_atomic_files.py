import logging
import os
import re
import time
from pathlib import Path

import pytest

from reprise.config.atomic_files import (
    UNFINISHED_S,
    read_object,
    remove_oldest,
    remove_unfinished,
    unfinished_path,
    write_in_folder,
    write_whole,
)


def age(path: Path, seconds: float) -> Path:
    """Make a file look as old as the given seconds."""
    path.touch()
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def test_the_file_is_written_completely_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"old")
    write_whole(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError("no space left")

    path = tmp_path / "table"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space left"):
        write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_a_killed_process_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "table"
    old, at_work = unfinished_path(path), unfinished_path(path)
    age(old, UNFINISHED_S + 60)
    age(at_work, 5)
    remove_unfinished(tmp_path, "table")
    assert list(tmp_path.iterdir()) == [at_work]


def test_no_other_file_is_removed_however_old(tmp_path: Path) -> None:
    ours = "table.0123456789abcdef.new"
    for name in (
        "table", "table.new", "table.0123456789abcdeg.new", "table.0123456789abcdef", f"{ours}s", f"my{ours}",
        "tables.0123456789abcdef.new", "t.b.e.0123456789abcdef.new",
    ):  # fmt: skip
        age(tmp_path / name, 10**6)
    (tmp_path / ours).mkdir()
    age(tmp_path / ours, 10**6)
    elsewhere = age(tmp_path / "precious", 10**6)
    link = tmp_path / "table.fedcba9876543210.new"
    link.symlink_to(elsewhere)
    before = sorted(tmp_path.iterdir())
    remove_unfinished(tmp_path, re.escape("table"))
    assert sorted(tmp_path.iterdir()) == before


def test_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    remove_unfinished(tmp_path / "nowhere", "table")


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    for at in range(5):
        (tmp_path / f"kept-{at}").touch()
        os.utime(tmp_path / f"kept-{at}", (0, [30, 10, 50, 20, 40][at]))
    (tmp_path / "other").touch()
    remove_oldest(tmp_path, r"kept-\d", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept-2", "kept-4", "other"]
    remove_oldest(tmp_path / "missing", r"kept-\d", 2)


def test_a_file_is_written_into_a_new_folder_and_what_was_left_there_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "kept.json"
    write_in_folder(path, b"{}")
    left = age(unfinished_path(path), UNFINISHED_S + 60)
    write_in_folder(path, b'{"a": 1}')
    assert not left.exists()
    assert read_object(path, logging.getLogger("reprise.test"), "starting anew") == {"a": 1}


@pytest.mark.parametrize("content", [None, b"[1]", b"{", b"\xff"])
def test_a_file_without_an_object_reads_as_an_empty_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    path = tmp_path / "kept.json"
    if content is not None:
        path.write_bytes(content)
    assert read_object(path, logging.getLogger("tests"), "starting anew") == {}
    is_damaged = content in (b"{", b"\xff")
    assert caplog.text.count("starting anew") == is_damaged
