"""--record writes every finished output with its request, and never disturbs a request."""

import json
import logging
import os
import shutil
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from reprise.bench.workloads import read_prompts
from reprise.config.setting import SettingsError
from reprise.config.settings import Settings
from reprise.server.app import create_app
from reprise.server.generation.recorder import Recorder
from tests.server.fake_engine import FakeEngine, says

CHAT = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}

Recording = Callable[..., Any]


@pytest.fixture
def recording(engine: FakeEngine, tmp_path: Path) -> Recording:
    """Return a context with a client of a server that records; after it, recorded.jsonl is complete."""

    @asynccontextmanager
    async def start(**settings: Any) -> AsyncIterator[httpx.AsyncClient]:
        chosen = Settings(record=str(tmp_path / "recorded.jsonl"), **settings)
        app = create_app(engine, chosen)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://reprise") as client,
        ):
            yield client

    return start


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "recorded.jsonl").read_text().splitlines()]


async def test_a_line_has_the_request_and_the_output(
    recording: Recording, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.script = says("good ", "morning")
    async with recording() as client:
        body = HELLO | {"tools": [TOOL], "temperature": 0.5, "max_tokens": 20, "draft": {"type": "suffix"}}
        assert (await client.post(CHAT, json=body, headers={"X-Request-Id": "mine"})).status_code == 200
    (line,) = lines_of(tmp_path)
    assert line["id"].startswith("mine-")
    assert line["messages"] == HELLO["messages"]
    assert line["tools"] == [TOOL]
    assert (line["temperature"], line["max_tokens"], line["draft_type"]) == (0.5, 20, "suffix")
    assert (line["prompt"], line["output"]) == ("user: hello\n", "good morning")
    assert line["model"] == engine.info.name
    assert line["completion_tokens"] == len("good morning")
    assert line["finish_reason"] == "stop"


async def test_a_line_says_how_an_answer_was_streamed(
    recording: Recording, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.info = replace(engine.info, mask_token_id=7, can_decode_windows=True)
    async with recording(wedlm_decoding="streaming", wedlm_window_size=4) as client:
        assert (await client.post(CHAT, json=HELLO)).status_code == 200
        assert (await client.post(CHAT, json=HELLO | {"wedlm_decoding": "off"})).status_code == 200
    streamed, plain = lines_of(tmp_path)
    assert streamed["streaming"]["window_size"] == 4
    assert "streaming" not in plain


async def test_every_choice_of_every_endpoint_has_its_line(
    recording: Recording, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.script = says("yes")
    async with recording() as client:
        for path, body in (
            (CHAT, HELLO | {"n": 2}),
            (CHAT, HELLO | {"stream": True}),
            ("/v1/completions", {"prompt": ["one", "two"]}),
            ("/v1/responses", {"input": "hello"}),
            ("/v1/messages", HELLO | {"model": "reprise-demo", "max_tokens": 9}),
        ):
            body = body | ({"model": engine.info.name} if "model" in body else {})
            assert (await client.post(path, json=body)).status_code == 200, path
    lines = lines_of(tmp_path)
    assert [line["output"] for line in lines] == ["yes"] * 7
    assert [line["prompt"] for line in lines if "messages" not in line] == ["one", "two"]
    assert sum(line.get("messages") == HELLO["messages"] for line in lines) == 5


async def test_recorded_lines_can_be_read_as_prompts_and_as_pairs(
    recording: Recording, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.script = says("hi")
    further = [{"role": "assistant", "content": "hi"}, {"role": "user", "content": "\U0001f600 and now?"}]
    async with recording() as client:
        for body in (HELLO, {"messages": HELLO["messages"] + further}):
            assert (await client.post(CHAT, json=body)).status_code == 200
        assert (await client.post("/v1/completions", json={"prompt": "once"})).status_code == 200
    chat, plain = read_prompts(tmp_path / "recorded.jsonl")
    assert [turn.reference for turn in chat.turns] == ["hi", "hi"]
    assert list(chat.turns[1].messages) == HELLO["messages"] + further
    assert (plain.turns[0].text, plain.turns[0].reference) == ("once", "hi")
    replayed = read_prompts(tmp_path / "recorded.jsonl", for_replay=True)
    turns = [turn for chat in replayed for turn in chat.turns]
    assert [turn.reference for turn in turns] == ["hi"] * 3
    assert turns[0].text == "user: hello\n"


async def test_the_end_of_sequence_token_is_not_part_of_the_output(
    recording: Recording, engine: FakeEngine, tmp_path: Path
) -> None:
    engine.tokenizer.eos_ids = frozenset(b".")
    engine.script = says("one. two.")
    async with recording() as client:
        await client.post(CHAT, json=HELLO)
    assert lines_of(tmp_path)[0]["output"] == "one. two"


async def test_only_the_owner_may_read_the_file_and_the_log_mentions_it(
    recording: Recording, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "recorded.jsonl"
    file.touch(mode=0o644)
    async with recording() as client:
        await client.post(CHAT, json=HELLO)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert f"prompts and outputs are recorded in {file}" in caplog.text


async def test_without_the_setting_nothing_is_recorded(client: httpx.AsyncClient, tmp_path: Path) -> None:
    assert (await client.post(CHAT, json=HELLO)).status_code == 200
    assert Settings().record is None
    assert not [*tmp_path.iterdir()]  # noqa: ASYNC240


async def test_a_deleted_folder_disturbs_no_request_and_is_logged_once(
    recording: Recording, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with recording() as client:
        shutil.rmtree(tmp_path)
        for _ in range(3):
            assert (await client.post(CHAT, json=HELLO)).status_code == 200
    recorded = tmp_path / "recorded.jsonl"
    assert [record.getMessage() for record in caplog.records if "some requests" in record.getMessage()] == [
        f"cannot write {recorded}: No such file or directory; some requests are not recorded"
    ]


async def test_a_full_disk_leaves_no_partial_line(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    room = [3]

    def write_little(file: int, line: bytes) -> int:
        return write(file, line[: room.pop()] if room else line)

    async with recording() as client:
        monkeypatch.setattr("reprise.server.generation.recorder.os.write", write_little)
        for text in ("first", "second"):
            body = {"messages": [{"role": "user", "content": text}]}
            assert (await client.post(CHAT, json=body)).status_code == 200
    assert [line["messages"][0]["content"] for line in lines_of(tmp_path)] == ["second"]


async def test_no_more_than_record_bytes_are_recorded(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("reprise.server.generation.recorder.RECORD_BYTES", 1000)
    async with recording() as client:
        for _ in range(9):
            assert (await client.post(CHAT, json=HELLO)).status_code == 200
    assert 0 < (tmp_path / "recorded.jsonl").stat().st_size <= 1000
    assert lines_of(tmp_path)
    assert sum("no more requests are recorded" in record.getMessage() for record in caplog.records) == 1


def test_a_line_that_a_crash_cut_off_does_not_spoil_the_next(tmp_path: Path) -> None:
    file = tmp_path / "recorded.jsonl"
    file.write_bytes(b'{"half')
    recorder = Recorder(file)
    recorder.start()
    recorder.record(lambda: [b"{}\n"])
    recorder.close()
    assert file.read_bytes() == b'{"half\n{}\n'


def test_a_line_that_cannot_be_made_is_logged_and_the_next_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> list[bytes]:
        raise ValueError("broken")

    recorder = Recorder(tmp_path / "recorded.jsonl")
    recorder.start()
    for make_lines in (fail, fail, lambda: [b"{}\n"]):
        recorder.record(make_lines)
    recorder.close()
    assert (tmp_path / "recorded.jsonl").read_bytes() == b"{}\n"
    assert sum("could not be recorded" in record.getMessage() for record in caplog.records) == 1


def test_a_hanging_disk_delays_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    # Not started, so the queue is never emptied.
    recorder = Recorder(tmp_path / "recorded.jsonl")
    for _ in range(1000):
        recorder.record(lambda: [b"{}\n"])
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert messages == [
        f"writing to {recorder.path} is too slow; some requests are not recorded",
    ]


@pytest.mark.parametrize("name", ["", "missing/recorded.jsonl", "pipe"])
def test_a_file_that_cannot_be_written_is_refused_at_start(
    name: str, tmp_path: Path, engine: FakeEngine
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match=r"^cannot write .* \(record\): "):
        create_app(engine, Settings(record=str(tmp_path / name)))
