"""`reprise bench decode` counts what a WeDLM model's own drafts gain, and what windowed decoding changes."""

import json

import pytest

from reprise.cli.main import main


def test_every_way_to_draft_and_to_stream_is_a_row(wedlm_folder, tmp_path):
    file, prices = tmp_path / "wedlm.json", ("flat", "own")
    given = f"--costs {','.join(prices)} --draft-types suffix,wedlm,auto --workloads quotes,free"
    given += " --cases 1 --repeats 1 --max-tokens 12 --windows 4 --thresholds 0.3,9"
    assert main(["bench", "decode", "--model", str(wedlm_folder), "--json", str(file), *given.split()]) == 0
    rows = json.loads(file.read_text())["decode"]["rows"]
    drafted = {(row["draft_type"], row["costs"]) for row in rows if not row["window"]}
    assert drafted == {(kind, costs) for kind in ("none", "suffix", "wedlm", "auto") for costs in prices}
    assert len({row["arm"] for row in rows if row["window"]}) == 2
    assert all(row["same"] == 1 for row in rows if not row["window"])
    assert {row["workload"] for row in rows} == {"quotes", "free"}
    assert all(row["right"] is None for row in rows if row["workload"] == "free")
    for row in rows:
        assert row["tokens_per_forward"] == pytest.approx(row["generated_per_fed"] * row["fed_per_forward"])
        if row["arm"] == "plain":
            assert row["fed_per_forward"] == row["tokens_per_forward"] == row["speedup"] == 1
    # Random masks are wrong, so drafts are checked in vain; a threshold of 9 nats fills every hole at once.
    (own,) = (
        row for row in rows
        if (row["draft_type"], row["costs"], row["workload"]) == ("wedlm", "flat", "free")
    )  # fmt: skip
    assert own["fed_per_forward"] > 2
    wide = [row for row in rows if row["arm"][10:] == "threshold 9" and row["workload"] == "free"]
    assert all(row["tokens_per_forward"] > 2 for row in wide)


def test_another_model_has_no_masks(model_folder, capsys):
    given = ["--model", str(model_folder), "--draft-types", "wedlm", "--cases", "1", "--workloads", "quotes"]
    assert main(["bench", "decode", *given]) == 2
    assert "is not a WeDLM model" in capsys.readouterr().err
