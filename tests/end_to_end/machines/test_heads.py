"""Heads draft on rank 0, from states that every rank has a part in, and change no answer."""

import json
from pathlib import Path

import pytest

from tests.end_to_end.machines.programs import run_program
from tests.end_to_end.machines.ranks import ranks
from tests.engine.speculative.heads import folders, published
from tests.engine.speculative.heads.test_arithmetic import dflash_config
from tests.tiny_models import write_random_model

PROGRAM = "head_run"
LIMIT_S = 120


def write_dflash(folder: Path, model: Path) -> Path:
    """Write a random DFlash drafter for a model."""
    config = json.loads((model / "config.json").read_text())
    of_target = {name: config[name] for name in ("vocab_size", "hidden_size")}
    head = dflash_config(**of_target, num_target_layers=config["num_hidden_layers"])
    folders.write_json(folder / "config.json", head)
    folders.save(folder / "model.safetensors", published.tiny_dflash(head), None)
    return folder


@pytest.mark.slow
def test_an_mtp_head_of_a_pipeline_changes_no_answer(tmp_path: Path) -> None:
    model = write_random_model("qwen3_next", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    arrays = published.tiny_mtp("qwen3_next", config)
    folders.write_head(model, "mtp.safetensors", "qwen3_next", config, arrays)
    (one,) = run_program(PROGRAM, tmp_path, model, 1, "pipeline", "")
    several, *_ = run_program(PROGRAM, tmp_path, model, 2, "pipeline", "", writes=[0])
    assert several["tokens"] == one["tokens"]
    # How many are drafted depends on which requests share a step.
    for found in (several, one):
        assert found["head"] == "mtp"
        assert found["num_drafted"] > 0


@pytest.mark.slow
def test_a_dflash_drafter_of_a_tensor_split_drafts_the_same_from_run_to_run(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    head = str(write_dflash(tmp_path / "head", model))
    runs = [run_program(PROGRAM, tmp_path, model, 2, "tensor", head, writes=[0])[0] for _ in range(2)]
    assert runs[0]["head"] == "dflash"
    assert runs[0]["num_drafted"] > 0
    assert runs[0]["tokens"] == runs[1]["tokens"]


@pytest.mark.slow
def test_a_head_that_reads_layers_of_other_machines_is_refused(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    head = write_dflash(tmp_path / "head", model)
    with ranks(tmp_path, model, 2, "--draft-model", str(head)) as started:
        assert started.statuses(LIMIT_S) == [1, 1]
        assert "and other machines have some of them; use --split tensor" in started.said(0)
