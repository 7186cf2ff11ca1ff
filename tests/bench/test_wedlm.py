"""`reprise bench wedlm` counts what a WeDLM model's own drafts gain, and what windowed decoding changes."""

import json

import pytest

from reprise.bench.cost_curves import M4_PRO
from reprise.cli.main import main


def test_every_way_to_draft_and_to_stream_is_a_row(wedlm_folder, tmp_path):
    file = tmp_path / "wedlm.json"
    flags = (
        "--workloads quotes,free --cases 1 --max-tokens 12 --windows 4 --thresholds 0.3,9 --penalties 0.01"
    )
    assert main(["bench", "wedlm", "--model", str(wedlm_folder), "--json", str(file), *flags.split()]) == 0
    rows = json.loads(file.read_text())["wedlm"]["rows"]
    drafted = {(row["arm"], row["costs"]) for row in rows if not row["is_streaming"]}
    lists = ("free", "measured here", M4_PRO.name)
    assert drafted == {
        (arm, costs) for arm in ("plain", "lookup", "own", "lookup and own") for costs in lists
    }
    assert len({row["arm"] for row in rows if row["is_streaming"]}) == 4
    assert all(row["same"] == 1 for row in rows if not row["is_streaming"])
    assert all(row["right"] is None for row in rows if row["chats"] == "free")
    for row in rows:
        assert row["tokens_per_forward"] == pytest.approx(row["generated_per_fed"] * row["fed_per_forward"])
        assert (row["speedup"] is None) == (row["costs"] == "free")
        if row["arm"] == "plain":
            assert row["fed_per_forward"] == row["tokens_per_forward"] == 1
            assert row["costs"] == "free" or row["speedup"] == 1
    # Random masks are wrong, so drafts are checked in vain; a threshold of 9 nats fills every hole at once.
    fed = {row["arm"]: row["fed_per_forward"] for row in rows if row["costs"] == "free"}
    assert fed["own"] > 2
    wide, _ = (
        row for row in rows if row["arm"][10:] == "threshold 9, penalty 0.01" and row["chats"] == "free"
    )
    assert wide["tokens_per_forward"] > 2


def test_another_model_has_no_masks(model_folder, capsys):
    assert main(["bench", "wedlm", "--model", str(model_folder), "--cases", "1"]) == 2
    assert "is not a WeDLM model" in capsys.readouterr().err
