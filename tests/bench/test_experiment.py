"""An experiment runs every arm on every case in every round, in a fair order."""

from typing import Any

from reprise.bench.experiment import Experiment, Progress, Row, measured

CASES = {"a": 1, "b": 2}


def experiment(ran: list[str], **more: Any) -> Experiment[int]:
    """Make an experiment whose arms note that they ran."""

    def arm(name: str, case: int) -> list[Row]:
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
