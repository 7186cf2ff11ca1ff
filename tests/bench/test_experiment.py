"""An experiment runs every arm on every case in every round, in a fair order, and resumes where it was."""

from pathlib import Path
from typing import Any

import pytest

from reprise.bench.experiment import ArgumentsError, Experiment, Progress, Row, measured

CASES = {"a": 1, "b": 2}


def experiment(ran: list[str], **more: Any) -> Experiment[int]:
    """Make an experiment whose arms note that they ran, and fail at the given run."""
    fail_at = more.pop("fail_at", None)

    def arm(name: str, case: int) -> list[Row]:
        if len(ran) == fail_at:
            raise KeyboardInterrupt
        ran.append(f"{name}{case}")
        return [{"seconds": case / 2}]

    arms = {name: lambda case, name=name: arm(name, case) for name in ("x", "y", "z")}
    return Experiment(arms, CASES, **{"rounds": 2} | more)


def test_every_arm_runs_on_every_case_and_each_begins_in_turn() -> None:
    ran: list[str] = []
    rows = experiment(ran, has_warm_up=lambda case: case == "a").run(Progress())
    assert " ".join(ran) == "z1 x1 y1 x1 y1 z1 y1 z1 x1 y2 z2 x2 z2 x2 y2"
    assert [row["round"] for row in rows[:3]] == [0, 0, 0]
    assert len(measured(rows)) == 12
    assert [row for row in measured(rows) if (row["arm"], row["case"]) == ("x", "b")] == [
        {"arm": "x", "case": "b", "round": number, "seconds": 1.0} for number in (1, 2)
    ]


def test_an_interrupted_experiment_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    whole = experiment([]).run(Progress())
    ran: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        experiment(ran, resume=file, key="k", fail_at=7).run(Progress())
    with file.open("a", encoding="utf-8") as cut:
        cut.write('\n{"arm": "x", "cas')
    rows = experiment(ran, resume=file, key="k").run(Progress())
    assert rows == whole
    assert len(ran) == len(whole)
    assert experiment(ran, resume=file, key="k").run(Progress()) == whole
    assert len(ran) == len(whole)


def test_the_runs_of_another_experiment_are_not_taken(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    experiment([], resume=file, key="one").run(Progress())
    with pytest.raises(ArgumentsError, match="has the runs of another experiment: one"):
        experiment([], resume=file, key="other").run(Progress())
