"""A result document records the origin of its figures, and is read as it was written."""

import argparse
from pathlib import Path

import pytest

from reprise.bench import document
from reprise.engine.speculative.costs.step_costs import StepCosts


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    arguments = argparse.Namespace(given=("bench", "decode", "--json", "my figures.json"))
    costs = StepCosts({(1, 1): 0.01, (1, 4): 0.02})
    made = document.new_document(arguments, costs=costs, decode={"rows": []})
    document.write(tmp_path / "figures.json", made)
    assert document.read(tmp_path / "figures.json") == made
    assert made["command"] == "reprise bench decode --json 'my figures.json'"
    assert made["cost_curve"] == [
        {"width": 1, "seconds": 0.01, "plain_steps": 1.0},
        {"width": 4, "seconds": 0.02, "plain_steps": 2.0},
    ]
    assert made["machine"]["cores"]


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"benchmark": "serve"}'])
def test_what_is_no_document_is_refused_by_name(text: str, tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"other\.json"):
        document.read(file)
