"""Whatever other clients do, an honest one's stream goes on, with the text that it has alone."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.engine.memory.prefill_plan import MAX_STALL_MS
from tests.end_to_end.conftest import started, with_constant
from tests.engine.model_folders import write_models
from tests.machine import allowed_s

ATTACK_S = 20
NUM_NEIGHBOURS = 2 * (os.cpu_count() or 1)
ASKED = {
    "model": "demo",
    "prompt": "The lantern",
    "max_tokens": 400,
    "logit_bias": {"2": -100},
    "stream": True,
}
MORE_S = MAX_STALL_MS / 1000 + 0.1
"""What the 99th percentile of gaps may have beyond a step and what neighbours cost who only compute."""
BUSIER = 4
"""Attackers keep more threads busy than neighbours do, and those of the server share its interpreter."""
HEALTH_MORE_S, HOLD_WITHIN_S, RSS_SHARE, REST_WITHIN_S = 0.5, 0.1, 1.2, 60
NUM_ROUNDS = 3
"""Rounds of neighbours and attackers, of which one must be within the bounds: what else runs on the machine
comes and goes, and a server that holds others up does so in all of them."""
SMALL_STORE = with_constant("reprise.server.openai_api.responses.store.STORE_BYTES", 2**22)
"""So that they are full before memory is measured."""
NEIGHBOUR = "while True: pass"
_LONGEST = re.compile(r"^reprise_event_loop_longest_hold_seconds (\S+)$", re.MULTILINE)


def answer(url: str) -> tuple[str, list[float]]:
    """The text of an honest stream, and the seconds between its events."""
    texts, gaps, before = [], [], None
    with httpx.stream("POST", url + "/v1/completions", json=ASKED, timeout=120) as response:
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: {"):
                now = time.monotonic()
                gaps += [now - before] if before is not None else []
                before = now
                texts.append(json.loads(line[6:])["choices"][0]["text"])
    return "".join(texts), gaps


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def watch(url: str, goes_on: Callable[[], bool], text: str) -> tuple[list[float], list[float]]:
    """The gaps of honest streams one after the other, and how long /health took, while something goes on."""
    health_s: list[float] = []

    def look() -> None:
        with httpx.Client(timeout=60) as http:
            while goes_on():
                start_s = time.monotonic()
                assert http.get(url + "/health").status_code == 200
                health_s.append(time.monotonic() - start_s)
                time.sleep(0.1)

    looking = threading.Thread(target=look)
    looking.start()
    gaps: list[float] = []
    while goes_on():
        said, more = answer(url)
        assert said == text
        gaps += more
    looking.join()
    return gaps, health_s


@contextlib.contextmanager
def neighbours(num: int) -> Iterator[None]:
    """Processes that only compute, with the priority of the server."""
    started = [subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) for _ in range(num)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def resident(process: "subprocess.Popen[str]") -> int:
    return psutil.Process(process.pid).memory_info().rss


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nobody_is_held_up_by_all_attackers_at_once(
    server_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others see is compared with what they see beside as many processes that only compute.

    The attackers, the bodies and the tokenizer's lanes of the server are busy all the time.
    """
    # Otherwise glibc keeps freed texts of 31 MiB behind whatever is still in use, for as long as it likes.
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**17))
    models = ("--model", str(BUNDLED_MODEL), "--models-dir", str(write_models(tmp_path / "models")))
    flags = (*models, "--allow-load", "--prefix-cache-bytes", str(2**25))
    with started(server_folder, *flags, command=SMALL_STORE) as (url, _, process):
        text, gaps = answer(url)
        command = [sys.executable, "-m", "tests.end_to_end.trouble.attackers", url]
        subprocess.run([*command, "0"], stdout=subprocess.PIPE, check=True)
        rss_before = resident(process)
        told, within = [], set()
        for _ in range(NUM_ROUNDS):
            until = time.monotonic() + ATTACK_S
            with neighbours(NUM_NEIGHBOURS):
                usual_gaps, usual_health_s = watch(url, lambda: time.monotonic() < until, text)  # noqa: B023
            attackers = subprocess.Popen([*command, str(ATTACK_S)], stdout=subprocess.PIPE, text=True)
            gaps, health_s = watch(url, lambda: attackers.poll() is None, text)  # noqa: B023
            done = attackers.stdout.read()
            figures = {"step": percentile(usual_gaps, 0.5)}
            for name, seconds in (("gap", usual_gaps), ("attacked gap", gaps)):
                figures |= {f"{name} p50": percentile(seconds, 0.5), f"{name} p99": percentile(seconds, 0.99)}
            for name, seconds in (("health", usual_health_s), ("attacked health", health_s)):
                figures[f"{name} p99"] = percentile(seconds, 0.99)
            told.append(", ".join(f"{name} {1000 * value:.0f} ms" for name, value in figures.items()))
            print(done + told[-1])
            assert attackers.returncode == 0, done
            allowed = {
                "gap": BUSIER * figures["gap p99"] + figures["step"] + MORE_S,
                "health": BUSIER * figures["health p99"] + HEALTH_MORE_S,
            }
            within |= {name for name, most in allowed.items() if figures[f"attacked {name} p99"] < most}
            if within == allowed.keys():
                break
        longest = float(_LONGEST.search(httpx.get(url + "/metrics", timeout=60).text)[1])
        give_up_at = time.monotonic() + REST_WITHIN_S
        while (rss := resident(process)) > RSS_SHARE * rss_before:
            assert time.monotonic() < give_up_at, f"RSS {rss_before >> 20} -> {rss >> 20} MiB\n{done}"
            time.sleep(0.5)
    print(f"longest hold {1000 * longest:.0f} ms, RSS {rss_before >> 20} -> {rss >> 20} MiB")
    assert within == {"gap", "health"}, told
    assert longest < allowed_s(HOLD_WITHIN_S)
