"""`reprise bench translation` compares translation strategies, and never mixes them up."""

import csv
import json
from pathlib import Path

import pytest

from reprise.bench.decode.run_translation import pairs_of
from reprise.cli.main import main


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_small_run_measures_every_pair_and_writes_it(
    model_folder: Path, other_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {name: tmp_path / f"found.{name}" for name in ("json", "csv", "html")}
    given = ["--model", str(model_folder), "--draft-model", str(model_folder)]
    given += ["--draft-model", str(other_model_folder), "--strategies", "context"]
    given += ["--num-draft-tokens", "2,3"]
    given += ["--workloads", "quotes_polish", "--cases", "1", "--repeats", "1", "--max-tokens", "12"]
    for name, file in names.items():
        given += [f"--{name}", str(file)]
    assert main(["bench", "translation", *given]) == 0
    found = json.loads(names["json"].read_text())
    own = found["translation"]["rows"]
    assert {row["parity"] for row in own} == {"PASS"}
    lengths = [(row["draft_model"], row["is_adaptive"], row["num_draft_tokens"]) for row in own]
    each = [(True, 31), (False, 2), (False, 3)]
    assert lengths == [(folder.name, *way) for folder in (model_folder, other_model_folder) for way in each]
    # All drafts of a model for itself are accepted, even if they are translated through text.
    of_itself = [row for row in own if row["draft_model"] == model_folder.name and not row["is_adaptive"]]
    assert all(row["acceptance"] > 0.9 and row["translated"] for row in of_itself)
    assert found["cost_curve"][0]["width"] == 1
    with names["csv"].open() as file:
        assert len(list(csv.DictReader(file))) == len(own)
    assert "Across vocabularies" in names["html"].read_text()
    assert capsys.readouterr().out.count("PASS") == len(own)


def test_strategies_are_chosen_by_whether_the_vocabularies_are_one(
    model_folder: Path, other_model_folder: Path
) -> None:
    pairs = pairs_of(model_folder, [model_folder, other_model_folder], ())
    others = [(other_model_folder, name) for name in ("context", "shared")]
    assert pairs == [(model_folder, "none"), *others]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--strategies", "magic"], "--strategies: magic is not one of context, shared, none"),
        (["--workloads", "edit"], "--workloads: edit is not one of"),
        (["--num-draft-tokens", "2,999"], "--num-draft-tokens: 999 is above 255"),
        (["--translation-prefix-tokens", "99"], "translation_prefix_tokens"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    given: list[str], message: str, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "translation", "--draft-model", str(model_folder), *given]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
