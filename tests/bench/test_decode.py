"""`reprise bench decode` measures drafts beside plain decoding, and compares every token."""

import json
from pathlib import Path

import pytest

from cli.main import main


def test_every_figure_is_there_and_answers_are_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    given = [
        "--workloads",
        "records,edits_again,extraction",
        "--draft-types",
        "auto,ngram-simple",
        "--cases",
        "1",
    ]
    given += ["--repeats", "1", "--max-tokens", "24", "--num-draft-tokens", "3", "--json", str(file)]
    assert main(["bench", "decode", *given]) == 0
    written = json.loads(file.read_text())
    assert [(row["workload"], row["draft_type"]) for row in written["rows"]] == [
        ("records", "auto"),
        ("records", "ngram-simple"),
        ("edits_again", "auto"),
        ("edits_again", "ngram-simple"),
        ("extraction", "auto"),
        ("extraction", "ngram-simple"),
    ]
    for row in written["rows"]:
        assert row["parity"] == "PASS"
        assert row["tokens_per_forward"] >= 1
        assert row["decode_tps"] > 0
    assert capsys.readouterr().out.count("PASS") == 6


def test_an_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "decode", "--workloads", "prose"]) == 2
    assert "prose is none of edits" in capsys.readouterr().err
