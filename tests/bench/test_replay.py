"""The replay: known answers, the real drafters and gate, and given step costs."""

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from zlib import crc32

import pytest

from reprise.bench.cost_curves import CPU_BF16, FLAT, M4_PRO, Curve
from reprise.bench.experiment import Row
from reprise.bench.replay.pairs import TokenPair
from reprise.bench.replay.rules import (
    COMPARED,
    RULES,
    FixedPlayer,
    Outcome,
    Setup,
    SimulatedHead,
    figures,
)
from reprise.bench.replay.run_replay import replay
from reprise.bench.replay.traffic import EDIT, make_traffic
from reprise.cli.main import main as run_reprise
from reprise.config.settings import Settings
from reprise.drafters.base import NO_DRAFT
from tests.drafters.fakes import Oracle


def main(given: list[str]) -> int:
    return run_reprise(["bench", "replay", *given])


ROOT = Path(__file__).parent.parent.parent
SETUP = Setup(Settings(num_draft_tokens=31, ngram_table_entries=65_536))


def encode(text: str) -> list[int]:
    """Return words, and the characters between them, as ids."""
    pieces = text.replace("\n", " \n ").replace("(", " ( ").replace(".", " . ").split(" ")
    return [crc32(piece.encode()) % 2**20 for piece in pieces]


@pytest.fixture(scope="module")
def edits() -> list[TokenPair]:
    cases = [pair for pair in make_traffic(ROOT / "drafters", 20, 3, encode) if pair.workload == EDIT][:2]
    return [replace(case, prompt=case.prompt[:900], answer=case.answer[:800]) for case in cases]


def outcomes_of(rule: str, pairs, curve: Curve = FLAT) -> list[Outcome]:
    player = RULES[rule].player(replace(SETUP, curve=curve))
    return [player.play(pair) for pair in pairs]


def rows_of(pairs, *rules: str, curves=(FLAT,)) -> list[Row]:
    return replay(pairs, [RULES[name] for name in rules], [replace(SETUP, curve=one) for one in curves])


@pytest.mark.parametrize("rule", RULES)
def test_a_replay_says_the_whole_answer_whatever_the_rule(rule: str, edits: list[TokenPair]) -> None:
    for pair, outcome in zip(edits, outcomes_of(rule, edits, M4_PRO), strict=True):
        assert outcome.num_tokens == len(pair.answer)
        # Every forward commits one token beside the accepted ones, except a last one that ends the answer.
        num_committed = sum(1 + accepted for _, accepted in outcome.steps)
        assert num_committed - outcome.num_tokens in (0, 1)
        cost = sum(M4_PRO.cost(1 + verified) for verified, _ in outcome.steps)
        if RULES[rule].head:
            assert outcome.cost > cost
        else:
            assert outcome.cost == pytest.approx(cost)


def test_counts_are_those_of_a_drafter_whose_mistakes_are_known() -> None:
    answer = tuple(range(100, 140))
    wrong_at_every_third = SimpleNamespace(name="made", note_verified=lambda *_: None, close=lambda *_: None)
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
    player = FixedPlayer(wrong_at_every_third, 5, FLAT.cost)
    outcome = player.play(TokenPair((1,), answer))
    # Thirteen steps accept two tokens, reject the third, and commit the target's own; one token is left.
    assert Counter(outcome.steps) == {(5, 2): 12, (4, 2): 1, (1, 1): 1}
    found = figures([outcome])
    assert found["coverage"] == 27 / 40
    assert found["acceptance_by_position"][:3] == [1, 1, 0]


def test_an_oracle_is_checked_as_widely_as_pays() -> None:
    pair = TokenPair((1, 2, 3), tuple(range(10, 110)))
    answers = {pair.prompt: pair.answer}
    step = Curve("step", ((1, 1.0), (4, 1.0), (5, 9.0), (32, 90.0)))
    outcome = FixedPlayer(Oracle(answers), 31, step.cost, in_hindsight=True).play(pair)
    assert Counter(outcome.steps) == {(3, 3): 25}
    assert outcome.cost == 25


def test_the_gate_gets_nearly_what_hindsight_gets(edits: list[TokenPair]) -> None:
    gated = sum(outcome.cost for outcome in outcomes_of("suffix", edits, M4_PRO))
    best = sum(outcome.cost for outcome in outcomes_of("hindsight", edits, M4_PRO))
    assert best <= gated < best / 0.8


def trap_cases(count: int, seed: int) -> list[TokenPair]:
    """Make prompts in which all n-grams of the answer occur, always followed by a wrong token."""
    rng = random.Random(seed)
    cases = []
    for size in (2, 5, 12, 20)[:count]:
        answer = [rng.randrange(1000, 3000) for _ in range(400)]
        prompt = [token for at in range(size, 400) for token in (*answer[at - size : at], 1 + at)]
        cases.append(TokenPair(tuple(prompt), tuple(answer), "trap"))
    return cases


@pytest.mark.parametrize("curve", [M4_PRO, CPU_BF16], ids=lambda curve: curve.name)
def test_no_trap_makes_an_answer_slower_than_the_ledger_allows(curve: Curve) -> None:
    for outcome in outcomes_of("auto", trap_cases(4, seed=2), curve):
        assert outcome.num_tokens / outcome.cost >= 0.97


def mixed_cases(count: int) -> list[TokenPair]:
    """Make answers of which a half is copied from the prompt, in pieces, and a half is new."""
    rng, cases = random.Random(5), []
    # A simulated head is right elsewhere in each, as prompts differ in length.
    for at in range(count):
        prompt = rng.choices(range(20_000), k=2000 + at)
        answer: list[int] = []
        for length in (40, 600, 12, 150):
            start = rng.randrange(2000 - length)
            answer += prompt[start : start + length] + rng.choices(range(20_000), k=length)
        cases.append(TokenPair(tuple(prompt), tuple(answer), "mixed"))
    return cases


@pytest.mark.parametrize(
    "curve", [M4_PRO, pytest.param(CPU_BF16, marks=pytest.mark.slow)], ids=lambda curve: curve.name
)
@pytest.mark.parametrize(
    "rate", [0.0, 0.5, 0.9, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (0.3, 0.4, 0.6, 0.7))]
)
def test_lookups_and_a_head_together_are_no_slower_than_either(rate: float, curve: Curve) -> None:
    pairs, heads = mixed_cases(8), [SimulatedHead(rate, cost) for cost in (0.05, 0.1)]
    rules = [rule for name in ("auto", "head", "auto-head") for rule in RULES[name].with_heads(heads)]
    rows = replay(pairs, rules, [replace(SETUP, curve=curve)])
    lookups, *by_head = [row["speedup"] for row in rows]
    for alone, together in zip(by_head[:2], by_head[2:], strict=True):
        assert together >= 0.99 * max(lookups, alone)
        assert together > 1.1 * lookups or rate < 0.5 or curve is CPU_BF16


def text_of(seed: int, length: int = 80) -> tuple[int, ...]:
    return tuple(random.Random(seed).choices(range(5000), k=length))


@pytest.mark.parametrize("rule", ["auto", "ngram-mod"])
def test_what_is_remembered_is_forgotten_between_chats_unless_it_is_to_stay(rule: str) -> None:
    answer = text_of(1)
    turns = [TokenPair(text_of(2), answer, "w", "one", 1), TokenPair(text_of(3), answer, "w", "one", 2)]
    apart = [replace(turns[0], chat=""), replace(turns[1], chat="")]

    def copied(name: str, pairs) -> float:
        return rows_of(pairs, name)[0]["coverage"]

    assert copied(rule, turns) > 0.2
    assert copied(rule, apart) == 0
    assert copied(f"{rule}-warm", apart) > 0.2


def test_rows_are_for_each_workload_rule_and_curve_and_for_all_workloads() -> None:
    pairs = [TokenPair((1, 2, 3), text_of(seed), name) for seed, name in ((1, "a"), (2, "b"), (3, "a"))]
    rows = rows_of(pairs, "newest-2", "hindsight", curves=(FLAT, M4_PRO))
    assert [(row["workload"], row["drafter"], row["curve"]) for row in rows] == [
        (workload, drafter, curve.name)
        for workload in ("a", "b", "all")
        for drafter in ("newest-2", "hindsight")
        for curve in (FLAT, M4_PRO)
    ]
    assert [rows[at]["pairs"] for at in (0, 4, 8)] == [2, 1, 3]
    assert [rows[at]["tokens"] for at in (0, 4, 8)] == [160, 80, 240]
    assert rows[8]["slowest"] == min(rows[0]["slowest"], rows[4]["slowest"])
    assert rows[0]["speedup"] == rows[0]["tokens_per_forward"] >= 1


def test_figures_say_what_the_counts_say() -> None:
    outcome = Outcome()
    assert outcome.verify([1, 2, 9], [1, 2, 3, 4], 1.5) == 2
    assert outcome.verify([], [4], 1.0) == 0
    assert (
        figures([outcome, outcome])
        == figures([outcome]) | {"tokens": 8}
        == {
            "tokens": 8,
            "speedup": 1.6,
            "tokens_per_forward": 2,
            "acceptance": 2 / 3,
            "coverage": 0.5,
            "acceptance_by_position": [1, 1, 0],
        }
    )


def test_the_command_replays_a_file_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, curve = tmp_path / "pairs.jsonl", tmp_path / "curve.json"
    text = "The quick brown fox jumps over the lazy dog, and the dog does not mind it.\n"
    pairs = [
        {"prompt": f"Repeat the text.\n{text}", "output": text, "workload": "copies"},
        {"prompt": "Say nothing.", "output": ""},
    ]
    file.write_text("\n".join(map(json.dumps, pairs)))
    about = {"command": "reprise bench decode", "date": "today", "machine": {"cpu": "Chip"}, "decode": {}}
    costs = [{"width": width, "seconds": 2.0} for width in (1, 32)]
    curve.write_text(json.dumps(about | {"model": {"name": "Model"}, "cost_curve": costs}))
    asked = ["--pairs", file, "--cost-curve", curve, "--drafters", "auto,newest-2"]
    status = main([*map(str, asked), "--json", f"{tmp_path}/r.json"])
    assert status == 0
    printed = capsys.readouterr().out
    assert printed.count("copies") == 2
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["command"].startswith(f"reprise bench replay --pairs {file}")
    said = document["replay"]
    assert [row["drafter"] for row in said["rows"]] == ["auto", "newest-2"]
    for row in said["rows"]:
        # Width costs nothing there.
        assert row["curve"] == "Model on Chip"
        assert row["speedup"] == row["tokens_per_forward"] > 2
    assert said["curves"][0]["kind"] == "measured"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--drafters", "guess"], "--drafters: guess is not one of auto"),
        (["--pairs", "/nowhere.jsonl"], "No such file or directory: '/nowhere.jsonl'"),
        (["--cost-curve", "/nowhere.json"], "No such file or directory: '/nowhere.json'"),
        (["--tokenizer", "/nowhere"], "/nowhere is not a model folder"),
        (["--pairs", "/dev/null"], "/dev/null: the file contains no chats"),
        (["--workloads", "free", "--cases", "1"], "there is no pair to replay"),
        (["--head-rates", "2"], "2 is not a number from 0 to 1"),
        (["--workloads", "prose"], "--workloads: prose is not one of records"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    given: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(given) == 2
    said = capsys.readouterr().err
    assert said.startswith("reprise")
    assert reason in said
    assert said.count("\n") == 1


def test_each_rate_of_a_simulated_head_is_a_rule(tmp_path: Path) -> None:
    asked = ["--workloads", "edits_short", "--cases", "1", "--cost-curve", "apple-m4-pro-4bit"]
    asked += ["--drafters", "head", "--head-rates", "0.2,0.9", "--head-cost", "0"]
    assert main([*asked, "--json", str(tmp_path / "r.json")]) == 0
    rows = json.loads((tmp_path / "r.json").read_text())["replay"]["rows"]
    assert [row["drafter"] for row in rows] == ["head 0.2", "head 0.9"]
    assert rows[0]["speedup"] < rows[1]["speedup"]


def test_what_is_compared_unless_asked_otherwise_are_rules() -> None:
    assert set(COMPARED) <= set(RULES)


def test_right_answers_of_workloads_are_replayed_turn_after_turn(tmp_path: Path) -> None:
    asked = ["--workloads", "edits_short", "--cases", "1", "--drafters", "auto,newest-2"]
    asked += ["--cost-curve", "apple-m4-pro-4bit"]
    assert main([*asked, "--json", str(tmp_path / "r.json")]) == 0
    auto, newest = json.loads((tmp_path / "r.json").read_text())["replay"]["rows"]
    assert auto["workload"] == newest["workload"] == "edits_short"
    assert auto["pairs"] == newest["pairs"] > 1
    assert auto["speedup"] > newest["speedup"] > 1
