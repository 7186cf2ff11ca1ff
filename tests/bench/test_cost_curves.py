"""Cost curves: built in, from curve files, from result documents; anything else is refused."""

import json
import math
from pathlib import Path

import pytest

from bench.cost_curves import CPU_BF16, FLAT, M4_PRO, built_in, describe, read_curve
from bench.errors import ArgumentsError

OWN = {"name": "mine", "kind": "measured", "source": "a test", "points": [[1, 2.0], [3, 3.0], [5, 8.0]]}


def written(folder: Path, said: object) -> Path:
    file = folder / "curve.json"
    file.write_text(said if isinstance(said, str) else json.dumps(said))
    return file


def test_costs_are_in_plain_steps_and_straight_between_points(tmp_path: Path) -> None:
    curve = read_curve(written(tmp_path, OWN))
    assert [curve.cost(width) for width in (1, 2, 3, 4, 5)] == [1, 1.25, 1.5, 2.75, 4]
    # Beyond the last point, the cost follows the overall slope.
    assert curve.cost(9) == 4 + 4 * 3 / 4


def test_a_flat_end_promises_no_free_steps_beyond_it() -> None:
    assert M4_PRO.cost(32) == M4_PRO.cost(10) == 4.5
    assert M4_PRO.cost(65) > 7
    assert FLAT.cost(1000) == 1


@pytest.mark.parametrize("curve", built_in().values(), ids=lambda curve: curve.name)
def test_what_is_built_in_says_where_it_comes_from(curve) -> None:
    assert curve.machine
    assert curve.source
    assert curve.kind in ("measured", "published")
    costs = [curve.cost(width) for width in range(1, 100)]
    assert all(0 < cost < math.inf for cost in costs)
    assert costs[-1] > costs[0] == 1


def test_published_and_measured_are_told_apart() -> None:
    assert (M4_PRO.kind, CPU_BF16.kind) == ("published", "measured")
    assert {M4_PRO.name, CPU_BF16.name} <= {curve.name for curve in built_in().values()}


def test_a_result_document_is_a_curve(tmp_path: Path) -> None:
    document = {
        "command": "reprise bench decode",
        "date": "2026-11-21",
        "machine": {"cpu": "Chip"},
        "model": {"name": "Model"},
        "cost_curve": [{"width": 1, "seconds": 0.01}, {"width": 8, "seconds": 0.02}],
        "decode": {},
    }
    curve = read_curve(written(tmp_path, document))
    assert (curve.name, curve.kind) == ("Model on Chip", "measured")
    assert curve.cost(8) == 2
    assert "reprise bench decode" in curve.source


def test_a_described_curve_is_one_that_can_be_read(tmp_path: Path) -> None:
    for curve in built_in().values():
        assert read_curve(written(tmp_path, describe([curve])[0])) == curve


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("{", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ([], "it is no JSON object"),
        ({}, "it is no JSON object with points"),
        ({"cost_curve": []}, "two or more"),
        ({"cost_curve": 7}, "points: Input should be a valid array"),
        (OWN | {"source": 7}, "source: Input should be a valid string"),
        (OWN | {"kind": "guessed"}, "kind: Input should be 'measured' or 'published'"),
        (OWN | {"points": [[1, 1]]}, "two or more"),
        (OWN | {"points": [[2, 1], [3, 1]]}, "rise from 1"),
        (OWN | {"points": [[1, 1], [3, 1], [2, 1]]}, "rise from 1"),
        (OWN | {"points": [[1, 1], [2, 1], [2, 1]]}, "rise from 1"),
        (OWN | {"points": [[1, 0], [2, 1]]}, "points[0][1]: Input should be greater than 0"),
        (OWN | {"points": [[1, 1], [2, float("nan")]]}, "points[1][1]: Input should be a finite number"),
        (OWN | {"points": [[1, 1], [2, float("inf")]]}, "points[1][1]: Input should be a finite number"),
        (OWN | {"points": [[1, True], [2, 1]]}, "points[0][1]: Input should be a valid number"),
        (OWN | {"points": [[1, 1], {"width": 2}]}, "points[1][1]: Input should be a valid number"),
        (OWN | {"points": "all"}, "points: Input should be a valid array"),
    ],
)
def test_what_is_no_curve_is_refused(said: object, reason: str, tmp_path: Path) -> None:
    file = written(tmp_path, said)
    with pytest.raises(ArgumentsError) as raised:
        read_curve(file)
    assert str(raised.value).startswith(str(file))
    assert reason in str(raised.value)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentsError, match="cannot be read"):
        read_curve(tmp_path / "nowhere.json")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentsError, match="Invalid JSON"):
        read_curve(tmp_path / "bytes")
