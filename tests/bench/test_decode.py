"""`reprise bench decode` measures drafts beside plain decoding, and compares every token."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reprise.bench.answering import row_of as turn_row_of
from reprise.bench.answering import token_texts
from reprise.bench.decode import COLUMNS, divergences, rows_of
from reprise.bench.document import print_rows
from reprise.bench.experiment import Row, parity
from reprise.bench.local_engine import LocalEngine
from reprise.cli.main import main
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.interface.events import DraftingReport, Finished, Usage
from reprise.engine.interface.request import GenerationRequest

PROMISED = """
workload draft_type num_draft_tokens prompt_tokens turn tokens decode_tps plain_tps prefill_tps
ttft_ms speedup acceptance acceptance_by_position tokens_per_forward drafted_share drafter_us_per_token parity
first_divergence energy_j_per_token
"""


def one_run(
    decode_s: float, number: int, drafts: tuple[int, int] = (4, 3), is_plain: bool = False, **more: Any
) -> Row:
    """Make a run of 10 tokens."""
    drafted, accepted = (0, 0) if is_plain else drafts
    return {
        "arm": "plain" if is_plain else "auto 31", "case": "edits 600 0", "round": number, "turn": 1,
        "workload": "edits", "prompt_tokens": 600, "draft_type": "none" if is_plain else "auto",
        "num_draft_tokens": 0 if is_plain else 31, "num_tokens": 10, "num_drafted": drafted,
        "num_accepted": accepted, "num_prefilled": 600,
        "prefill_s": 0.25, "first_token_s": 0.3, "decode_s": decode_s, "num_forwards": 10 if is_plain else 5,
        "by_position": [[2, 2], [2, 1]] if drafted else [], "drafter_s": 1e-4, "translation": {},
        "energy_j": 4.0 if is_plain else 2.0, "tokens": list(range(10)),
    } | more  # fmt: skip


PARITY = {"parity_pairs": 9, "parity_differing": 0, "first_divergence": None}


def runs(
    drafted_s: Sequence[float] = (0.5, 0.5, 0.4), plain_s: Sequence[float] = (1.0, 0.8, 1.0), **more: Any
) -> list[Row]:
    """Make the runs of one turn: plain in 1 and 0.8 s, drafted in 0.5 and 0.4 s."""
    plain = [one_run(s, at, is_plain=True, **more) for at, s in enumerate(plain_s, 1)]
    return plain + [one_run(s, at, **more) for at, s in enumerate(drafted_s, 1)]


def one_row(made: Sequence[Row], **check: Any) -> Row:
    """Return the row over all turns. check: changes to what is known of each answer."""
    places = {(one["case"], one["turn"], one["arm"]) for one in made}
    checks = [{"case": case, "turn": turn, "arm": arm} | PARITY | check for case, turn, arm in places]
    return rows_of(made, checks)[0]


def test_a_row_has_every_figure_that_was_promised() -> None:
    row = one_row(runs())
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
        "energy_j_per_token": 0.2,
        "plain_energy_j_per_token": 0.4,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert row["acceptance_by_position"] == [1.0, 0.5]
    assert (row["parity"], row["first_divergence"]) == ("PASS", None)


def test_the_speed_up_of_the_best_runs_is_within_its_range() -> None:
    made = runs((0.5, 0.5), (1.0, 2.0)) + runs((0.5, 0.5), (2.0, 1.0), case="edits 600 1")
    row = one_row(made)
    assert [row[name] for name in ("speedup_low", "speedup", "speedup_high")] == pytest.approx(
        [2.0, 2.0, 3.0]
    )


def test_chats_of_several_turns_have_a_row_over_all_and_one_of_each() -> None:
    made = [
        one
        for case in ("edits 600 0", "edits 600 1")
        for one in runs(case=case) + runs((0.2, 0.2, 0.2), case=case, turn=2)
    ]
    rows = rows_of(made, [])
    assert [row["turn"] for row in rows] == [None, 1, 2]
    assert [row["speedup"] for row in rows] == pytest.approx([1.6 / 0.6, 2.0, 4.0])
    assert [row["tokens"] for row in rows] == [40, 20, 20]


def test_a_row_also_says_what_it_would_be_without_answers_that_loop() -> None:
    looping = runs((0.1,), (1.0,), case="edits 600 1", tokens=[1] * 10)
    (row,) = rows_of(runs((0.5,), (1.0,)) + looping, [])
    assert (row["cases"], row["straight_cases"]) == (2, 1)
    assert (row["speedup"], row["straight"]["speedup"]) == pytest.approx((2.0 / 0.6, 2.0))
    (row,) = rows_of(looping, [])
    assert (row["straight_cases"], row["straight"]) == (0, None)


def test_what_was_not_measured_is_null_and_not_a_number() -> None:
    unmetered = runs(energy_j=None)
    row = one_row(unmetered)
    assert row["energy_j_per_token"] is None
    silent = one_row(runs(num_drafted=0, num_accepted=0, by_position=[]))
    assert silent["acceptance"] is None
    assert silent["acceptance_by_position"] == []
    assert silent["drafted_share"] == 0


def test_one_pair_that_differs_fails_the_row_and_is_reported() -> None:
    differing = parity([(1, 2, 3)], [(1, 2, 4)], lambda _: 0.125)
    made = runs() + runs(case="edits 600 1")
    of_cases = {"edits 600 0": PARITY, "edits 600 1": differing}
    checks = [{"case": case, "turn": 1, "arm": "auto 31"} | one for case, one in of_cases.items()]
    (row,) = rows_of(made, checks)
    assert row["parity"] == "FAIL"
    assert row["first_divergence"] == {"token": 2, "margin": 0.125}
    (said,) = divergences([row])
    assert "1 of 10 pairs of runs differ; the first at token 2" in said


def test_the_row_of_an_answer_has_its_counts() -> None:
    report = DraftingReport(
        4, 3, 5, 9, (("suffix", 4, 3),), ((2, 2), (2, 1)), drafter_s=1e-4, translation={"skipped": 1}
    )
    usage = Usage(600, 10, 0, queue_s=0.05, prefill_s=0.3, first_token_s=0.3, total_s=1.3, drafting=report)
    end = Finished("stop", usage, tuple(range(10)))
    row = turn_row_of(end)
    assert (row["num_tokens"], row["num_forwards"], row["decode_s"]) == (10, 5, pytest.approx(1.0))
    assert row["by_position"] == [[2, 2], [2, 1]]
    assert row["translation"] == {"skipped": 1}


def test_the_table_fits_120_columns_with_the_longest_names() -> None:
    long = {
        "workload": "passages_polish",
        "draft_type": "ngram-simple",
        "num_draft_tokens": 255,
        "turn": 3,
    }
    wide = one_row(runs()) | long | {"prefill_tps": 12345.6, "ttft_ms": 12345.6, "tokens": 99999}
    lines = printed([wide, one_row(runs())]).splitlines()
    (line,) = (line for line in lines if "passages_polish" in line)
    assert "ngram-simple" in line
    assert "PASS" in line
    assert max(map(len, lines)) <= 120


def printed(rows: Sequence[Row]) -> str:
    console = Console(width=120, file=io.StringIO(), record=True)
    print_rows(console, rows, COLUMNS, "a title")
    return console.export_text()


def test_a_character_of_several_tokens_belongs_to_the_last_of_them() -> None:
    spelled = {1: b"a", 2: b"\xc3", 3: b"\xa9", 9: b"<end>"}
    found = token_texts((1, 2, 3, 9), [("model", 1), ("suffix", 3)], spelled.__getitem__, {9})
    assert found == [["a", "model"], ["", "suffix"], ["é", "suffix"]]


def test_drafts_are_measured_turn_by_turn_and_under_a_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    given = ["--workloads", "quotes,json_rag", "--prompt-tokens", "120", "--draft-types", "suffix"]
    given += ["--cases", "1", "--repeats", "1", "--max-tokens", "5", "--num-draft-tokens", "3"]
    given += ["--json", str(file)]
    assert main(["bench", "decode", *given]) == 0
    record = json.loads(file.read_text())
    rows = record["decode"]["rows"]
    assert [(row["workload"], row["turn"]) for row in rows] == [
        ("quotes", None), ("json_rag", None), *(("json_rag", turn) for turn in (1, 2, 3))
    ]  # fmt: skip
    assert all(row["parity"] == "PASS" and row["decode_tps"] > 0 for row in rows)
    assert rows[1]["tokens"] == sum(row["tokens"] for row in rows[2:])
    assert record["command"].startswith("reprise bench decode --workloads quotes,json_rag")
    assert record["cost_curve"][0]["width"] == 1
    samples = record["decode"]["samples"]
    assert [(one["workload"], one["draft_type"]) for one in samples] == [
        ("quotes", "suffix"), ("json_rag", "suffix")
    ]  # fmt: skip
    assert {source for one in samples for _, source in one["tokens"]} <= {"model", "suffix", "grammar"}
    printed = capsys.readouterr()
    assert printed.out.count("PASS") == len(rows)
    assert "json_rag, 120 tokens" in printed.err


def test_every_draft_can_be_verified_whether_or_not_it_pays(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    given = ["--draft-model", str(BUNDLED_MODEL / "mtp"), "--draft-types", "mtp", "--num-draft-tokens", "3"]
    given += ["--workloads", "quotes", "--cases", "1", "--repeats", "1", "--max-tokens", "12"]
    assert main(["bench", "decode", *given, "--costs", "flat", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    (row,) = record["decode"]["rows"]
    assert row["parity"] == "PASS"
    assert row["drafted_by_position"][2] > 0
    assert record["cost_curve"] == []


def test_a_planted_divergence_is_reported_and_fails_the_command(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chats = ["the cat and the other mother", "walk " * 600]
    prompts, file, page = (tmp_path / name for name in ("mine.jsonl", "rows.json", "page.html"))
    prompts.write_text("\n".join(json.dumps({"messages": [{"role": "user", "content": t}]}) for t in chats))
    true_answer: Callable[..., list[Finished]] = LocalEngine.answer

    def lying(local: LocalEngine, asked: Sequence[GenerationRequest]) -> list[Finished]:
        ends = true_answer(local, asked)
        if asked[0].draft.type != "ngram-mod":
            return ends
        return [replace(end, tokens=(*end.tokens[:3], 99, *end.tokens[4:])) for end in ends]

    monkeypatch.setattr(LocalEngine, "answer", lying)
    given = ["--model", str(model_folder), "--prompts", str(prompts), "--draft-types", "suffix,ngram-mod"]
    given += ["--max-tokens", "6", "--num-draft-tokens", "2", "--json", str(file), "--html", str(page)]
    assert main(["bench", "decode", *given]) == 1
    rows = json.loads(file.read_text(encoding="utf-8"))["decode"]["rows"]
    assert [(row["draft_type"], row["parity"]) for row in rows] == [("suffix", "PASS"), ("ngram-mod", "FAIL")]
    first = rows[1]["first_divergence"]
    assert (first["token"], first["margin"] >= 0) == (3, True)
    assert rows[1]["parity_differing"] == rows[1]["parity_pairs"] == 9
    printed = capsys.readouterr().out
    assert "9 of 9 pairs of runs differ; the first at token 3" in printed
    assert "mine, turn 1: chats skipped, too long for the model's context" in printed
    assert "ngram-mod" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--workloads", "prose"], "--workloads: prose is not one of"),
        (["--draft-types", "oracle"], "--draft-types: oracle is not one of auto"),
        (["--draft-types", "draft-model"], "draft-model needs a draft model; name one with --draft-model"),
        (["--strategies", "magic"], "--strategies: magic is not one of auto, context, shared, none"),
        (["--costs", "cheap"], "--costs: cheap is not one of own, forced, flat"),
        (["--windows", "4"], "the bundled model is not a WeDLM model"),
        (["--num-draft-tokens", "4,999"], "--num-draft-tokens: 999 is above 255"),
        (["--prompts", "pyproject.toml"], "pyproject.toml: line 1 is not JSON"),
    ],
)
def test_wrong_arguments_are_refused_in_one_line(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "decode", *given]) == 2
    assert message in capsys.readouterr().err


def test_a_draft_model_of_another_vocabulary_is_measured_by_strategy_and_by_costs(
    model_folder: Path, other_model_folder: Path, tmp_path: Path
) -> None:
    file = tmp_path / "found.json"
    given = f"--model {model_folder} --draft-model {model_folder} --draft-model {other_model_folder}"
    given += (
        " --strategies context,shared --draft-types draft-model --num-draft-tokens 2,3 --costs own,forced"
    )
    given += " --workloads quotes --cases 1 --repeats 1 --max-tokens 12"
    assert main(["bench", "decode", *given.split(), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    rows = found["decode"]["rows"]
    assert {row["parity"] for row in rows} == {"PASS"}
    ways = product((model_folder, other_model_folder), ("context", "shared"))
    assert [(one["draft_model"], one["strategy"], one["costs"], one["num_draft_tokens"]) for one in rows] == [
        (folder.name, strategy, costs, length)
        for folder, strategy in ways
        for costs in ("own", "forced")
        for length in (2, 3)
    ]
    own = [one for one in rows if one["draft_model"] == model_folder.name and one["costs"] == "forced"]
    assert all(one["acceptance"] > 0.9 for one in own)
    assert any(one["translated"] for one in rows if one["draft_model"] == other_model_folder.name)
    assert found["cost_curve"][0]["width"] == 1


def test_a_table_that_another_model_has_filled_is_measured_beside_an_empty_one(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    given = "--draft-types ngram-mod --workloads quotes --cases 1 --repeats 1 --max-tokens 32 --costs flat"
    warm = f"{BUNDLED_MODEL},{BUNDLED_MODEL / 'draft'}"
    assert main(["bench", "decode", *given.split(), "--warm", warm, "--json", str(file)]) == 0
    rows = json.loads(file.read_text())["decode"]["rows"]
    cold, same, other = rows
    assert [one["memory"] for one in rows] == ["cold", "demo_model", "draft"]
    assert cold["occupancy"] == 0 < min(same["occupancy"], other["occupancy"])
    assert same["tokens_per_forward"] > cold["tokens_per_forward"]
    assert {one["parity"] for one in rows} == {"PASS"}


def test_a_table_of_another_vocabulary_is_refused(
    model_folder: Path, other_model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--model", str(model_folder), "--warm", str(other_model_folder), "--cases", "1"]
    assert main(["bench", "decode", "--workloads", "quotes", *given]) == 2
    assert "has another vocabulary than the model" in capsys.readouterr().err
