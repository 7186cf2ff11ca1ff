"""`reprise bench translation` compares translation strategies, and never mixes them up."""

import csv
import io
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from bench.decode.rows import rows_of as rows_of_runs
from bench.experiment import Parity, Row
from bench.tables import print_rows
from bench.translation.run_translation import COLUMNS, findings, more_of, ordered, pairs_of
from cli.main import main

CONTEXT, NAIVE = ({"draft_model": "a_draft", "strategy": strategy} for strategy in ("context", "naive"))


def run(
    decode_s: float, number: int, length: int, drafted: int = 0, accepted: int = 0, case: str = "a"
) -> Row:
    """Make a run of 20 tokens with drafts of 2; the draft model takes a quarter of the time."""
    num_drafts = drafted // 2
    outcomes = {"translated": num_drafts, "absorbed": 1, "resynchronised": 2, "skipped": 3}
    return {
        "arm": f"draft-model {length}" if drafted else "plain", "case": case, "round": number, "turn": 1,
        "workload": "passages_polish", "prompt_tokens": None,
        "draft_type": "draft-model" if drafted else "none",
        "num_draft_tokens": length, "streams": 1, "num_tokens": 20, "num_prefilled": 100, "prefill_s": 0.1,
        "first_token_s": 0.1, "decode_s": decode_s, "num_forwards": 10,
        "by_source": {"draft-model": [drafted, accepted]} if drafted else {},
        "by_position": [[num_drafts, num_drafts], [num_drafts, accepted - num_drafts]] if drafted else [],
        "drafter_s": decode_s / 4, "open_s": 0.0, "translation": outcomes if drafted else {},
        "energy_j": None,
    }  # fmt: skip


def runs(
    length: int = 2, drafted_s: Sequence[float] = (0.5, 0.4), accepted: int = 12, case: str = "a"
) -> list[Row]:
    """Make the runs of one answer: plain in 1 s, 20 drafted tokens in each drafted run."""
    drafted = [run(s, at, length, 20, accepted, case) for at, s in enumerate(drafted_s, 1)]
    return drafted + [run(1.0, at, 0, case=case) for at, _ in enumerate(drafted_s, 1)]


def checked(made: Sequence[Row], num_differing: int = 0) -> list[Row]:
    places = dict.fromkeys((one["case"], one["arm"]) for one in made)
    return [{"case": case, "turn": 1, "arm": arm, "parity": Parity(4, num_differing)} for case, arm in places]


def rows_of(pair: Row, is_adaptive: bool, made: Sequence[Row], checks: Sequence[Row]) -> list[Row]:
    found = rows_of_runs(made, checks, has_turns=False, more=more_of)
    return [pair | {"is_adaptive": is_adaptive} | row for row in found]


def rows(pair: Row, accepted: int = 12, seconds: float = 0.5, is_adaptive: bool = False) -> list[Row]:
    made = [one for length in (2, 4) for one in runs(length, (seconds, seconds), accepted, f"k{length}")]
    return rows_of(pair, is_adaptive, made, checked(made))


def test_a_row_counts_the_outcomes_of_all_drafts_of_all_runs() -> None:
    made = runs() + runs(drafted_s=(0.5, 0.5), case="b")
    (row,) = rows_of(CONTEXT, False, made, checked(made))
    assert (row["draft_model"], row["strategy"], row["is_adaptive"]) == ("a_draft", "context", False)
    assert Counter(
        translated=40, absorbed=4, resynchronised=8, skipped=12
    ) == {name: row[name] for name in ("translated", "absorbed", "resynchronised", "skipped")}  # fmt: skip
    expected = {
        "acceptance": 0.6,
        "speedup": 2 / 0.9,
        "speedup_low": 2.0,
        "speedup_high": 2.5,
        "drafted_per_draft": 2.0,
        "draft_model_share": 0.25,
        "drafted_per_s": 80 / (1.9 / 4),
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_each_length_has_a_row_of_its_own() -> None:
    assert [row["num_draft_tokens"] for row in rows(CONTEXT)] == [2, 4]


def test_findings_say_where_context_is_worse_than_naive() -> None:
    said = " ".join(findings(rows(CONTEXT, 12) + rows(NAIVE, 11)))
    assert "acceptance is 60 % with context and 55 % without (naive), over 2 pairs" in said
    assert "context is at least as good as naive in all of them" in said
    behind = " ".join(findings(rows(CONTEXT, 12) + rows(NAIVE, 14)))
    assert "context is worse in 2 of them: passages_polish at k = 2 (24 of 40 against 28 of 40), " in behind


def test_findings_say_which_lengths_paid() -> None:
    said = findings(rows(CONTEXT, seconds=0.5) + rows(CONTEXT, seconds=1.25, is_adaptive=True))
    assert said[0] == (
        "a_draft: context, speedup against plain: k = 2: 2.00 (paid everywhere); k = 4: 2.00 (paid "
        "everywhere); adaptive: 0.80 (paid nowhere)."
    )


def test_the_last_finding_says_whether_tokens_differ() -> None:
    assert findings(rows(CONTEXT))[-1] == (
        "All 8 pairs of a drafted and a plain answer are equal, token by token."
    )
    said = findings(rows_of(CONTEXT, False, runs(), checked(runs(), 1)))
    assert said[-1].startswith("1 of 4 pairs of a drafted and a plain answer differ")


def test_the_table_fits_120_columns_and_puts_strategies_side_by_side() -> None:
    made = [
        row | {"workload": "edits_again_cold", "prompt_tokens": 1500, "translated": 99999, "skipped": 9999}
        for row in rows(NAIVE) + rows(CONTEXT) + rows(CONTEXT, is_adaptive=True)
    ]
    out = io.StringIO()
    print_rows(Console(file=out, width=120), ordered(made), COLUMNS)
    lines = out.getvalue().splitlines()
    assert "…" not in out.getvalue()
    found = [line.split()[1:4] for line in lines if "edits_again_cold" in line]
    assert found[:3] == [["1500", "naive", "2"], ["1500", "context", "2"], ["1500", "naive", "4"]]
    assert all("equal" in line for line in lines if "edits_again_cold" in line)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_small_run_measures_every_pair_and_writes_it(
    model_folder: Path, other_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {name: tmp_path / f"found.{name}" for name in ("json", "csv", "html")}
    given = ["--model", str(model_folder), "--draft-model", str(model_folder)]
    given += [
        "--draft-model",
        str(other_model_folder),
        "--strategies",
        "context",
        "--num-draft-tokens",
        "2,3",
    ]
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
    assert found["translation"]["findings"][-1] in capsys.readouterr().out.replace("\n", " ")


def test_strategies_are_chosen_by_whether_the_vocabularies_are_one(
    model_folder: Path, other_model_folder: Path
) -> None:
    pairs = pairs_of(model_folder, [model_folder, other_model_folder], None)
    told = [(folder, about["strategy"]) for folder, about in pairs]
    others = [(other_model_folder, name) for name in ("context", "naive", "shared")]
    assert told == [(model_folder, "none"), *others]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--strategies", "magic"], "--strategies: magic is not one of context, naive, shared, none"),
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
