"""Pairs from a generated history: which are taken, in which order, and that no hook or filter runs."""

import os
import subprocess
from pathlib import Path

import pytest

from bench.replay.commits import GitError, Limits, Repository, pairs_of
from bench.replay.pairs import Pair, read_pairs
from cli.main import main

WHO = {
    f"GIT_{role}_{what}": "t@example.com" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
}
ALL = Limits(min_bytes=1)


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

    def pairs(self, limits: Limits = ALL) -> list[Pair]:
        return pairs_of(Repository(self.folder), limits)


@pytest.fixture
def history(tmp_path: Path) -> History:
    made = History(tmp_path / "repo")
    made.commit(
        "begin", a_py="one\n", b_md="words\n", image_bin=b"\0\1", sub__c_py="sub\n", latin_txt=b"\xe9"
    )
    return made


def changed(pairs: list[Pair]) -> list[str]:
    return [pair.id.partition(":")[2] for pair in pairs]


def test_a_pair_is_message_and_file_before_and_file_after(history: History) -> None:
    history.commit("Count on.\n\nWith a reason.", a_py="one\ntwo\n")
    (pair,) = history.pairs()
    assert pair.prompt == (
        "Count on.\n\nWith a reason.\n\nAnswer with the whole file a.py.\n\n```\none\n```\n"
    )
    assert pair.output == "```\none\ntwo\n```\n"
    assert pair.workload == "commits"
    assert pair.id.endswith(":a.py")


def test_only_text_that_a_commit_changed_counts(history: History) -> None:
    history.commit("binary, and another coding", image_bin=b"\0\2", latin_txt=b"\xe8")
    history.commit("added", new_py="new\n")
    history.git("mv", "b.md", "d.md")
    history.git("rm", "-q", "new.py")
    history.git("commit", "-q", "-m", "moved and removed")
    (history.folder / "link").symlink_to("a.py")
    history.commit("link")
    (history.folder / "link").unlink()
    (history.folder / "link").symlink_to("d.md")
    history.commit("link elsewhere")
    assert history.pairs() == []
    history.commit("at last", sub__c_py="sub!\n")
    assert changed(history.pairs()) == ["sub/c.py"]


def test_the_newest_come_in_the_order_of_their_commits_and_merges_are_left_out(history: History) -> None:
    history.git("checkout", "-q", "-b", "side")
    history.commit("side", b_md="words on the side\n")
    history.git("checkout", "-q", "main")
    history.commit("two", a_py="two\n", sub__c_py="two\n")
    history.git("merge", "-q", "--no-ff", "-m", "merge", "side")
    history.commit("three", a_py="three\n")
    pairs = history.pairs()
    assert sorted(changed(pairs)) == ["a.py", "a.py", "b.md", "sub/c.py"]
    assert pairs[-1].output == "```\nthree\n```\n"
    assert all("merge" not in str(pair.prompt) for pair in pairs)
    assert history.pairs(Limits(count=1, min_bytes=1)) == pairs[-1:]
    assert "a.py" in changed(history.pairs(Limits(per_commit=1, min_bytes=1)))
    assert "sub/c.py" not in changed(history.pairs(Limits(per_commit=1, min_bytes=1)))


def test_the_newest_commit_can_be_chosen(history: History) -> None:
    history.commit("two", a_py="two\n")
    history.commit("three", a_py="three\n")
    (older,) = history.pairs(Limits(min_bytes=1, revision="HEAD~1"))
    assert older.output == "```\ntwo\n```\n"
    for wrong in ("nowhere", "--output=/tmp/x", "HEAD:a.py"):
        with pytest.raises(GitError, match="git cannot read"):
            history.pairs(Limits(min_bytes=1, revision=wrong))


def test_sizes_and_paths_are_bounded(history: History) -> None:
    history.commit("grow", a_py="x" * 50, b_md="y" * 500)
    history.commit("on", a_py="x" * 60, b_md="y" * 600)
    assert changed(history.pairs(Limits(min_bytes=100))) == ["b.md"]
    assert changed(history.pairs(Limits(min_bytes=40, max_bytes=100))) == ["a.py"]
    assert changed(history.pairs(Limits(min_bytes=1, suffixes=(".py",)))) == ["a.py", "a.py"]


def test_reading_runs_nothing_that_the_repository_names(history: History, tmp_path: Path) -> None:
    history.commit("change", a_py="two\n")
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
    assert len(history.pairs()) == 1
    assert not proof.exists()


def test_the_command_writes_a_file_that_can_be_replayed(
    history: History, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history.commit("change", a_py="two\n")
    file = tmp_path / "pairs.jsonl"
    assert main(["bench", "commits", str(history.folder), "-o", str(file), "--min-bytes", "1"]) == 0
    assert "wrote 1 pairs to" in capsys.readouterr().out
    assert read_pairs(file) == history.pairs()


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize("name", ["nowhere", "empty", "fresh", "repo"])
def test_what_has_no_history_is_one_line_and_status_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    History(tmp_path / "fresh")
    file = tmp_path / "pairs.jsonl"
    assert main(["bench", "commits", str(tmp_path / name), "-o", str(file)]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("reprise bench commits: ")
    assert printed.count("\n") == 1
    assert not file.exists()
