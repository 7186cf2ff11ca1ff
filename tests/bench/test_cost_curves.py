"""Cost curves: built in, or those of result documents; anything else is refused."""

import json
import math
from pathlib import Path

import pytest

from reprise.bench.cost_curves import CPU_BF16, FLAT, M4_PRO, Curve, built_in, find_curve


def test_costs_are_straight_between_points_and_follow_the_overall_slope_beyond() -> None:
    curve = Curve("mine", ((1, 1.0), (3, 1.5), (5, 4.0)))
    assert [curve.cost(width) for width in (1, 2, 3, 4, 5)] == [1, 1.25, 1.5, 2.75, 4]
    assert curve.cost(9) == 4 + 4 * 3 / 4


def test_a_flat_end_promises_no_free_steps_beyond_it() -> None:
    assert M4_PRO.cost(32) == M4_PRO.cost(10) == 4.5
    assert M4_PRO.cost(65) > 7
    assert FLAT.cost(1000) == 1


@pytest.mark.parametrize("name", built_in())
def test_what_is_built_in_says_where_it_comes_from(name) -> None:
    curve = find_curve(name)
    assert curve.machine
    assert curve.source
    costs = [curve.cost(width) for width in range(1, 100)]
    assert all(0 < cost < math.inf for cost in costs)
    assert costs[-1] > costs[0] == 1


def test_published_and_measured_are_told_apart() -> None:
    assert [curve.kind for curve in (M4_PRO, CPU_BF16)] == ["published", "measured"]


def written(folder: Path, **fields: object) -> Path:
    file = folder / "result.json"
    about = {"command": "reprise bench decode", "date": "2026-11-21", "machine": {"cpu": "Chip"}}
    file.write_text(json.dumps(about | {"model": {"name": "Model"}} | fields))
    return file


def test_a_result_document_is_a_curve(tmp_path: Path) -> None:
    costs = [{"width": 1, "seconds": 0.01}, {"width": 8, "seconds": 0.02}]
    curve = find_curve(str(written(tmp_path, decode={}, cost_curve=costs)))
    assert (curve.name, curve.kind, curve.machine) == ("Model on Chip", "measured", "Chip")
    assert (curve.cost(1), curve.cost(8)) == (1, 2)
    assert "reprise bench decode" in curve.source


def test_what_has_no_costs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no step costs: it was written without an engine"):
        find_curve(str(written(tmp_path, decode={}, cost_curve=[])))
    with pytest.raises(ValueError, match="is not a result document"):
        find_curve(str(written(tmp_path)))
    with pytest.raises(FileNotFoundError):
        find_curve(str(tmp_path / "nowhere.json"))
