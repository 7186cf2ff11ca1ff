"""`reprise doctor` finds what is wrong, names the way out, and shares figures alone."""

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from reprise.bench.local_engine import LocalEngine, equal_costs
from reprise.cli import doctor
from reprise.cli.doctor import (
    MAX_MODELS,
    PROPOSALS,
    TICK_S,
    Answer,
    Check,
    Device,
    TrialError,
    check_answer,
    check_costs,
    check_device,
    check_model,
    check_proposal,
    find_device,
    propose,
    say,
    trial,
)
from reprise.cli.main import main
from reprise.config.settings import Settings
from tests.tiny_models import DROPS_THOUGHTS

GIB = 1 << 30
ANSWER = Answer(
    "I am", 2, 0.5, 100.0, True, {"name": "alice-tune", "device": "CPU"}, [{"width": 1, "seconds": 0.1}]
)


def test_all_is_well_with_the_bundled_model(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["doctor", "--json", "--port", "0", "--api-key", "key"]) == 0
    checks = json.loads(capfd.readouterr().out)["checks"]
    assert [check["name"] for check in checks] == [
        "Python", "packages", "disk for models", "disk for what is learned", "costs of steps", "address",
        "device", "a model for this machine", "model", "memory", "wired limit", "answer",
    ]  # fmt: skip
    assert {check["level"] for check in checks} <= {"ok", "warning"}
    assert "24 tokens" in checks[-1]["found"]


def test_the_switch_that_keeps_thoughts_is_named(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (template := tmp_path / "drops.jinja").write_text(DROPS_THOUGHTS)
    arguments = ["doctor", "--json", "--port", "0", "--chat-template", str(template)]
    assert main(arguments) == 0
    last = json.loads(capfd.readouterr().out)["checks"][-1]
    switch = '{"preserve_thinking": true}'
    assert (last["name"], last["level"]) == ("thoughts", "ok")
    assert f"--chat-template-kwargs '{switch}' keeps them" in last["advice"]
    assert main([*arguments, "--chat-template-kwargs", switch]) == 0
    assert json.loads(capfd.readouterr().out)["checks"][-1]["name"] == "answer"


def test_a_missing_model_and_a_port_in_use_are_problems(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["doctor", "--model", str(tmp_path / "none"), "--port", str(port)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.startswith(f"warning address: cannot listen on 127.0.0.1 port {port}: a program has it")
        for line in lines
    )
    assert f"problem model: there is no model folder {tmp_path / 'none'}" in lines
    assert any(line.startswith("warning answer: not tried") for line in lines)
    assert lines[-1].startswith("1 problem(s), ")


def test_arguments_are_checked_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--prot", "1"]) == 2
    assert "did you mean --port?" in capsys.readouterr().err


def test_a_process_that_dies_or_fails_is_a_finding() -> None:
    with trial() as process:
        assert process.call(os.path.basename, "a/b") == "b"
        with pytest.raises(TrialError, match="ZeroDivisionError"):
            process.call(divmod, 1, 0)
        with pytest.raises(TrialError, match="without a word"):
            process.call(os._exit, 1)


def talk(num_words: int, times: int) -> int:
    """Do slow work, in another process."""
    for at in range(num_words):
        time.sleep(times * TICK_S)
        say("talking", at / num_words)
    return num_words


def test_a_process_is_given_up_for_its_silence_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float]] = []
    now_s = 0.0
    monkeypatch.setattr(doctor, "LIMIT_S", 2)
    monkeypatch.setattr(doctor, "monotonic", lambda: now_s)

    def show(*said: Any) -> None:
        nonlocal now_s
        now_s += 1.5
        told.append(said)

    with trial() as process:
        process.call(os.getpid)
        process.show = show
        assert process.call(talk, 5, 3) == 5
        # In all it takes longer than it may be silent.
        assert now_s > doctor.LIMIT_S
        assert told == [("talking", at / 5) for at in range(len(told))]
        monkeypatch.setattr(doctor, "monotonic", itertools.count(0, 3).__next__)
        with pytest.raises(TrialError, match="nothing came within 2 seconds"):
            process.call(talk, 1, 100)


def test_reading_a_long_prompt_is_named_and_its_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(doctor, "say", lambda *said: told.append(said))
    monkeypatch.setattr(doctor, "LONG_PROMPTS", (100, 1000))
    settings = Settings(keeps_costs=False, prefix_cache_dir=None, prefill_chunk_tokens=64)
    with LocalEngine(settings, equal_costs(8)) as local:
        measured = doctor.measure_first_token(local)
    assert measured["num_prompt_tokens"] == 1000
    shares = [share for stage, share in told if stage == "Reading a prompt of 1,000 tokens"]
    assert shares[0] == 0.0
    assert shares == sorted(shares)
    assert len(set(shares)) > 10


def level(check: Check) -> str:
    """Return the level, after checking that everything but ok has a way out."""
    assert (check.level == "ok") == (not check.advice)
    return check.level


def metal(gibibytes: int | None) -> doctor.Device:
    return doctor.Device("M4", 24 * GIB, None if gibibytes is None else gibibytes * GIB)


def test_memory_is_compared_with_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    known = psutil.virtual_memory()._replace(total=32 * GIB, available=8 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: known)
    assert [level(doctor.check_memory(metal(24), weights * GIB)) for weights in (4, 16, 28)] == [
        "ok", "warning", "problem",
    ]  # fmt: skip
    assert level(doctor.check_wired_limit(metal(None), 28 * GIB)) == "ok"
    assert level(doctor.check_wired_limit(metal(24), 16 * GIB)) == "ok"
    assert "iogpu.wired_limit_mb=29696" in doctor.check_wired_limit(metal(24), 28 * GIB).advice


def test_a_full_or_a_missing_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    found = []
    for free in (20 * GIB, 5 * GIB, GIB // 2):
        monkeypatch.setattr(shutil, "disk_usage", lambda _path, free=free: usage._replace(free=free))
        found.append(level(doctor.check_disk(tmp_path / "not" / "yet", "models")))
    assert found == ["ok", "warning", "problem"]
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_costs_may_lack_or_be_broken(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    (missing,) = check_costs(file)
    assert level(missing) == "ok"
    assert missing.found.startswith("nothing is learned yet")
    for text in ("{", "5"):
        file.write_text(text)
        (unreadable,) = check_costs(file)
        assert level(unreadable) == "warning"


@pytest.mark.parametrize(("quantization", "expected"), [({"bits": 4}, "warning"), (None, "ok")])
def test_what_weights_mean_for_drafts_here_is_told(
    quantization: dict[str, int] | None, expected: str
) -> None:
    known = {
        "name": "m", "architecture": "llama", "weight_bytes": GIB, "quantization": quantization,
        "refused": [], "cache": {}, "weights_note": "what the weights mean", "is_drafter": False,
    }  # fmt: skip
    process = SimpleNamespace(call=lambda *_: known)
    check, _ = check_model(process, "model", "m")  # type: ignore[arg-type]
    assert (check.level, check.advice) == (expected, "what the weights mean")


def test_costs_are_told_in_plain_words(tmp_path: Path) -> None:
    """Newest first."""
    file = tmp_path / "costs.json"
    entries = {
        "a": {"model": "m (4-bit)", "ratios": [[1, 16, 9.0], [2, 8, 3.0]]},
        "b": {"model": "smollm2 (bfloat16)", "ratios": [[1, 2, 1.3], [1, 8, 2.84], [1, 16, 9.0]]},
        "c": 5,
        "d": {"ratios": [[1, 8]]},
    }
    file.write_text(json.dumps(entries))
    whole, *models = check_costs(file)
    assert whole.found == "of 4 model(s), written 0 days ago"
    assert {check.name for check in models} == {"costs of a model"}, "--share shows these"
    assert [level(check) for check in models] == ["warning", "warning", "ok", "ok"]
    assert [check.found for check in models[2:]] == [
        "smollm2 (bfloat16): a step of 8 tokens costs 2.8 plain ones here (seen in real steps)",
        "m (4-bit): nothing of steps of up to 8 tokens",
    ]
    file.write_text(json.dumps({f"{at}": {"ratios": []} for at in range(9)}))
    assert len(list(check_costs(file))) == 1 + MAX_MODELS


def test_what_the_trial_raises_does_not_bring_mlx_into_the_process_that_waits() -> None:
    """With it, that process aborted at its exit, most times."""
    code = (
        "import sys; from reprise.cli.doctor import TrialError, inspect, trial\n"
        "with trial() as process:\n"
        "    try: process.call(inspect, '/no/model')\n"
        "    except TrialError as told: print(told, 'mlx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "there is no model folder /no/model False\n"


@pytest.mark.parametrize(
    ("usable_bytes", "has_gpu", "name"),
    [
        (100 << 20, True, "smollm2"),
        (6 * GIB, True, "mlx-community/Qwen3-4B-Instruct-2507-4bit"),
        (14 * GIB, True, "mlx-community/Qwen3-14B-4bit"),
        (200 * GIB, True, PROPOSALS[-1].name),
        (200 * GIB, False, "smollm2"),
    ],
)
def test_the_largest_model_of_the_list_that_fits_is_proposed(
    usable_bytes: int, has_gpu: bool, name: str
) -> None:
    assert propose(usable_bytes, has_gpu).name == name
    assert f"reprise serve {name}" in check_proposal(usable_bytes, has_gpu).advice


@pytest.mark.parametrize(
    ("usable_gib", "has_gpu", "said", "advice"),
    [
        (
            14,
            True,
            "mlx-community/Qwen3-14B-4bit fits: about 7.7 GiB of weights, a context of up to 40,960 tokens, ",
            "Qwen3-14B-4bit, or for agents, which want 65,536 tokens: reprise serve mlx-community/gpt-oss-",
        ),
        (
            8,
            True,
            "up to 40,960 tokens, for chats and edits; none of the list is for agents here, which ",
            "reprise serve mlx-community/Qwen3-8B-4bit",
        ),
        (
            32,
            True,
            "Qwen3-Coder-30B-A3B-Instruct-4bit fits: about 16.0 GiB of weights, a context of ",
            "reprise serve mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit",
        ),
        (
            32,
            False,
            "up to 8,192 tokens, for trying chats; it errs often; none of the list is ",
            "reprise serve smollm2",
        ),
    ],
)
def test_a_proposal_says_its_context_and_what_agents_could_use(
    usable_gib: int, has_gpu: bool, said: str, advice: str
) -> None:
    check = check_proposal(usable_gib * GIB, has_gpu)
    assert said in check.found
    assert advice in check.advice
    assert ("for agents" in check.advice) == (usable_gib == 14)


def test_the_list_of_proposals_goes_from_small_to_large() -> None:
    sizes = [one.weight_bytes for one in PROPOSALS]
    assert sizes == sorted(sizes)


def test_the_address_must_be_free_and_need_a_key() -> None:
    assert level(doctor.check_port(Settings(port=0))) == "ok"
    open_to_all = doctor.check_port(Settings(port=0, host="0.0.0.0"))
    assert open_to_all.level == "problem"
    assert "--api-key" in open_to_all.found
    assert doctor.check_port(Settings(host="192.0.2.1")).level == "problem"


def test_a_mac_without_metal_and_a_changed_token_are_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert level(check_device(Device("CPU", GIB, None))) == "warning"
    assert level(check_device(Device("Apple M4 (Metal)", GIB, GIB))) == "ok"
    assert level(check_answer(ANSWER)) == "ok"
    changed = Answer(**(vars(ANSWER) | {"is_equal": False}))
    assert level(check_answer(changed)) == "warning"


@pytest.mark.mac
@pytest.mark.skipif(sys.platform != "darwin", reason="Metal is macOS's")
def test_metal_is_found() -> None:
    with trial() as process:
        device = process.call(find_device)
    assert device.name.endswith("(Metal)")
    assert 0 < (device.working_set_bytes or 0) <= psutil.virtual_memory().total


def test_what_is_shared_holds_no_texts_names_or_paths(tmp_path: Path) -> None:
    private = tmp_path / "alice" / "private-model"
    private.mkdir(parents=True)
    rows: list[dict[str, Any]] = [
        {"draft_type": "suffix", "tps": 3.5, "parity": "equal", "text": "my diary", "file": "/home/alice/x"},
        {"draft_type": "none", "names": ["alice"], "samples": [1] * 1000, "/home/alice/key": 1},
        {"workload": "alice-merger"},
        {"workload": "edits"},
    ]
    document = {
        "command": f"reprise verify --model {private}",
        "date": "2026-11-23",
        "verify": {"rows": rows},
    }
    (tmp_path / "verify.json").write_text(
        json.dumps(document | {"model": {"name": "alice-tune", "num_layers": 6}})
    )
    checks = [Check("model", "problem", f"{private} is broken", f"look into {private}")]
    device = Device("Apple M4 (Metal)", GIB, GIB)
    found = doctor.Findings(checks, device, ANSWER)
    made = doctor.make_report(Settings(model=str(private)), found, [tmp_path / "verify.json"])
    text = json.dumps(made)
    for secret in ("alice", "diary", "I am", str(tmp_path), str(Path.home())):
        assert secret not in text
    (result,) = made["results"]
    assert result["model"] == {"num_layers": 6}
    first, second, own, ours = result["verify"]["rows"]
    assert (own, ours) == ({}, {"workload": "edits"})
    assert first == {"draft_type": "suffix", "tps": 3.5, "parity": "equal"}
    assert len(second["samples"]) == doctor.MAX_ITEMS
    assert made["checks"] == {"model": "problem"}
    assert made["model"] == {"source": "a folder", "device": "CPU"}
    assert made["answer"] == {"num_tokens": 2, "load_s": 0.5, "tokens_per_s": 100.0, "is_equal": True}
    assert made["cost_curve"] == ANSWER.cost_curve
    assert doctor.source_of(Settings(model="alice/Qwen3-8B-4bit")) == "Qwen3-8B-4bit"
