"""`reprise verify` and `reprise bench serve` with a model on several machines: real processes, real ring."""

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.machines.ranks import COMMAND, REPRISE, clean_environment, places
from tests.tiny_models import write_random_model

LIMIT_S = 300
CHAT = {"messages": [{"role": "user", "content": "one two three, one two three, one two three, one"}]}


def start(folder: Path, num_ranks: int, *command: str) -> list["subprocess.Popen[str]"]:
    """Start a command as mlx.launch does."""
    return [
        subprocess.Popen(
            [*COMMAND, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment() | place,
        )
        for place in places(folder, num_ranks)
    ]


def finish(processes: Sequence["subprocess.Popen[str]"]) -> list[tuple[int, str]]:
    """Wait for processes; return their statuses and what they printed."""
    try:
        printed = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, said) for process, said in zip(processes, printed, strict=True)]


def verify(folder: Path, model: Path, num_ranks: int, *flags: str) -> dict[str, Any]:
    """Return what `reprise verify` writes."""
    file, prompts = folder / f"{num_ranks}.json", folder / "prompts.jsonl"
    prompts.write_text(json.dumps(CHAT))
    command = ["verify", "--model", str(model), "--prompts", str(prompts), "--json", str(file), *flags]
    command += ["--exact", "--max-tokens", "30", "--num-draft-tokens", "3"]
    ended = finish(start(folder, num_ranks, *command))
    assert [status for status, _ in ended] == [0] * num_ranks, ended
    found: dict[str, Any] = json.loads(file.read_text())["verify"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "split"), [("qwen2", "pipeline"), ("llama", "tensor")])
def test_drafts_are_verified_as_on_one_machine(name: str, split: str, tmp_path: Path) -> None:
    model = write_random_model(name, tmp_path / "model", is_repetitive=True)
    one, two = (verify(tmp_path, model, num_ranks, "--split", split) for num_ranks in (1, 2))
    assert two["exact"] == one["exact"]
    assert {row["parity"] for row in two["rows"]} == {"PASS"}
    assert sum(row["drafted_tokens"] for row in two["rows"]) > 0


def test_a_rank_that_dies_meanwhile_is_named(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    processes = start(tmp_path, 2, "verify", "--model", str(model), "--max-tokens", "1000")
    assert processes[0].stdout
    for line in processes[0].stdout:
        if "Trying" in line:
            break  # both have loaded: earlier, MLX itself would wait for the lost rank
    time.sleep(1)
    processes[1].send_signal(signal.SIGKILL)
    (status, said), _ = finish(processes)
    assert status
    assert "rank 1 (127.0.0.1) has died or left" in said


@pytest.mark.slow
def test_a_server_on_several_machines_is_measured(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    file = tmp_path / "serve.json"
    flags = ["--hosts", "127.0.0.1,127.0.0.1", "--split", "4,2", "--model", str(model)]
    flags += ["--concurrency", "2", "--rounds", "1", "--max-tokens", "8", "--json", str(file)]
    subprocess.run([*REPRISE, "bench", "serve", *flags], check=True, timeout=LIMIT_S, env=clean_environment())
    (level,) = json.loads(file.read_text())["serve"]["levels"]
    assert level["failed"] == 0
    assert level["tokens_per_s"]
