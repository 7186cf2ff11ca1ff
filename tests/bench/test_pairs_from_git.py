"""Pairs from a generated history: which are taken, in which order, and that no hook or filter runs."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from reprise.bench.experiment import ArgumentsError
from reprise.bench.replay.pairs import read_history
from reprise.bench.workloads.agents import Change, agent_chats
from reprise.cli.main import main

WHO = {
    f"GIT_{role}_{what}": "t@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}


def text(word: str, num_bytes: int = 400) -> str:
    """Return a line that is long enough to be used."""
    return f"{word:{num_bytes - 1}}\n"


class History:
    """A new repository; `commit` writes and commits files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> None:
        environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(self.folder)} | WHO
        subprocess.run(["git", *words], cwd=self.folder, env=environment, check=True, capture_output=True)

    def commit(self, message: str, **files: str | bytes) -> None:
        for name, content in files.items():
            path = self.folder / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)

    def changes(self, **limits: Any) -> list[Change]:
        return read_history(str(self.folder), **limits)


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History(tmp_path / "repo")
    binary, latin = b"\0" + b"\1" * 400, b"\xe9" * 400
    texts = {"a_py": text("one"), "b_md": text("words"), "sub__c_py": text("sub")}
    made.commit("begin", image_bin=binary, latin_txt=latin, **texts)
    return made


def changed(changes: list[Change]) -> list[str]:
    return [change.id.partition(":")[2] for change in changes]


def test_a_pair_is_message_and_file_before_and_file_after(history: History) -> None:
    history.commit("Count on.\n\nWith a reason.", a_py=text("one") + "two\n")
    ((chat,),) = [[*agent_chats([change], ["whole"], ())] for change in history.changes()]
    (turn,) = chat.turns
    assert turn.text == (
        f"Count on.\n\nWith a reason.\n\nAnswer with the whole file a.py.\n\n```\n{text('one')}```\n"
    )
    assert turn.reference == f"```\n{text('one')}two\n```\n"
    assert chat.workload == "whole"


def test_only_text_that_a_commit_changed_counts(history: History) -> None:
    history.commit("binary, and another coding", image_bin=b"\0" + b"\2" * 400, latin_txt=b"\xe8" * 400)
    history.commit("added", new_py=text("new"))
    history.git("mv", "b.md", "d.md")
    history.git("rm", "-q", "new.py")
    history.git("commit", "-q", "-m", "moved and removed")
    (history.folder / "a.py").chmod(0o755)
    history.commit("executable")
    (history.folder / "link").symlink_to(400 * "./" + "a.py")
    history.commit("link")
    (history.folder / "link").unlink()
    (history.folder / "link").symlink_to(400 * "./" + "d.md")
    history.commit("link elsewhere")
    (history.folder / "a.py").write_text(text("two"))
    history.git("commit", "-q", "-a", "--allow-empty-message", "-m", "")
    history.commit("at last", sub__c_py=text("sub!"))
    assert changed(history.changes()) == ["sub/c.py"]


def test_the_newest_come_in_the_order_of_their_commits_and_merges_are_left_out(history: History) -> None:
    history.git("checkout", "-q", "-b", "side")
    history.commit("side", b_md=text("words on the side"))
    history.git("checkout", "-q", "main")
    history.commit("two", a_py=text("two"), sub__c_py=text("two"))
    history.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    history.commit("three", a_py=text("three"))
    pairs = history.changes()
    assert sorted(changed(pairs)) == ["a.py", "a.py", "b.md", "sub/c.py"]
    assert changed(pairs).index("a.py") < changed(pairs).index("sub/c.py")
    assert pairs[-1].after == text("three")
    assert all("merge" not in pair.message for pair in pairs)
    assert history.changes(count=1) == pairs[-1:]
    one_each = changed(history.changes(per_commit=1))
    assert "a.py" in one_each
    assert "sub/c.py" not in one_each


def test_the_newest_commit_can_be_chosen(history: History, capsys: pytest.CaptureFixture[str]) -> None:
    history.commit("two", a_py=text("two"))
    history.commit("three", a_py=text("three"))
    (older,) = history.changes(revision="HEAD~1")
    assert older.after == text("two")
    for wrong in ("nowhere", "--output=/tmp/x", "HEAD:a.py"):
        assert main(["bench", "replay", "--history", str(history.folder), f"--revision={wrong}"]) == 2
        assert "git cannot read" in capsys.readouterr().err


def test_sizes_and_paths_are_bounded(history: History) -> None:
    history.commit("grow", a_py=text("x", 450), b_md=text("y", 600), sub__c_py="z" * 399)
    history.commit("on", a_py=text("x!", 450), b_md=text("y!", 600), sub__c_py="Z" * 399)
    assert changed(history.changes(max_bytes=500, count=1)) == ["a.py"]
    assert changed(history.changes(count=9)) == ["a.py", "b.md", "a.py", "b.md"]
    assert changed(history.changes(suffixes=(".md", ".txt"))) == ["b.md", "b.md"]


def test_reading_runs_nothing_that_the_repository_names(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history.commit("change", a_py=text("two"))
    proof = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {proof}\ncat\n")
    script.chmod(0o755)
    for name in ("core.fsmonitor", "core.pager", "diff.external", "diff.it.textconv", "gpg.program"):
        history.git("config", name, str(script))
    history.git("config", "log.showSignature", "true")
    (history.folder / ".git" / "info").mkdir(exist_ok=True)
    (history.folder / ".git" / "info" / "attributes").write_text("* diff=it filter=it\n")
    for hook in ("post-checkout", "pre-commit", "reference-transaction"):
        (history.folder / ".git" / "hooks").mkdir(exist_ok=True)
        (history.folder / ".git" / "hooks" / hook).symlink_to(script)
    # As in a hook of another repository.
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", str(script))
    assert len(history.changes()) == 1
    assert not proof.exists()


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("name", ["nowhere", "empty", "fresh", "repo"])
def test_what_has_no_history_is_one_line_and_status_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    History(tmp_path / "fresh")
    with pytest.raises(ArgumentsError):
        read_history(str(tmp_path / name))
    assert main(["bench", "replay", "--history", str(tmp_path / name)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("reprise bench replay: ")
    assert printed.count("\n") == 1


def test_a_history_is_replayed_as_an_agent_would_write_it(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.commit("two", a_py=text("two"))
    file, xml = tmp_path / "rows.json", Path(__file__).parents[2] / "bench" / "replay" / "xml_calls.jinja"
    given = ["--history", str(history.folder), "--forms", "edit,blocks", "--numbers", "tab,bar"]
    for template in ([], ["--chat-template", str(xml)]):
        asked = [
            *given,
            *template,
            "--drafters",
            "auto",
            "--cost-curve",
            "apple-m4-pro-4bit",
            "--json",
            str(file),
        ]
        assert main(["bench", "replay", *asked]) == 0
        rows = json.loads(file.read_text())["replay"]["rows"]
        assert [(row["workload"], row["pairs"]) for row in rows] == [
            ("edit tab", 1), ("edit bar", 1), ("blocks", 1), ("all", 3)
        ]  # fmt: skip
    assert main(["bench", "replay", "--history", str(history.folder), "--forms", "telegram"]) == 2
    assert (
        "--forms: telegram is not one of edit, write, patch, diff, blocks, whole" in capsys.readouterr().err
    )
