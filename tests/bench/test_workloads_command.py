"""`reprise bench workloads` lists the generated chats, and shows one of each."""

import pytest

from cli.main import main


def test_the_table_tells_how_long_chats_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "workloads", "--workloads", "passage,remap,free"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "passage 600" in rows["passage"] or "passage 800" in rows["passage"]
    assert rows["remap"].split()[-1] == "48"
    assert rows["free"].split()[-1] == "-"


def test_a_chat_is_shown_with_its_right_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "workloads", "--workloads", "quotes,trap", "--show"]) == 0
    printed = capsys.readouterr().out
    assert "Quote the sentence that mentions" in printed
    assert "right answer" in printed
    assert "no single right answer" in printed


def test_unknown_names_are_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "workloads", "--workloads", "edits,prose"]) == 2
    assert "prose is not one of records" in capsys.readouterr().err
