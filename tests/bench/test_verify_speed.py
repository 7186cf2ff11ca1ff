"""`reprise verify --speed` times each request both ways, and fails for one that drafting slows down."""

import json
from pathlib import Path

import pytest

from reprise.bench.answering import Answering, Arm, Case
from reprise.bench.experiment import Row
from reprise.bench.verify import is_chance, judge
from reprise.cli.main import main
from reprise.engine.speculative.costs.slowdown_budget import ALLOWANCE_STEPS, PROBING_SHARE

STEP_S = 0.01
PLAIN = [1.0, 1.02, 1.01, 0.99, 1.0, 1.0]
SLACK = 0.02 + PROBING_SHARE + ALLOWANCE_STEPS * STEP_S


def slower(by: float) -> list[float]:
    return [one * by for one in PLAIN]


def verdict(plain: list[float], drafted: list[float]) -> str:
    return judge(plain, drafted, STEP_S, overhead=0.02)["verdict"]


@pytest.mark.parametrize("by", [0.5, 1.0, 1 + SLACK - 0.001])
def test_a_request_within_its_share_and_six_steps_passes(by: float) -> None:
    assert verdict(PLAIN, slower(by)) == "within"


def test_a_request_that_is_slower_by_more_than_the_noise_fails() -> None:
    judged = judge(PLAIN, slower(1.2), STEP_S, overhead=0.02)
    assert judged["verdict"] == "over"
    assert judged["bound_s"] == pytest.approx(judged["plain_s"] + SLACK)
    assert judged["noise_s"] < 0.03


def test_only_what_plain_runs_differ_by_and_a_disturbed_round_are_excuses() -> None:
    assert verdict([1.0, 1.6, 1.3, 0.9, 1.7, 1.1], slower(1.5)) == "unclear"
    assert verdict(PLAIN, [1.2, 1.2, 1.2, 1.2, 1.0, 1.0]) == "unclear"
    assert verdict(PLAIN, [1.2, 3.0, 1.5, 1.2, 2.0, 1.4]) == "over"


def test_drafted_runs_that_are_slow_now_and_then_are_no_chance() -> None:
    judged = judge(PLAIN, [1.0, 1.0, 1.0, 9.0, 1.0, 1.0], STEP_S, overhead=0.02)
    assert judged["verdict"] == "within"
    assert (judged["num_slow_plain"], judged["num_slow_drafted"]) == (0, 1)
    assert is_chance(0, 1)
    assert is_chance(20, 25)
    assert not is_chance(0, 10)
    assert not is_chance(3, 20)


def test_every_request_of_the_users_chats_is_listed_with_its_runs(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = [{"role": "user", "content": "the water wall the water wall"}]
    later = [*first, {"role": "assistant", "content": "the cat"}, {"role": "user", "content": "and the cat?"}]
    prompts, file = tmp_path / "chats.jsonl", tmp_path / "result.json"
    lines = [{"messages": messages, "max_tokens": 6} for messages in (first, later)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    given = ["--model", str(model_folder), "--prompts", str(prompts), "--rounds", "2", "--json", str(file)]
    assert main(["verify", "--speed", *given]) in (0, 1)  # Times are whatever this machine makes of them.
    printed = capsys.readouterr().out
    assert "chats 1" in printed
    assert "2 requests:" in printed
    rows = json.loads(file.read_text())["verify"]["rows"]
    expected = [(f"chats {n}", time) for n in (1, 2) for time in ("first token", "answer")]
    assert [(row["chat"], row["time"]) for row in rows] == expected
    for row in rows:
        assert not row["answers_differ"]
        assert len(row["plain_runs_s"]) == len(row["drafted_runs_s"]) == 4
        assert row["bound_s"] > row["plain_s"] > 0


def test_a_request_over_the_bound_gives_exit_status_1(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true_run = Answering.run
    order: list[str] = []

    def slow(answering: Answering, case: Case, arm: Arm) -> list[Row]:
        order.append(arm.draft_type)
        seconds = 1.0 if arm.draft_type == "none" else 10.0
        return [row | {"decode_s": seconds} for row in true_run(answering, case, arm)]

    monkeypatch.setattr(Answering, "run", slow)
    prompts = tmp_path / "chats.jsonl"
    prompts.write_text('{"messages": [{"role": "user", "content": "the cat"}], "max_tokens": 4}')
    given = f"--model {model_folder} --prompts {prompts} --speed --rounds 2"
    assert main(["verify", *given.split()]) == 1
    assert "1 requests: 1 over the bound" in capsys.readouterr().out
    assert order[2:] == ["none", "auto", "auto", "none"] * 2


def test_rounds_without_speed_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--rounds", "2"]) == 2
    assert capsys.readouterr().err == "reprise verify: --rounds needs --speed\n"


def test_chats_without_room_for_an_answer_are_refused(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "chats.jsonl"
    prompts.write_text(json.dumps({"prompt": "the water wall " * 400}))
    assert main(["verify", "--model", str(model_folder), "--prompts", str(prompts), "--speed"]) == 2
    assert "too long for this model's context" in capsys.readouterr().err
