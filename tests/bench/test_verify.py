"""`reprise verify` passes if drafting changes nothing, and otherwise says where it did."""

import json
import re
from pathlib import Path

import pytest

from reprise.bench.answering import Answering, Arm, Case
from reprise.bench.experiment import Row
from reprise.cli.main import main
from reprise.engine.kv_cache import exact_widths


def rows_of(file: Path, *given: str) -> list[Row]:
    """Run the command, and return the rows of its document."""
    assert main(["verify", *given, "--json", str(file)]) == 0
    rows: list[Row] = json.loads(file.read_text())["verify"]["rows"]
    return rows


@pytest.mark.parametrize(
    ("mode", "num_drafted", "is_bundled"),
    [
        (["--exact"], 3, False),
        pytest.param(["--exact"], 3, True, marks=pytest.mark.slow),
        pytest.param([], 7, True, marks=pytest.mark.slow),
    ],
)
def test_drafting_is_certified(
    mode: list[str],
    num_drafted: int,
    is_bundled: bool,
    model_folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    given = ["--prompt-tokens", "60", "--max-tokens", "12", "--num-draft-tokens", f"{num_drafted}"]
    given += [*mode, "--json", str(tmp_path / "verify.json")]
    given += [] if is_bundled else ["--model", str(model_folder)]
    # A context of 8,300 tokens takes minutes here.
    monkeypatch.setattr(exact_widths, "LONG_LENGTHS", (400,))
    assert main(["verify", *given]) == 0
    printed = capsys.readouterr().out
    assert printed.count("PASS") == 3
    assert "FAIL" not in printed
    record = json.loads((tmp_path / "verify.json").read_text())
    assert record["cost_curve"] == []
    found = record["verify"]
    assert [row["parity"] for row in found["rows"]] == ["PASS"] * 3
    assert any(row["drafted_tokens"] for row in found["rows"])
    all_widths = f"all up to {num_drafted + 1}"
    exact = [line.split(all_widths)[0].split() for line in printed.splitlines() if all_widths in line]
    several = [
        [str(rows), *what.split()]
        for rows in (2, 4)
        for what in ("equal lengths", "different lengths", "long contexts")
    ]
    assert exact == [["1", "short", "contexts"], ["1", "long", "contexts"], *several]
    assert "one forward pass for all rows" in printed


def test_what_a_wedlm_model_drafts_for_itself_is_certified_too(wedlm_folder: Path, tmp_path: Path) -> None:
    given = ["--model", str(wedlm_folder), "--prompt-tokens", "60", "--max-tokens", "8"]
    rows = rows_of(tmp_path / "verify.json", *given)
    assert ("wedlm", "PASS") in {(row["draft_type"], row["parity"]) for row in rows}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_drafts_of_another_vocabulary_are_certified_too(
    model_folder: Path, other_model_folder: Path, tmp_path: Path
) -> None:
    given = f"--model {model_folder} --draft-model {other_model_folder} --draft-translation shared"
    given = f"{given} --prompt-tokens 200 --max-tokens 8 --num-draft-tokens 3"
    rows = rows_of(tmp_path / "verify.json", *given.split())
    rows = [row for row in rows if row["draft_type"] == "draft-model"]
    assert {row["parity"] for row in rows} == {"PASS"}
    assert sum(row["drafted_tokens"] for row in rows) > 0


def test_a_difference_is_reported_and_fails_in_exact_mode(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true_run = Answering.run

    def lying(answering: Answering, case: Case, arm: Arm) -> list[Row]:
        rows = true_run(answering, case, arm)
        if arm.draft_type == "suffix":
            rows[0]["tokens"][3] = 99
        return rows

    monkeypatch.setattr(Answering, "run", lying)
    given = f"--model {model_folder} --prompt-tokens 200 --max-tokens 8 --num-draft-tokens 3 --exact"
    assert main(["verify", *given.split()]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"FAIL +36 ", printed)
    assert "token 3, margin" in printed


@pytest.mark.parametrize("text", ["", "{}\n", "no json", '{"messages": "hello"}\n'])
def test_a_file_that_holds_no_chats_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chats.jsonl"
    file.write_text(text)
    assert main(["verify", "--prompts", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
