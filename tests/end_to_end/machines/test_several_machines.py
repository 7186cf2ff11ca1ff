"""A model on several machines answers as on one: real processes and a real ring, all on this machine."""

import json
import os
import random
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.end_to_end.conftest import with_constant
from tests.end_to_end.machines.ranks import REPRISE, Started, ranks
from tests.end_to_end.seeing_folder import write_seeing
from tests.engine.model_folders import write_adapter
from tests.engine.support import wait_until
from tests.tiny_models import write_random_model

# Several processes share two cores.
pytestmark = pytest.mark.timeout(900)

PROMPTS = (
    "the cat sat on the mat. the cat sat on the mat. the cat",
    "def f(x):\n    return x\n\ndef g(x):\n    return x\n" * 4,
    "Hello",
    "one two three four five six " * 30,
    "a b c d " * 5,
    "Once upon a time",
    "x = 1\ny = 2\n" * 20,
    "The end.",
)
LIMIT_S = 300
ENDS_WITHIN_S = 120
"""Five seconds, and what a busy machine adds to the three of STALL_S."""


SHOUTING = "{% for one in messages %}<{{ one.role }}>{{ one.content | upper }}{% endfor %}"
"""A chat template that shows no answer as the model wrote it: answers are read ahead as it shows them."""


def post(address: str, path: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    """Ask for a completion."""
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(address + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(asked, timeout=LIMIT_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def answers(address: str) -> dict[Any, Any]:
    """Return text, tokens and log probabilities of eight clients at a time, and of turns that follow."""
    found: dict[Any, Any] = {}

    def ask(key: Any, **body: Any) -> None:
        answer = post(address, logprobs=2, **body)
        found[key] = (answer["choices"][0]["text"], answer["choices"][0]["logprobs"])

    def client(at: int) -> None:
        for temperature in (0.0, 0.8):
            body = {"prompt": PROMPTS[at], "max_tokens": 40, "temperature": temperature, "seed": at}
            ask((at, temperature), **body)

    threads = [threading.Thread(target=client, args=(at,)) for at in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at in (1, 3):
        # A prefix of it is in the cache.
        ask((at, "more"), prompt=PROMPTS[at] + " more", max_tokens=20, temperature=0.5, seed=9)
    found["chat"] = chat(address)
    return found


def chat(address: str) -> list[str]:
    """Return two answers of a chat. The first is read ahead as the template will show it."""
    asked: dict[str, Any] = {"guided_regex": "[a-z ]{300}", "temperature": 0.8, "seed": 3, "logprobs": True}
    messages, said = [{"role": "user", "content": PROMPTS[4]}], []
    for _ in range(2):
        answer = post(address, "/v1/chat/completions", messages=messages, **asked)
        said.append(answer["choices"][0]["message"]["content"])
        messages += [{"role": "assistant", "content": said[-1]}, {"role": "user", "content": PROMPTS[2]}]
        wait_until(
            lambda: re.search(r"^reprise_read_ahead_tokens_total [1-9]", metrics(address), re.MULTILINE)
        )
    assert answer["timings"]["read_ahead_n"]
    return said


def long_answers(address: str) -> dict[int, str]:
    """Return the texts of eight long answers at a time."""
    found: dict[int, str] = {}

    def ask(at: int) -> None:
        body = {"prompt": f"{at} {PROMPTS[4]}", "max_tokens": 800, "ignore_eos": True, "seed": at}
        found[at] = post(address, **body)["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    return found


def leave_early(address: str) -> None:
    """Begin an answer and close the connection."""
    body = {"prompt": PROMPTS[4], "max_tokens": 2000, "stream": True}
    asked = urllib.request.Request(
        f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=LIMIT_S) as answer:
        answer.readline()


def has_accepted_drafts(started: Started) -> bool:
    """Whether an answer that repeats itself accepts drafted tokens, by the log of rank 0."""
    post(started.address, prompt=PROMPTS[0], max_tokens=100, temperature=0, ignore_eos=True)
    return re.search(r"drafts .*?[1-9]\d*/\d+ accepted", started.said(0)) is not None


def metrics(address: str) -> str:
    """Return what GET /metrics says."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=LIMIT_S) as answer:
        found: str = answer.read().decode()
    return found


def check_what_is_said_of_each_rank(started: Started, num_ranks: int) -> None:
    """Look for each rank in the banner and the metrics."""
    said, measured = started.said(0), metrics(started.address)
    for rank in range(num_ranks):
        assert re.search(rf"rank {rank}  +127.0.0.1, .*: layers \d+ to \d+, .* MiB of weights, .* left", said)
        assert re.search(rf'reprise_rank_active_bytes{{rank="{rank}"}} [1-9]', measured)
    for rank in range(1, num_ranks):
        assert re.search(rf"rank {rank} .*, round trip \d+ µs", said)
        assert re.search(rf'reprise_rank_silent_seconds{{rank="{rank}"}} \d', measured)


def check_equality(folder: Path, name: str, *flags: str, num_ranks: int = 2) -> None:
    """Compare a model on several ranks with the same on one process."""
    model = write_random_model(name, folder / name, is_repetitive=True)
    (folder / "shouting.jinja").write_text(SHOUTING)
    flags = (*flags, "--chat-template", str(folder / "shouting.jinja"), "--read-ahead", "turn")
    with ranks(folder, model, num_ranks, *flags) as several, ranks(folder, model, 1, *flags) as one:
        several.wait_until_ready()
        one.wait_until_ready()
        leave_early(several.address)
        # At the same time: who waits measures what steps cost.
        with ThreadPoolExecutor(2) as threads:
            ours, expected = threads.map(answers, (several.address, one.address))
        assert len(ours) == 19
        assert ours == expected
        assert has_accepted_drafts(several)
        check_what_is_said_of_each_rank(several, num_ranks)
        assert "reprise_rank" not in metrics(one.address)
        several.processes[0].terminate()
        assert several.statuses(60) == [0] * num_ranks, several.said(0) + several.said(1)


def test_a_pipeline_of_two_answers_bit_for_bit_as_one_process(tmp_path: Path) -> None:
    check_equality(tmp_path, "qwen2")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_5", "deepseek_v3"])
def test_a_pipeline_of_any_kind_answers_bit_for_bit_as_one_process(name: str, tmp_path: Path) -> None:
    check_equality(tmp_path, name)


@pytest.mark.slow
def test_a_pipeline_of_three_answers_bit_for_bit_as_one_process(tmp_path: Path) -> None:
    check_equality(tmp_path, "qwen2", num_ranks=3)


@pytest.mark.slow
def test_a_draft_model_on_rank_0_changes_no_answer(tmp_path: Path) -> None:
    drafter = write_random_model("qwen2", tmp_path / "drafter", is_repetitive=True)
    check_equality(tmp_path, "qwen2", "--draft-model", str(drafter))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_rows_that_outgrow_the_memory_of_ranks_get_the_same_answers(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    # Beside the weights, some rows of the length that they end with.
    scarce = ("--memory-bytes", "24000000", "--prefix-cache-bytes", "0")
    with ranks(tmp_path, model, 2, *scarce) as several, ranks(tmp_path, model, 1) as one:
        several.wait_until_ready()
        one.wait_until_ready()
        assert long_answers(several.address) == long_answers(one.address)
        assert re.search(r"reprise_preemptions_total [1-9]", metrics(several.address))


@pytest.mark.slow
def test_an_adapter_is_split_with_the_layers(tmp_path: Path) -> None:
    base = write_random_model("qwen2", tmp_path / "base", is_repetitive=True)
    check_equality(tmp_path, "qwen2", "--adapter-path", str(write_adapter(tmp_path / "adapter", base)))


@pytest.mark.slow
def test_a_tensor_split_answers_the_same_from_run_to_run(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model", is_repetitive=True)
    found = []
    for _ in range(2):
        with ranks(tmp_path, model, 2, "--split", "tensor") as started:
            started.wait_until_ready()
            # One after the other: rounding may depend on who else is in the batch.
            ask = partial(post, started.address, max_tokens=40, seed=1, logprobs=2)
            found.append([ask(prompt=one)["choices"] for one in PROMPTS])
    assert found[0] == found[1]


def ask_long(address: str, said: list[str]) -> None:
    """Ask for a long answer; note what the server says instead, "" if nothing."""
    try:
        post(address, prompt="Hello", max_tokens=3000, ignore_eos=True)
    except urllib.error.HTTPError as fault:
        said.append(fault.read().decode())
    except OSError:
        said.append("")


@pytest.fixture
def loaded_pair(tmp_path: Path) -> Iterator[Started]:
    model = write_random_model("qwen2", tmp_path / "model")
    hasty = with_constant("reprise.engine.interface.status.STALL_S", 3)
    with ranks(tmp_path, model, 2, program=hasty) as started:
        started.wait_until_ready()
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_rank_ends_all_and_says_which(loaded_pair: Started, sent: signal.Signals, rank: int) -> None:
    said: list[str] = []
    threads = [threading.Thread(target=ask_long, args=(loaded_pair.address, said)) for _ in range(4)]
    for thread in threads:
        thread.start()
    # While prompts are computed, or answers.
    moment_s = random.uniform(0, 2)
    time.sleep(moment_s)
    loaded_pair.processes[rank].send_signal(sent)
    other = 1 - rank
    assert loaded_pair.processes[other].wait(ENDS_WITHIN_S) == 3, (moment_s, loaded_pair.said(other))
    assert f"rank {rank} (127.0.0.1) has" in loaded_pair.said(other)
    if sent == signal.SIGSTOP:
        loaded_pair.processes[rank].send_signal(signal.SIGCONT)
        assert loaded_pair.processes[rank].wait(ENDS_WITHIN_S) == 3
    for thread in threads:
        thread.join(ENDS_WITHIN_S)
    if rank == 1:
        assert len(said) == 4
        assert all("rank 1 (127.0.0.1) has" in one for one in said)


def test_what_cannot_be_served_together_is_refused_on_all_ranks(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    different = (("--kv-bits", "8"), ())
    with ranks(tmp_path, model, 2, flags_by_rank=different) as started:
        assert started.statuses(LIMIT_S) == [1, 1]
        sentence = "rank 1 (127.0.0.1) has another setting kv_bits than rank 0: None, not 8"
        assert sentence in started.said(0)
        assert sentence in started.said(1)


@pytest.mark.slow
def test_a_model_that_sees_is_refused_by_name_and_can_be_served_as_one_that_reads(tmp_path: Path) -> None:
    model = write_seeing(tmp_path / "seeing", "qwen3_5")
    with ranks(tmp_path, model, 2) as refused:
        assert refused.statuses(LIMIT_S) == [1, 1]
        for rank in range(2):
            assert "seeing sees images" in refused.said(rank)
            assert "--max-images 0" in refused.said(rank)
    reads = ("--max-images", "0")
    with ranks(tmp_path, model, 2, *reads) as several, ranks(tmp_path, model, 1, *reads) as one:
        several.wait_until_ready()
        one.wait_until_ready()
        assert answers(several.address) == answers(one.address)


def test_a_rank_that_is_missing_is_waited_for_and_named(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    # It says what it needs, and ends.
    hasty = with_constant("reprise.engine.distributed.ranks.JOIN_TIMEOUT_S", 2)
    with ranks(tmp_path, model, 2, flags_by_rank=((), ("--help",)), program=hasty) as started:
        assert started.processes[0].wait(LIMIT_S) == 1
        assert "waiting for rank 1 (127.0.0.1), up to 2 s" in started.said(0)
        assert "rank 1 (127.0.0.1) did not join within 2 seconds" in started.said(0)


@pytest.mark.slow
def test_a_late_rank_is_waited_for(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    with ranks(tmp_path, model, 2) as started:
        started.processes[1].send_signal(signal.SIGSTOP)
        started.wait_until_said(0, "waiting for rank 1 (127.0.0.1), up to 60 s")
        started.processes[1].send_signal(signal.SIGCONT)
        started.wait_until_ready()
        assert post(started.address, prompt="Hello", max_tokens=3)["choices"][0]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_the_real_launcher_ends_with_the_true_status(is_killed: bool, tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    flags = ("--hosts", "127.0.0.1,127.0.0.1")
    with ranks(tmp_path, model, 1, *flags, program=REPRISE) as started:
        started.wait_until_ready()
        launcher = started.processes[0]
        # The ranks measure what steps cost while they are idle.
        ranks_of = {find_rank(rank, model) for rank in (0, 1)}
        before_s = busy_s(launcher.pid, ranks_of)
        time.sleep(3)
        # A launcher that waits for what it can always do takes a core.
        assert busy_s(launcher.pid, ranks_of) - before_s < 1
        if is_killed:
            said: list[str] = []
            asking = threading.Thread(target=ask_long, args=(started.address, said))
            asking.start()
            time.sleep(1)
            os.kill(find_rank(1, model), signal.SIGKILL)
            # mlx.launch stops rank 0 meanwhile; it ends no sooner for that.
            assert launcher.wait(ENDS_WITHIN_S) == 3
            asking.join(ENDS_WITHIN_S)
            assert "rank 1 (127.0.0.1) has" in said[0]
        else:
            launcher.send_signal(signal.SIGINT)
            assert launcher.wait(LIMIT_S) == 0
        assert find_rank(0, model) == find_rank(1, model) == 0


@pytest.mark.slow
def test_nothing_is_left_over_of_a_command_that_was_killed(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    with ranks(tmp_path, model, 1, "--hosts", "127.0.0.1,127.0.0.1", program=REPRISE) as started:
        started.wait_until_ready()
        children = psutil.Process(started.processes[0].pid).children(recursive=True)
        started.processes[0].kill()
        _, alive = psutil.wait_procs(children, ENDS_WITHIN_S)
        assert not alive


@pytest.mark.slow
def test_a_host_file_for_jaccl_is_passed_on_and_what_fails_is_said(tmp_path: Path) -> None:
    model = write_random_model("qwen2", tmp_path / "model")
    devices = [[None, "rdma_none"], ["rdma_none", None]]
    hosts = [{"ssh": "127.0.0.1", "ips": ["127.0.0.1"], "rdma": one} for one in devices]
    file = tmp_path / "jaccl.json"
    file.write_text(json.dumps({"backend": "jaccl", "hosts": hosts}))
    with ranks(tmp_path, model, 1, "--hosts", str(file), program=REPRISE) as started:
        (status,) = started.statuses(LIMIT_S)
        assert status
        assert "MLX cannot connect the machines by jaccl" in started.said(0)


def busy_s(number: int, others: set[int]) -> float:
    """Return the processor time of a process and all that it started but some others, in seconds."""
    process = psutil.Process(number)
    started = [one for one in (process, *process.children(recursive=True)) if one.pid not in others]
    return sum(sum(one.cpu_times()[:2]) for one in started)


def find_rank(rank: int, model: Path) -> int:
    """Return the process of a rank on this machine, 0 if there is none."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
        # It has ended, or is another person's.
        except OSError:
            continue
        if f"MLX_RANK={rank}".encode() in environment and str(model).encode() in words:
            return int(process.name)
    return 0
