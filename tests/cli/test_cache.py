"""`reprise cache`: what a server keeps is shown and deleted, and nothing else."""

from pathlib import Path

import pytest

from reprise.cli.main import main
from reprise.config.settings import Settings, prefixes_folder
from reprise.drafters.assembly import make_drafters
from reprise.engine.kv_cache.prefix_cache import disk
from reprise.engine.speculative import acceptance
from tests.engine.kv_cache.prefix_cache.test_disk import TOKENS, CheckedStore


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default folder, with a file of each kind that the engine writes, and three of others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("REPRISE_PREFIX_CACHE_DIR", raising=False)
    monkeypatch.setattr(disk, "MIN_SAVED_TOKENS", 1)
    folder, settings = prefixes_folder(), Settings(is_server=True)
    checked = CheckedStore(folder)
    checked.save(*TOKENS)
    checked.store.close()
    acceptance.save(
        acceptance.AcceptanceCounts(0.9), acceptance.find_file(settings, "a model", "a vocabulary")
    )
    make_drafters(settings, "0" * 32)["suffix"].save()  # type: ignore[attr-defined]
    (prefix,) = folder.glob("*.prefix")
    (folder / f"{prefix.name}.0123456789abcdef.new").write_bytes(b"half")
    (folder / f"{'0' * 40}.prefix").mkdir()
    (folder / "rank-1-of-2").mkdir()
    (folder / "rank-1-of-2" / prefix.name).write_bytes(b"a part")
    for name in ("notes.txt", "other.prefix", "history-of-rome"):
        (folder / name).write_text("mine")
    return folder


def test_it_shows_and_deletes_what_a_server_keeps_and_nothing_else(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 8
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert str(folder) in out
    assert "in 3 files" in out
    assert "in 2 files" in out
    assert main(["cache", "--empty"]) == 0
    assert "deleted 5 files" in capsys.readouterr().out
    left = {path.name for path in folder.rglob("*") if path.is_file()}
    assert left == {"notes.txt", "other.prefix", "history-of-rome"}


@pytest.mark.parametrize("given", [[], ["--prefix-cache-dir", "none"]])
def test_without_a_folder_there_is_nothing(
    given: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    for more in ([], ["--empty"]):
        assert main(["cache", *given, *more]) == 0
    assert "deleted 0 files" in capsys.readouterr().out


def test_another_folder_may_be_named(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_PREFIX_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert main(["cache", "--empty"]) == 0
    assert list(folder.glob("*.prefix"))
    # A server with these would not start, but its old files can be deleted.
    monkeypatch.setenv("REPRISE_PREFIX_CACHE_BYTES", "0")
    assert main(["cache", "--empty", "--prefix-cache-dir", str(folder)]) == 0
    assert not [one for one in folder.glob("[0-9a-f]*.prefix") if one.is_file()]


@pytest.mark.parametrize(
    ("folder", "message"),
    [("", "prefix_cache_dir is ''"), ("a" * 5000, "File name too long"), ("circle", "symbolic links")],
)
def test_an_unusable_folder_is_named_with_the_reason(
    folder: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "circle").symlink_to("circle")
    given = str(tmp_path / folder) if folder else ""
    assert main(["cache", "--prefix-cache-dir", given]) != 0
    assert message in capsys.readouterr().err
