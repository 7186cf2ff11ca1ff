"""`reprise bench sampling` has a figure for every case."""

import json

import pytest

from reprise.bench import sampling
from reprise.cli.main import main


@pytest.fixture
def rows(tmp_path):
    """Return a function that runs a command and returns the rows of its document."""

    def run(command):
        file = tmp_path / "document.json"
        assert main(["bench", *command.split(), "--json", str(file)]) == 0
        return json.loads(file.read_text())[command.split()[0]]["rows"]

    return run


def test_every_setting_of_sampling_is_measured(rows, monkeypatch):
    monkeypatch.setattr(sampling, "REPEATS", 1)
    found = rows("sampling --vocabularies 300,400 --rows 1,3")
    assert [row["settings"] for row in found] == [*sampling.SETTINGS] * 2
    assert all(row["rows_1"] > 0 and row["rows_3"] > 0 for row in found)


def test_memory_is_measured_with_mlx_running_ahead_and_not(rows):
    (greedy,) = rows("sampling --settings greedy --memory --vocabularies 100000 --rows 2")
    (top_p,) = rows("sampling --settings top_p --memory --vocabularies 100000 --rows 2")
    ahead, waiting = top_p["rows_2"]
    assert greedy["rows_2"][1] < 2.0 < waiting < ahead + 0.01 < 9.0


def test_an_unknown_name_is_named(capsys):
    assert main(["bench", "sampling", "--settings", "top_q"]) == 2
    assert "top_q is not one of greedy" in capsys.readouterr().err
