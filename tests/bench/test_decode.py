"""`reprise bench decode` measures drafts beside plain decoding, and compares every token."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.decode.progress import duration
from bench.decode.rows import Row, Trial, row_of, rows_of
from bench.decode.runs import Configuration, Counts, TurnRun
from bench.decode.samples import token_texts
from bench.decode.table import COLUMNS, flat, print_rows
from bench.local_engine import LocalEngine
from bench.parity import Parity
from cli.main import main
from engine.request import DraftingReport, Finished, GenerationRequest

PROMISED = """
workload draft_type num_draft_tokens prompt_tokens turn streams tokens decode_tps plain_tps prefill_tps
ttft_ms speedup acceptance acceptance_by_position tokens_per_forward drafted_share drafter_us_per_token parity
first_divergence best_width_speedup of_best_width by_source energy_j_per_token
"""


def counts(num_forwards: int, drafted: int, accepted: int) -> Counts:
    found = Counts()
    by_source = (("suffix", drafted, accepted),) if drafted else ()
    by_position = ((2, 2), (2, 1)) if drafted else ()
    found.add(DraftingReport(drafted, accepted, num_forwards, by_source, by_position, drafter_s=1e-4))
    return found


def turn_run(decode_s: float, drafting: Counts, energy_j: float | None = None, turn: int = 1) -> TurnRun:
    tokens, origins = (tuple(range(10)),), ((("model", 10),),)
    return TurnRun(turn, tokens, origins, 600, 0.25, 0.3, decode_s, drafting, energy_j)


def trial(turn: int = 1, **changes: Any) -> Trial:
    """Make a trial of 10 tokens: plain in 1 and 0.8 s, drafted in 0.5 and 0.4 s."""
    plain = [turn_run(s, counts(10, 0, 0), 4.0, turn) for s in (1.0, 0.8, 1.0)]
    drafted = [turn_run(s, counts(5, 4, 3), 2.0, turn) for s in (0.5, 0.5, 0.4)]
    parity = Parity(9, 0)
    made = Trial("edits", 600, 1, Configuration("auto", 31), turn, plain, drafted, parity, best_width=2.5)
    return replace(made, **changes)


def test_a_row_has_every_figure_that_was_promised() -> None:
    row = row_of([trial()], None)
    assert not set(PROMISED.split()) - row.keys()
    expected = {
        "plain_tps": 12.5,
        "decode_tps": 25.0,
        "speedup": 2.0,
        "speedup_low": 1.6,
        "speedup_high": 2.5,
        "prefill_tps": 2400.0,
        "ttft_ms": 300.0,
        "acceptance": 0.75,
        "tokens_per_forward": 2.0,
        "drafted_share": 0.3,
        "drafter_us_per_token": 10.0,
        "best_width_speedup": 2.5,
        "of_best_width": 0.8,
        "energy_j_per_token": 0.2,
        "plain_energy_j_per_token": 0.4,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["acceptance_by_position"] == [1.0, 0.5]
    assert row["by_source"] == {"suffix": [12, 9]}
    assert (row["parity"], row["first_divergence"]) == ("PASS", None)


def test_the_speed_up_of_the_best_runs_is_within_its_range() -> None:
    quick = [turn_run(0.5, counts(5, 4, 3))] * 2
    plain = [[turn_run(s, counts(10, 0, 0)) for s in seconds] for seconds in ((1.0, 2.0), (2.0, 1.0))]
    row = row_of([trial(plain=runs, drafted=quick) for runs in plain], None)
    assert [row[name] for name in ("speedup_low", "speedup", "speedup_high")] == pytest.approx(
        [2.0, 2.0, 3.0]
    )


def test_chats_of_several_turns_have_a_row_over_all_and_one_of_each() -> None:
    quick = [turn_run(0.2, counts(2, 4, 3), turn=2)] * 3
    rows = rows_of([trial(1), trial(2, drafted=quick), trial(1), trial(2, drafted=quick)])
    assert [row["turn"] for row in rows] == [None, 1, 2]
    assert [row["speedup"] for row in rows] == pytest.approx([1.6 / 0.6, 2.0, 4.0])
    assert [row["tokens"] for row in rows] == [40, 20, 20]


def test_what_was_not_measured_is_null_and_not_a_number() -> None:
    unmetered = [turn_run(0.5, counts(10, 0, 0))] * 3
    row = row_of([trial(drafted=unmetered, best_width=None), trial()], None)
    for name in ("energy_j_per_token", "best_width_speedup", "of_best_width", "constrained_plain_tps"):
        assert row[name] is None, name
    silent = row_of([trial(drafted=unmetered)], None)
    assert silent["acceptance"] is None
    assert silent["acceptance_by_position"] == []
    assert silent["drafted_share"] == 0


def test_one_pair_that_differs_fails_the_row_and_is_reported() -> None:
    differing = Parity()
    differing.compare([(1, 2, 3)], [(1, 2, 4)], lambda _: 0.125)
    rows = rows_of([trial(), trial(parity=differing)])
    assert rows[0]["parity"] == "FAIL"
    assert rows[0]["first_divergence"] == {"token": 2, "margin": 0.125}
    assert "1 of 10 pairs of runs differ; the first at token 2" in printed(rows)


def test_every_column_is_in_the_flat_rows_and_every_row_in_the_table() -> None:
    row = row_of([trial()], None)
    assert set(COLUMNS) <= row.keys()
    assert flat(row).keys() == (row.keys() - {"first_divergence"}) | {
        "first_divergence_token",
        "first_divergence_margin",
    }
    assert not [value for value in flat(row).values() if isinstance(value, dict)]
    assert "suffix 9/12" in printed([row], ["workload", "by_source"])


def test_the_table_fits_120_columns_with_the_longest_names() -> None:
    row = row_of([trial(workload="edits_again_cold", configuration=Configuration("ngram-simple", 255))], 3)
    wide = row | {"prefill_tps": 12345.6, "ttft_ms": 12345.6, "drafter_us_per_token": 1234.5, "tokens": 99999}
    lines = printed([wide, row_of([trial()], None)]).splitlines()
    (line,) = (line for line in lines if "edits_again_cold" in line)
    assert "ngram-simple" in line
    assert "PASS" in line
    assert max(map(len, lines)) <= 120


def test_more_columns_than_fit_are_shown_in_several_tables() -> None:
    lines = printed([row_of([trial()], None)], tuple(COLUMNS)).splitlines()
    assert sum(line.startswith("edits") for line in lines) > 1
    assert "suffix 9/12" in "".join(lines)
    assert max(map(len, lines)) <= 120


def printed(rows: Sequence[Row], columns: Sequence[str] | None = None) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    print_rows(console, rows, columns, "a title")
    return console.export_text()


def test_a_character_of_several_tokens_belongs_to_the_last_of_them() -> None:
    spelled = {1: b"a", 2: b"\xc3", 3: b"\xa9", 9: b"<end>"}
    found = token_texts((1, 2, 3, 9), [("model", 1), ("suffix", 3)], spelled.__getitem__, {9})
    assert found == [["a", "model"], ["", "suffix"], ["é", "suffix"]]


def test_durations_are_rounded() -> None:
    assert [duration(seconds) for seconds in (4.4, 89, 150)] == ["4 s", "89 s", "2 min"]


def test_drafts_are_measured_turn_by_turn_and_under_a_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    given = ["--workloads", "extraction,json_rag", "--prompt-tokens", "120", "--draft-types", "suffix"]
    given += ["--cases", "1", "--repeats", "1", "--max-tokens", "5", "--num-draft-tokens", "3"]
    given += ["--json", str(file)]
    assert main(["bench", "decode", *given]) == 0
    record = json.loads(file.read_text())
    rows = record["decode"]["rows"]
    assert [(row["workload"], row["turn"]) for row in rows] == [
        ("extraction", None), ("json_rag", None), *(("json_rag", turn) for turn in (1, 2, 3))
    ]  # fmt: skip
    assert all(row["parity"] == "PASS" and row["decode_tps"] > 0 for row in rows)
    assert rows[0]["constrained_plain_tps"] > 0
    assert rows[1]["tokens"] == sum(row["tokens"] for row in rows[2:])
    assert record["command"].startswith("reprise bench decode --workloads extraction,json_rag")
    assert record["cost_curve"][0]["width"] == 1
    samples = record["decode"]["samples"]
    assert [(one["workload"], one["draft_type"]) for one in samples] == [
        ("extraction", "suffix"), ("json_rag", "suffix")
    ]  # fmt: skip
    assert samples[1]["turn"] == 3
    assert {source for one in samples for _, source in one["tokens"]} <= {"model", "suffix", "grammar"}
    printed = capsys.readouterr()
    assert printed.out.count("PASS") == len(rows)
    assert "json_rag, 120 tokens (" in printed.err


def test_a_planted_divergence_is_reported_and_fails_the_command(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chats = ["the cat and the other mother", "walk " * 600]
    prompts, file, page = (tmp_path / name for name in ("mine.jsonl", "rows.csv", "page.html"))
    prompts.write_text("\n".join(json.dumps({"messages": [{"role": "user", "content": t}]}) for t in chats))
    true_answer: Callable[..., list[Finished]] = LocalEngine.answer

    def lying(local: LocalEngine, asked: Sequence[GenerationRequest]) -> list[Finished]:
        ends = true_answer(local, asked)
        if asked[0].draft.type != "ngram-mod":
            return ends
        return [replace(end, tokens=(*end.tokens[:3], 99, *end.tokens[4:])) for end in ends]

    monkeypatch.setattr(LocalEngine, "answer", lying)
    given = ["--model", str(model_folder), "--prompts", str(prompts), "--draft-types", "suffix,ngram-mod"]
    given += ["--max-tokens", "6", "--num-draft-tokens", "2", "--csv", str(file), "--html", str(page)]
    assert main(["bench", "decode", *given]) == 1
    rows = list(csv.DictReader(file.open(encoding="utf-8")))
    assert [(row["draft_type"], row["parity"], row["first_divergence_token"]) for row in rows] == [
        ("suffix", "PASS", ""),
        ("ngram-mod", "FAIL", "3"),
    ]
    assert float(rows[1]["first_divergence_margin"]) >= 0
    assert rows[1]["parity_differing"] == rows[1]["parity_pairs"] == "9"
    printed = capsys.readouterr().out
    assert "9 of 9 pairs of runs differ; the first at token 3" in printed
    assert "mine, turn 1: 1 chats skipped, too long for the model's context" in printed
    assert "ngram-mod" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--workloads", "prose"], "--workloads: prose is not one of"),
        (["--draft-types", "oracle"], "--draft-types: oracle is not one of auto"),
        (["--draft-types", "draft-model"], "draft-model needs a draft model; name one with --draft-model"),
        (["--num-draft-tokens", "4,999"], "--num-draft-tokens: 999 is above 255"),
        (["--columns", "speed"], "--columns: speed is not one of workload"),
        (["--prompts", "pyproject.toml"], "pyproject.toml: line 1 is not JSON"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "decode", *given]) == 2
    assert message in capsys.readouterr().err
