"""Streams over a real connection."""

import itertools
import json
import threading

import httpx
import openai
import pytest

from reprise.config.settings import Settings
from reprise.server.app import create_app
from reprise.server.generation import answer
from reprise.server.openai_api.chat import OpenAIPresenter
from reprise.server.openai_api.responses.presenter import ResponsePresenter
from reprise.server.output.parts import ChoiceOutput
from tests.server import fake_engine
from tests.server.openai_shapes import (
    assert_error,
    stream_data,
    valid_chat_chunks,
    valid_completion_chunks,
)
from tests.server.served import served

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "héllo ✓"}]


def _stream(url, path=CHAT, **fields):
    body = {"messages": HELLO} if path == CHAT else {"prompt": "héllo ✓"}
    return httpx.post(url + path, json=body | fields | {"stream": True}, timeout=20)


def test_a_chat_stream_is_role_then_text_then_reason_then_done(url):
    response = _stream(url)
    assert response.status_code == 200
    first, *texts, last = valid_chat_chunks(response.text)
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(chunk.choices[0].delta.content for chunk in texts) == "user: héllo ✓\n"
    assert {chunk.choices[0].finish_reason for chunk in [first, *texts]} == {None}
    assert last.choices[0].finish_reason == "stop"
    assert last.choices[0].delta.model_dump(exclude_unset=True) == {}
    assert len({(chunk.id, chunk.created, chunk.model, chunk.system_fingerprint) for chunk in texts}) == 1


def test_no_line_has_what_some_clients_take_for_its_end(engine, url):
    text = "one\u2028two\u2029three\x85four"
    engine.script = fake_engine.says(text)
    response = _stream(url)
    assert len(response.text.splitlines()) == response.text.count("\n")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in valid_chat_chunks(response.text)) == text


def test_a_completion_stream_has_no_role(url):
    *texts, last = valid_completion_chunks(_stream(url, COMPLETIONS).text)
    assert "".join(chunk.choices[0].text for chunk in texts) == "héllo ✓"
    assert (last.choices[0].text, last.choices[0].finish_reason) == ("", "stop")


def test_headers_keep_proxies_from_buffering_the_stream(url):
    headers = _stream(url).headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("path", "valid"), [(CHAT, valid_chat_chunks), (COMPLETIONS, valid_completion_chunks)]
)
def test_usage_comes_last_when_asked_for_and_is_null_before(url, path, valid):
    body = _stream(url, path, stream_options={"include_usage": True}).text
    *_, usage = valid(body)
    assert usage.choices == []
    assert usage.usage.total_tokens == usage.usage.prompt_tokens + usage.usage.completion_tokens > 0
    *earlier, _, _ = stream_data(body)
    assert all(json.loads(chunk)["usage"] is None for chunk in earlier)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_without_include_usage_there_is_no_usage_field(url, path):
    assert '"usage"' not in _stream(url, path).text


def test_choices_are_distinguished_by_index(url):
    chunks = valid_chat_chunks(_stream(url, n=3, stream_options={"include_usage": True}).text)
    parts = {index: [] for index in range(3)}
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        parts[choice.index].append(choice)
    for choices in parts.values():
        assert choices[0].delta.role == "assistant"
        assert "".join(choice.delta.content or "" for choice in choices) == "user: héllo ✓\n"
        assert [choice.finish_reason for choice in choices[-2:]] == [None, "stop"]
    assert chunks[-1].usage.prompt_tokens == len("user: héllo ✓\n".encode())


def test_the_sdk_puts_the_stream_together(url):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with client.chat.completions.stream(model="alias", messages=HELLO) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "user: héllo ✓\n"
    assert final.choices[0].finish_reason == "stop"


def test_keep_alive_comments_are_sent_during_silence(engine, monkeypatch):
    engine.script = fake_engine.wait_first
    monkeypatch.setattr(answer, "KEEP_ALIVE_S", 0.05)
    app = create_app(engine, Settings())
    with served(app) as url, httpx.Client() as http:
        body = {"messages": HELLO, "stream": True}
        with http.stream("POST", url + CHAT, json=body, timeout=240) as response:
            lines = response.iter_lines()
            # The headers were sent with the first comment: there is no token yet.
            assert response.status_code == 200
            # No line is empty, which would be the end of an event.
            begun = itertools.dropwhile(lambda line: not line.startswith(":"), lines)
            assert list(itertools.islice(begun, 3)) == [": keep-alive"] * 3
            engine.release()
            rest = [line for line in lines if line.startswith("data: ")]
        assert rest[-1] == "data: [DONE]"
    engine.script = fake_engine.echo


def test_an_error_before_the_first_token_has_its_true_status(url, engine):
    engine.script = fake_engine.fail_first
    response = _stream(url)
    assert response.status_code == 500
    assert "the roof is on fire" in assert_error(response.json(), None, "request_failed")


def test_an_error_in_mid_stream_is_one_frame_and_the_end(url, engine):
    engine.script = fake_engine.fail_midway
    response = _stream(url)
    assert response.status_code == 200
    *chunks, last = stream_data(response.text)
    assert "well " in "".join(chunks)
    assert_error(json.loads(last), None, "request_failed")
    assert sum('"error"' in chunk for chunk in chunks) == 0


def test_an_error_in_mid_stream_is_an_api_error_of_the_sdk(url, engine):
    engine.script = fake_engine.fail_midway
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(model="alias", messages=HELLO, stream=True)
    with pytest.raises(openai.APIError, match="the roof is on fire"):
        list(stream)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_event_loop_does_not_write_all_log_probabilities_at_once(client, monkeypatch, stream):
    threads = []
    for name in ("format_response", "format_end"):
        original = getattr(OpenAIPresenter, name)

        def noting(*given, original=original):
            threads.append(threading.current_thread())
            return original(*given)

        monkeypatch.setattr(OpenAIPresenter, name, noting)
    for logprobs in (True, False):
        body = {"messages": [{"role": "user", "content": "hello"}], "logprobs": logprobs, "stream": stream}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert [thread is threading.current_thread() for thread in threads] == [False, True]


async def test_the_event_loop_does_not_repeat_a_text_s_log_probabilities_where_the_text_ends(
    client, engine, monkeypatch
):
    original, threads = ResponsePresenter.format_parts, []

    def noting(presenter, events):
        written = original(presenter, events)
        if b"output_text.done" in written:
            threads.append(threading.current_thread())
            engine.release()
        return written

    def call_then_wait(fake, job):
        end = fake_engine.says("well ", '<tool_call>{"name": "f", "arguments": {}}</tool_call>')(fake, job)
        fake.wait_for_release(job)
        return end

    monkeypatch.setattr(ResponsePresenter, "format_parts", noting)
    engine.script = call_then_wait
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    asked = {"input": "hello", "top_logprobs": 1, "tools": [tool], "stream": True}
    assert (await client.post("/v1/responses", json=asked)).status_code == 200
    assert [thread is threading.current_thread() for thread in threads] == [False]


@pytest.mark.parametrize("logprobs", [True, False])
async def test_the_event_loop_does_not_join_a_whole_long_answer_at_once(
    client, engine, monkeypatch, logprobs
):
    original, num_parts = ChoiceOutput.of, []

    def noting(parts):
        parts = list(parts)
        num_parts.append(len(parts))
        return original(parts)

    monkeypatch.setattr(ChoiceOutput, "of", noting)
    engine.script = fake_engine.says(*"abcdefghij" * 100)
    body = {"messages": HELLO, "logprobs": logprobs}
    choice = (await client.post(CHAT, json=body)).json()["choices"][0]
    assert choice["message"]["content"] == "abcdefghij" * 100
    assert not logprobs or len(choice["logprobs"]["content"]) == 1000
    assert num_parts[0] < 10


async def test_a_response_with_log_probabilities_is_stored(client):
    include = ["message.output_text.logprobs"]
    asked = {"model": "alias", "input": "hello", "include": include, "top_logprobs": 2}
    response = (await client.post("/v1/responses", json=asked)).json()
    assert response["output"][0]["content"][0]["logprobs"]
    assert (await client.get(f"/v1/responses/{response['id']}")).json() == response
