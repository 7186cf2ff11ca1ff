"""The replay: known answers, the real drafters and gate, and given step costs."""

import ast
import csv
import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import pytest

from bench.cost_curves import CPU_BF16, FLAT, M4_PRO, Curve
from bench.replay.edits import KINDS, edit, edit_cases, trap_cases
from bench.replay.job import Job, calibrate, rows_of, run_job
from bench.replay.pairs import Pair, TokenPair, write_pairs
from bench.replay.policies import FixedPlayer, Outcome, Setup, everything, in_hindsight
from bench.replay.rules import COMPARED, RULES
from cli.main import main as run_reprise
from config.settings import Settings
from drafters.base import NO_DRAFT
from tests.drafters.fakes import Oracle


def main(given: list[str]) -> int:
    return run_reprise(["bench", "replay", *given])


ROOT = Path(__file__).parent.parent.parent
FILES = [ROOT / "drafters"]
SETUP = Setup(Settings(num_draft_tokens=31, ngram_table_entries=65_536))


def encode(text: str) -> list[int]:
    """Return words, and the characters between them, as ids."""
    pieces = text.replace("\n", " \n ").replace("(", " ( ").replace(".", " . ").split(" ")
    return [crc32(piece.encode()) % 2**20 for piece in pieces]


@pytest.fixture(scope="module")
def edits() -> list[TokenPair]:
    cases = edit_cases(FILES, encode, 2, seed=3)
    return [replace(case, prompt=case.prompt[:900], answer=case.answer[:800]) for case in cases]


def job(pairs, rules, curves=(FLAT,)) -> Job:
    return Job(pairs, tuple(rules), tuple(curves), SETUP)


def outcomes_of(rule: str, pairs, curve: Curve = FLAT) -> list[Outcome]:
    player = RULES[rule].player(SETUP, curve)
    return [player.play(pair) for pair in pairs]


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_changes_a_file_and_is_the_same_for_the_same_seed(kind: str) -> None:
    text = (ROOT / "drafters" / "suffix.py").read_text()
    once, again = (edit(text, kind, random.Random(5))[0] for _ in range(2))
    assert once == again
    assert once != text


def test_renaming_keeps_a_file_python() -> None:
    text = (ROOT / "drafters" / "copies" / "history.py").read_text()
    for seed in range(6):
        ast.parse(edit(text, "rename", random.Random(seed))[0])


@pytest.mark.parametrize("rule", RULES)
def test_a_replay_says_the_whole_answer_whatever_the_rule(rule: str, edits: list[TokenPair]) -> None:
    for pair, outcome in zip(edits, outcomes_of(rule, edits, M4_PRO), strict=True):
        assert outcome.num_tokens == len(pair.answer)
        # Every forward commits one token beside the accepted ones, except a last one that ends the answer.
        assert outcome.num_forwards + outcome.num_accepted - outcome.num_tokens in (0, 1)
        assert outcome.cost_on(M4_PRO) == pytest.approx(outcome.cost)


def test_counts_are_those_of_a_drafter_whose_mistakes_are_known() -> None:
    answer = tuple(range(100, 140))
    wrong_at_every_third = SimpleNamespace(
        name="made", record_verified=lambda *_: None, close=lambda *_: None
    )
    said = []
    wrong_at_every_third.open = lambda _: None
    wrong_at_every_third.observe = lambda _, tokens: said.extend(tokens)
    wrong_at_every_third.propose = lambda query: replace(
        NO_DRAFT,
        tokens=[
            token if at % 3 < 2 else 7 for at, token in enumerate(answer[len(said) : len(said) + query.limit])
        ],
        source="made",
    )
    player = FixedPlayer(wrong_at_every_third, everything, 5, FLAT)
    outcome = player.play(TokenPair((1,), answer))
    # Thirteen steps accept two tokens, reject the third, and commit the target's own; one token is left.
    assert outcome.num_forwards == 14
    assert outcome.num_accepted == 27
    assert outcome.by_position[:3] == [[14, 14], [13, 13], [13, 0]]


def test_an_oracle_is_checked_as_widely_as_pays() -> None:
    pair = TokenPair((1, 2, 3), tuple(range(10, 110)))
    answers = {pair.prompt: pair.answer}
    step = Curve("step", ((1, 1.0), (4, 1.0), (5, 9.0), (32, 90.0)))
    outcome = FixedPlayer(Oracle(answers), in_hindsight, 31, step).play(pair)
    assert outcome.steps == {(3, 3): 25}
    assert outcome.cost == 25


def test_the_gate_gets_nearly_what_hindsight_gets(edits: list[TokenPair]) -> None:
    gated = sum(outcome.cost for outcome in outcomes_of("suffix", edits, M4_PRO))
    best = sum(outcome.cost for outcome in outcomes_of("hindsight", edits, M4_PRO))
    assert best <= gated < best / 0.8


@pytest.mark.parametrize("curve", [M4_PRO, CPU_BF16], ids=lambda curve: curve.name)
def test_no_trap_makes_an_answer_slower_than_the_ledger_allows(curve: Curve) -> None:
    for outcome in outcomes_of("auto", trap_cases(4, seed=2), curve):
        assert outcome.num_tokens / outcome.cost >= 0.97


def text_of(seed: int, length: int = 80) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(5000), k=length))


@pytest.mark.parametrize("rule", ["auto", "ngram-mod", "ngram-mod-24"])
def test_what_is_remembered_is_forgotten_between_chats_unless_it_is_to_stay(rule: str) -> None:
    answer = text_of(1)
    turns = [TokenPair(text_of(2), answer, "w", "one", 1), TokenPair(text_of(3), answer, "w", "one", 2)]
    apart = [replace(turns[0], chat=""), replace(turns[1], chat="")]

    def copied(name: str, pairs) -> int:
        return run_job(job(pairs, [name]), 1, lambda _: None)[name, "w", "flat"].num_accepted

    assert copied(rule, turns) > 30
    assert copied(rule, apart) == 0
    assert copied(f"{rule}-warm", apart) > 30


def test_a_pair_that_is_not_measured_teaches_and_does_not_count() -> None:
    answer = text_of(1)
    pairs = [
        TokenPair(text_of(2), answer, "w", "one", 1, is_measured=False),
        TokenPair(text_of(3), answer, "w", "one", 2),
    ]
    group = run_job(job(pairs, ["auto"]), 1, lambda _: None)["auto", "w", "flat"]
    assert group.num_pairs == 1
    assert group.num_accepted > 30


def test_other_processes_find_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [TokenPair(text_of(seed), text_of(seed), "w") for seed in range(4)]
    whole = job(pairs, ["newest-2", "newest-3"])
    alone = run_job(whole, 1, lambda _: None)
    shares: list[float] = []
    monkeypatch.setattr("bench.replay.job.MIN_PARALLEL_TOKENS", 0)
    together = run_job(whole, 2, shares.append)
    assert alone.keys() == together.keys()
    for key, outcome in alone.items():
        assert (together[key].steps, together[key].cost) == (outcome.steps, outcome.cost)
    assert sum(shares) == pytest.approx(1)


def test_rows_say_what_the_counts_say() -> None:
    outcome = Outcome()
    outcome.add_step(3, 2, 3, 1.5)
    outcome.add_step(0, 0, 1, 1.0)
    counted = {"num_pairs": 1, "num_prompt_tokens": 8, "drafter_ns": 8000, "open_ns": 16000, "slowest": 1.6}
    found = {("auto", name, "flat"): replace(outcome, **counted) for name in ("a", "b")}
    one, other, both = rows_of(found, ["auto"], [FLAT])
    assert not one["is_hindsight"]
    assert (one["workload"], other["workload"], both["workload"]) == ("a", "b", "all")
    assert one["tokens_per_forward"] == 2
    assert (one["curve"], one["speedup"]) == ("flat", 1.6)
    assert one["acceptance_by_position"] == [1, 1, 0]
    assert one["coverage"] == 0.5
    assert one["coverage_of_steps"] == 0.5
    assert one["drafter_us_per_token"] == 2
    assert one["open_us_per_prompt_token"] == 2
    assert both["tokens"] == 8
    assert both["speedup"] == 1.6


def test_calibration_counts_the_tokens_up_to_the_first_wrong_one() -> None:
    prompt = text_of(1, 120)
    answer = (*prompt[:60], *text_of(2, 40))
    counts = calibrate([TokenPair(prompt, answer)], SETUP, M4_PRO)
    assert counts.right.total() > 30
    assert all(counts.right[bucket] <= compared for bucket, compared in counts.compared.items())
    assert calibrate([TokenPair(text_of(3), text_of(4))], SETUP, M4_PRO).compared.total() == 0


def test_the_command_replays_a_file_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, curve = tmp_path / "pairs.jsonl", tmp_path / "curve.json"
    text = "The quick brown fox jumps over the lazy dog, and the dog does not mind it.\n"
    pairs = [Pair(f"Repeat the text.\n{text}", text, "copies"), Pair("Say nothing.", "")]
    write_pairs(file, pairs)
    points = {"name": "mine", "kind": "measured", "source": "a test", "points": [[1, 2.0], [32, 2.0]]}
    curve.write_text(json.dumps(points))
    asked = ["--pairs", file, "--cost-curve", curve, "--drafters", "auto,newest-2"]
    status = main([*map(str, asked), "--json", f"{tmp_path}/r.json", "--csv", f"{tmp_path}/r.csv"])
    assert status == 0
    printed = capsys.readouterr().out
    assert "1 pair, 1 left out for having no answer" in printed
    assert "copies: 1 pair," in printed
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["command"].startswith(f"reprise bench replay --pairs {file}")
    said = document["replay"]
    assert [row["drafter"] for row in said["rows"]] == ["auto", "newest-2"]
    for row in said["rows"]:
        # Width costs nothing there.
        assert row["curve"] == "mine"
        assert row["speedup"] == row["tokens_per_forward"] > 2
    assert said["curves"][0]["kind"] == "measured"
    with (tmp_path / "r.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["drafter"], row["curve"]) for row in rows] == [("auto", "mine"), ("newest-2", "mine")]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--drafters", "guess"], "--drafters: guess is not one of auto"),
        (["--pairs", "/nowhere.jsonl"], "cannot read /nowhere.jsonl"),
        (["--cost-curve", "/nowhere.json"], "/nowhere.json cannot be read"),
        (["--tokenizer", "/nowhere"], "/nowhere is not a model folder"),
        (["--workloads", "guess"], "--workloads: guess is not one of records"),
        (["--edits", "0", "--prose", "0", "--traps", "0"], "there is no pair to replay"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    given: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    said = capsys.readouterr().err
    assert said.startswith("reprise bench replay: ")
    assert reason in said
    assert said.count("\n") == 1


def test_what_is_compared_unless_asked_otherwise_are_rules() -> None:
    assert set(COMPARED) <= set(RULES)


def test_right_answers_of_workloads_are_replayed_turn_after_turn(tmp_path: Path) -> None:
    asked = ["--workloads", "edits_short", "--chats", "1", "--drafters", "auto,newest-2"]
    asked += ["--cost-curve", "apple-m4-pro-4bit"]
    assert main([*asked, "--json", str(tmp_path / "r.json")]) == 0
    rows = json.loads((tmp_path / "r.json").read_text())["replay"]["rows"]
    assert {row["workload"] for row in rows} == {"edits_short"}
    auto, newest = rows
    assert auto["pairs"] == newest["pairs"] > 1
    assert auto["speedup"] > newest["speedup"] > 1
