"""Controlled drafts are wrong at the chosen rate, and the engine verifies every one of them."""

import csv
import json

import pytest

from reprise.bench.economics.trials import ControlledDrafter, forced_costs
from reprise.cli.main import main
from reprise.drafters.base import DraftQuery, SequenceStart


@pytest.mark.parametrize("length", [1, 4, 16])
@pytest.mark.parametrize("share", [0.0, 0.25, 0.7, 1.0])
def test_a_chance_gives_the_intended_acceptance(share, length):
    drafter = ControlledDrafter()
    drafter.aim(share, length)
    # Tokens after a wrong one count as rejected.
    accepted = sum(drafter.chance**place for place in range(1, length + 1))
    assert accepted / length == pytest.approx(share, abs=0.01)


def test_tokens_are_drafted_correctly_at_the_chosen_rate():
    answer = tuple(range(1000, 3000))
    drafter = ControlledDrafter()
    drafter.chance = 0.7
    drafter.open(SequenceStart(0, (1,), answer))
    draft = drafter.propose(DraftQuery(0, 2000)).tokens
    assert sum(a == b for a, b in zip(draft, answer, strict=True)) == pytest.approx(1400, abs=80)
    drafter.observe(0, answer[:1990])
    assert len(drafter.propose(DraftQuery(0, 20)).tokens) == 10
    drafter.close(0)


def test_forced_costs_make_the_widest_draft_the_best_and_learn_nothing():
    costs = forced_costs(16)
    for _ in range(1000):
        costs.observe_wide([17], 5000.0)
        costs.observe_plain(1, 1.0)
    speeds = [width / costs.seconds(1, 1) for width in (1,)] + [
        1.001 / costs.seconds(1, width) for width in range(2, 18)
    ]
    assert speeds == sorted(speeds)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_small_run_measures_every_acceptance_and_ends_with_advice(model_folder, tmp_path, capsys):
    names = {name: tmp_path / f"found.{name}" for name in ("json", "csv", "html")}
    given = ["--model", str(model_folder), "--workloads", "quotes", "--chats", "2", "--max-tokens", "12"]
    given += ["--num-draft-tokens", "1,4", "--draft-types", "suffix", "--draft-model", str(model_folder)]
    for name, file in names.items():
        given += [f"--{name}", str(file)]
    assert main(["bench", "economics", *given]) == 0
    found = json.loads(names["json"].read_text())
    points = [one for one in found["economics"]["points"] if one["draft_type"] == "controlled"]
    assert len(points) == 2 * 2 * 5
    for one in points:
        # Every step verified a draft, except the last, which has no room for one.
        assert one["drafted"] >= one["forwards"] - 1
        assert one["parity"] == "PASS"
    for length in (1, 4):
        shares = [one["acceptance"] for one in points if one["num_draft_tokens"] == length]
        assert min(shares) == 0.0
        assert max(shares) == 1.0
    # The draft model is the model itself.
    of_model = [one for one in found["economics"]["points"] if one["draft_type"] == "draft-model"]
    assert {one["num_draft_tokens"]: one["acceptance"] for one in of_model} == {1: 1.0, 4: 1.0}
    assert [one["num_draft_tokens"] for one in found["economics"]["draft_model"]] == [1, 4]
    assert found["command"].startswith("reprise bench economics --model")
    assert found["cost_curve"][0]["width"] == 1
    with names["csv"].open() as file:
        assert len(list(csv.DictReader(file))) == len(found["economics"]["points"])
    assert "Advice" in names["html"].read_text()
    printed, progress = capsys.readouterr()
    assert "equal the plain ones, token by token" in printed
    assert found["economics"]["advice"][-1][:20] in printed
    lines = [line.partition(" (")[0] for line in progress.splitlines()]
    of_start = "Loading", "Trying", "Measuring"
    assert lines[0].startswith("Loading")
    assert [line for line in lines if not line.startswith(of_start)] == [
        "auto, as on a server: quotes",
        "every draft verified: warming up",
        "every draft verified, controlled acceptance: quotes",
        "every draft verified, real drafters: quotes",
    ]
    assert "left)" in progress.splitlines()[-1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--workloads", "edit"], "--workloads: edit is not one of"),
        (["--draft-types", "magic"], "--draft-types: magic is not one of"),
        (["--draft-types", "draft-model"], "name one with --draft-model"),
        (["--num-draft-tokens", "1,999"], "999 is above 255"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(given, message, capsys):
    assert main(["bench", "economics", *given]) == 2
    printed = capsys.readouterr().err
    assert message in printed
    assert printed.count("\n") == 1
