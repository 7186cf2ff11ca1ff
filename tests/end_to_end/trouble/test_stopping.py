"""SIGTERM to the real process: running requests finish, new ones get a 503, and the table is saved."""

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx

from reprise.drafters.ngram_mod.table import MAGIC
from tests.end_to_end.conftest import started, with_constant

ENDS_WITHIN_S = 120
"""Generous, because the machine may be busy."""
SHORT = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 40, "logit_bias": {"2": -100}}
LONG = SHORT | {"max_tokens": 8000}
"""An answer that fills the model's context, which takes minutes."""


@contextlib.contextmanager
def streaming(url: str, body: dict) -> Iterator[Iterator[str]]:
    """Open a stream; yield its data lines after the first one."""
    with (
        httpx.Client(timeout=ENDS_WITHIN_S) as http,
        http.stream("POST", f"{url}/v1/chat/completions", json=body | {"stream": True}) as response,
    ):
        lines = (line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: "))
        next(lines)
        yield lines


def test_sigterm_lets_streams_finish_refuses_new_ones_and_a_second_one_ends_at_once(
    server_folder: Path, tmp_path: Path
) -> None:
    table = tmp_path / "ngrams"
    patient = with_constant("reprise.server.run.DRAIN_S", 600)
    with (
        started(server_folder, "--ngram-table-file", str(table), command=patient) as (url, printed, process),
        streaming(url, LONG) as long,
        streaming(url, SHORT) as short,
    ):
        process.send_signal(signal.SIGTERM)
        # The engine starts to drain a moment after the signal.
        while (health := httpx.get(f"{url}/health", timeout=ENDS_WITHIN_S)).status_code == 200:
            pass
        assert (health.status_code, health.json()["status"]) == (503, "draining")
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"):
            body = {"prompt": "a"} if path == "/v1/completions" else {"messages": SHORT["messages"]}
            body = {"input": "a"} if path == "/v1/responses" else body
            body |= {"max_tokens": 4} if path == "/v1/messages" else {}
            refused = httpx.post(f"{url}{path}", json=body, timeout=ENDS_WITHIN_S)
            assert refused.status_code == 503, refused.text
            assert 1 <= int(refused.headers["retry-after"]) <= 600
        *_, last, done = short
        assert done == "[DONE]"
        assert json.loads(last)["timings"]["predicted_n"] == SHORT["max_tokens"]
        # The other stream still runs.
        assert "error" not in json.loads(next(long))
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        *_, last = long
        assert json.loads(last)["error"]["code"] == "draining"
        assert process.wait(ENDS_WITHIN_S) == 128 + signal.SIGTERM
    assert any("stopping at once: " in line for line in printed), printed[-8:]
    # Its log line.
    assert any("draining" in line and "completions 200" in line for line in printed), printed[-8:]


def test_what_does_not_finish_in_time_is_told_so_the_table_is_saved_and_the_status_is_0(
    server_folder: Path, tmp_path: Path
) -> None:
    table = tmp_path / "ngrams"
    hasty = with_constant("reprise.server.run.DRAIN_S", 0.5)
    with (
        started(server_folder, "--ngram-table-file", str(table), command=hasty) as (url, printed, process),
        streaming(url, LONG) as long,
    ):
        process.send_signal(signal.SIGTERM)
        *_, last = long
        assert json.loads(last)["error"]["code"] == "draining"
        assert process.wait(ENDS_WITHIN_S) == 0, printed
    header = json.loads(table.read_bytes().removeprefix(MAGIC).partition(b"\n")[0])
    assert sum(one["occupied"] for one in header["tables"]) > 0
    assert list(tmp_path.iterdir()) == [table]


def test_finished_requests_and_what_was_learned_of_them_survive_a_restart(
    server_folder: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    flags = ("--prefix-cache-dir", str(kept), "--draft-type", "suffix")
    body = SHORT | {
        "max_tokens": 100,
        "temperature": 0,
        "messages": [{"role": "user", "content": "Tell a story."}],
    }
    answers = []
    for _ in range(2):
        with started(server_folder, *flags) as (url, printed, process):
            answers.append(httpx.post(f"{url}/v1/chat/completions", json=body, timeout=ENDS_WITHIN_S).json())
            process.send_signal(signal.SIGTERM)
            assert process.wait(ENDS_WITHIN_S) == 0, printed
    first, second = answers
    assert second["choices"] == first["choices"]
    assert second["timings"]["draft_n_accepted"] > first["timings"]["draft_n_accepted"]
    assert second["timings"]["forwards"] < first["timings"]["forwards"]
    (history,) = kept.glob("history-*")
    (acceptance,) = kept.glob("acceptance-*.json")
    assert {file.stat().st_mode & 0o777 for file in (history, acceptance)} == {0o600}
    assert json.loads(acceptance.read_bytes())["suffix"]


SYSTEM = "The lantern in the hall is red and large. " * 60


def tell(url: str, about: str) -> tuple[str, int]:
    """Ask a question after a long first prompt; return the answer, and how many tokens were cached."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"Tell me about {about}."}]
    body = {"messages": messages, "max_tokens": 30, "seed": 3}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=ENDS_WITHIN_S)
    assert response.status_code == 200, response.text
    given = response.json()
    cached = given["usage"]["prompt_tokens_details"]["cached_tokens"]
    return given["choices"][0]["message"]["content"], cached


def test_servers_share_the_default_folder_through_kill_9_and_the_first_prompt_survives(
    server_url: str, tmp_path: Path
) -> None:
    topics = ("Rome", "a kitten", "the sea")
    expected = {topic: tell(server_url, topic)[0] for topic in topics}
    flags = ("--prefix-cache-dir", "auto")
    folder = tmp_path / "cache" / "reprise" / "prefixes"
    with started(tmp_path, *flags) as (first, printed, one), started(tmp_path, *flags) as (second, _, two):
        assert any(f"{folder} keeps prompts over a restart" in line for line in printed), printed
        assert tell(first, topics[0])[0] == expected[topics[0]]
        # It may be writing just now.
        one.kill()
        for topic in topics:
            assert tell(second, topic)[0] == expected[topic]
        two.terminate()
        assert two.wait(ENDS_WITHIN_S) == 0
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    with started(tmp_path, *flags) as (url, printed, _):
        for topic in reversed(topics):
            text, num_cached = tell(url, topic)
            assert text == expected[topic]
            assert num_cached > 500
    assert "Traceback" not in "".join(printed)


def test_without_a_usable_default_folder_the_server_serves(server_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "reprise"
    folder.mkdir(parents=True)
    (folder / "prefixes").write_text("in the way")
    with started(tmp_path, "--prefix-cache-dir", "auto") as (url, printed, process):
        assert tell(url, "Rome")[0] == tell(server_url, "Rome")[0]
        process.terminate()
        assert process.wait(ENDS_WITHIN_S) == 0
    said = "".join(printed)
    assert "prompts are kept in memory only" in said
    assert "Traceback" not in said
    assert (folder / "prefixes").read_text() == "in the way"
