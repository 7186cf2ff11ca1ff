"""`reprise bench sweep`: tables under traffic, and the acceptance from which drafts pay."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from reprise.bench.cost_curves import M4_PRO
from reprise.bench.experiment import Row
from reprise.bench.local_engine import forced_costs
from reprise.bench.replay.pairs import TokenPair
from reprise.bench.replay.rules import Setup
from reprise.bench.replay.traffic import AGAIN, NEW, SHARES, make_traffic
from reprise.bench.sweep import LEVELS, ControlledDrafter, fill, fit, model_needs
from reprise.cli.main import main
from reprise.config.settings import Settings
from reprise.drafters.base import DraftQuery, SequenceStart

ROOT = Path(__file__).parent.parent.parent
SETUP = Setup(Settings(ngram_table_entries=1 << 16), M4_PRO)
PLAIN_TPS = 100.0


def encode(text: str) -> list[int]:
    """Return words as ids."""
    return [zlib.crc32(word.encode()) % 2**20 for word in text.split()]


def make(count: int) -> list[TokenPair]:
    return [*make_traffic(ROOT, count, 1, encode)]


@pytest.fixture(scope="module")
def traffic() -> list[TokenPair]:
    return make(40)


def test_a_short_traffic_is_the_beginning_of_a_long_one(traffic: list[TokenPair]) -> None:
    assert make(10) == traffic[:10]


def test_repeated_texts_are_the_answers_of_earlier_requests(traffic: list[TokenPair]) -> None:
    assert {asked.workload for asked in traffic} == {*SHARES}
    for number, asked in enumerate(traffic):
        answers = [earlier.answer for earlier in traffic[:number]]
        if asked.workload in (AGAIN, NEW):
            was_answered = asked.answer in [*answers, *(answer[1:-1] for answer in answers)]
            assert was_answered == (asked.workload == AGAIN)


def test_a_larger_table_drafts_more(traffic: list[TokenPair]) -> None:
    small, large = (fill(SETUP, traffic, entries, 16) for entries in (4096, 1 << 20))
    assert (small["entries"], large["entries"], large["requests"]) == (4096, 1 << 20, 40)
    assert small["occupancy"] > large["occupancy"]
    assert small["tokens_per_forward"] < large["tokens_per_forward"]


def step_cost(length: int, r: float = 0.2, beta: float = 0.02) -> float:
    """Return the step cost, in plain steps, for a break-even at r + beta * length."""
    return 1 + length * (r + beta * length)


def planted(chat: int, length: int, acceptance: float, cost: float) -> Row:
    """Make a point of 50 steps, each verifying a full draft. cost: of such a step, in plain steps."""
    steps = 50
    accepted = round(steps * length * acceptance)
    tokens = steps + accepted
    return {
        "chat": chat, "num_draft_tokens": length, "tokens_per_forward": tokens / steps,
        "acceptance": accepted / (steps * length), "speedup": tokens / (steps * cost),
        "plain_tps": PLAIN_TPS,
    }  # fmt: skip


def test_planted_lines_and_break_evens_are_found_again() -> None:
    points = [
        planted(chat, length, level, step_cost(length))
        for chat in range(4)
        for length in (1, 2, 4, 8)
        for level in LEVELS
    ]
    fits = fit(points)
    assert [one["num_draft_tokens"] for one in fits] == [1, 2, 4, 8]
    for one in fits:
        length, cost = one["num_draft_tokens"], step_cost(one["num_draft_tokens"])
        assert one["a"] == pytest.approx(PLAIN_TPS / cost, rel=1e-3)
        assert one["b"] == pytest.approx(PLAIN_TPS * length / cost, rel=1e-3)
        assert one["break_even"] == pytest.approx(0.2 + 0.02 * length, abs=1e-3)
        assert one["low"] == pytest.approx(one["high"]) == pytest.approx(one["break_even"])
        assert one["step_cost"] == pytest.approx(cost, rel=1e-3)
        assert one["n"] == 20


def test_a_draft_model_has_its_own_time_in_its_steps() -> None:
    (found,) = model_needs([planted(chat, 4, 0.5, 2.0) for chat in range(3)])
    assert (found["num_draft_tokens"], found["break_even"]) == (4, pytest.approx(0.25))


@pytest.mark.parametrize("length", [1, 4, 16])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.7, 1.0])
def test_a_chance_gives_the_intended_acceptance(share: float, length: int) -> None:
    drafter = ControlledDrafter()
    drafter.aim(share, length)
    # Tokens after a wrong one count as rejected.
    accepted = sum(drafter.chance**place for place in range(1, length + 1))
    assert accepted / length == pytest.approx(share, abs=0.01)


def test_tokens_are_drafted_correctly_at_the_chosen_rate() -> None:
    answer = tuple(range(1000, 3000))
    drafter = ControlledDrafter()
    drafter.chance = 0.7
    drafter.open(SequenceStart(0, (1,), answer))
    draft = drafter.propose(DraftQuery(0, 2000)).tokens
    assert sum(a == b for a, b in zip(draft, answer, strict=True)) == pytest.approx(1400, abs=80)
    drafter.observe(0, answer[:1990])
    assert len(drafter.propose(DraftQuery(0, 20)).tokens) == 10
    drafter.close(0)


def test_forced_costs_make_the_widest_draft_the_best_and_learn_nothing() -> None:
    costs = forced_costs(16)
    for _ in range(1000):
        costs.observe_wide([17], 5000.0)
        costs.observe_plain(1, 1.0)
    speeds = [1 / costs.seconds(1, 1)]
    speeds += [1.001 / costs.seconds(1, width) for width in range(2, 18)]
    assert speeds == sorted(speeds)


def test_the_command_measures_every_acceptance_and_a_page_shows_it(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {name: tmp_path / f"found.{name}" for name in ("json", "html")}
    given = (
        f"--model {model_folder} --draft-model {model_folder} --workloads quotes --chats 2 --max-tokens 12"
    )
    given += " --num-draft-tokens 1,4 --ngram-sizes 4 --requests 2 --table-entries 4096,65536"
    given += "".join(f" --{name} {file}" for name, file in names.items())
    assert main(["bench", "sweep", *given.split()]) == 0
    found: dict[str, Any] = json.loads(names["json"].read_text())
    section = found["sweep"]
    points = [one for one in section["points"] if one["drafts"] == "controlled"]
    assert len(points) == 2 * 2 * len(LEVELS)
    assert {one["parity"] for one in points} == {"PASS"}
    for length in (1, 4):
        shares = [one["acceptance"] for one in points if one["num_draft_tokens"] == length]
        assert (min(shares), max(shares)) == (0.0, 1.0)
    # The draft model is the model itself.
    of_model = [one for one in section["points"] if one["drafts"] == "draft-model"]
    assert {one["num_draft_tokens"]: one["acceptance"] for one in of_model} == {1: 1.0, 4: 1.0}
    assert [one["num_draft_tokens"] for one in section["draft_model"]] == [1, 4]
    assert [row["entries"] for row in section["table_sizes"]] == [4096, 65536]
    assert [row["ngram_size"] for row in section["ngram_sizes"]] == [4]
    assert "Speed by acceptance" in names["html"].read_text()
    assert "0 of 24 drafted answers differ" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--workloads", "edit"], "--workloads: edit is not one of"),
        (["--parts", "magic"], "--parts: magic is not one of tables, break-even"),
        (["--num-draft-tokens", "1,999"], "999 is above 255"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "sweep", *given]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
