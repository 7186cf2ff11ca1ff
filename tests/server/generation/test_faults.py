"""Errors that clients get if the engine cannot serve them."""

import openai
import pytest

from reprise.engine.interface.events import Delta, Failed, Finished, Usage
from tests.server import fake_engine
from tests.server.openai_shapes import assert_error

BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/completions": {"prompt": "hello"},
}


def _ends_with(kind):
    def script(_engine, _job):
        return Failed(kind, f"it ended: {kind}")

    return script


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize(
    ("kind", "status", "code", "is_temporary"),
    [
        ("request", 500, "request_failed", False),
        ("engine", 503, "engine_dead", False),
        ("draining", 503, "draining", True),
        ("cancelled", 503, "draining", True),
    ],
)
async def test_each_kind_of_failure_has_its_status(
    client, engine, path, stream, kind, status, code, is_temporary
):
    engine.script = _ends_with(kind)
    response = await client.post(path, json=BODIES[path] | {"stream": stream})
    assert response.status_code == status
    assert f"it ended: {kind}" in assert_error(response.json(), None, code)
    assert response.json()["error"]["type"] == "server_error"
    assert ("retry-after" in response.headers) == is_temporary


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/completions", {"guided_grammar": 'start: s\ns: s s | "a"'}, "guided_grammar"),
        ("/v1/completions", {"guided_regex": "a+"}, "guided_regex"),
        ("/v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/chat/completions", {"grammar": 'root ::= "a"'}, "grammar"),
        ("/v1/chat/completions", {}, "tools"),
        ("/v1/responses", {"text": {"format": {"type": "json_object"}}}, "text.format"),
    ],
)
async def test_a_grammar_that_takes_too_long_is_the_request_s_fault(
    client, engine, path, fields, param, stream
):
    body = {"input": "hello"} if path == "/v1/responses" else BODIES[path]
    engine.script = fails = lambda *_: Failed("grammar", "took 300 ms")
    response = await client.post(path, json=body | fields | {"stream": stream})
    assert response.status_code == 400
    message = assert_error(response.json(), param, "grammar_too_complex")
    assert message.startswith(f"'{param}' took 300 ms. Simplify it")
    if not stream:
        return

    def fails_midway(fake, job):
        job.sink(Delta("well "))
        return fails(fake, job)

    engine.script = fails_midway
    response = await client.post(path, json=body | fields | {"stream": True})
    assert response.status_code == 200
    (error,) = (line for line in response.text.split("\n") if "grammar_too_complex" in line)
    assert f"'{param}' took 300 ms. Simplify it" in error
    assert f'"param":"{param}"' in error


async def test_the_messages_api_names_its_own_field_of_a_slow_grammar(client, engine):
    def fails_midway(_, job):
        job.sink(Delta("well "))
        return Failed("grammar", "took 300 ms")

    engine.script = fails_midway
    output = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "hello"}], "output_config": output}
    for stream in (True, False):
        response = await client.post("/v1/messages", json=body | {"model": "alias", "stream": stream})
        assert "'output_config.format.schema' took 300 ms. Simplify it" in response.text
        assert "invalid_request_error" in response.text
    assert response.status_code == 400


@pytest.mark.parametrize("stream", [True, False], ids=["streaming", "not streaming"])
@pytest.mark.parametrize(
    ("refusal", "status", "kind", "is_temporary"),
    [
        ("queue_full", 429, "rate_limit_error", True),
        ("draining", 503, "server_error", True),
        ("engine_dead", 503, "server_error", False),
    ],
)
async def test_each_kind_of_refusal_has_its_status(
    client, engine, stream, refusal, status, kind, is_temporary
):
    engine.script = fake_engine.wait_first
    engine.refusal = refusal
    # The fake engine accepts the first choice and refuses the second with queue_full.
    response = await client.post("/v1/completions", json={"prompt": "a", "n": 2, "stream": stream})
    assert response.status_code == status
    assert_error(response.json(), None, refusal)
    assert response.json()["error"]["type"] == kind
    assert ("retry-after" in response.headers) == is_temporary
    assert engine.cancelled_ids == [request.id for request in engine.requests]


async def test_one_failed_choice_ends_the_others(client, engine):
    def only_first_fails(fake, job):
        return (fake_engine.fail_first if job.request.id.endswith("-0") else fake_engine.wait_first)(
            fake, job
        )

    engine.script = only_first_fails
    response = await client.post("/v1/completions", json={"prompt": "a", "n": 3})
    assert response.status_code == 500
    assert engine.cancelled_ids == [request.id for request in engine.requests[1:]]


async def test_a_dead_engine_is_reported_to_waiting_and_to_new_requests(client, engine):
    engine.script = fake_engine.die
    first = await client.post("/v1/completions", json={"prompt": "a"})
    assert first.status_code == 503
    assert "out of luck" in assert_error(first.json(), None, "engine_dead")
    later = await client.post("/v1/completions", json={"prompt": "a"})
    assert later.status_code == 503
    assert "out of luck" in assert_error(later.json(), None, "engine_dead")
    health = await client.get("/health")
    assert health.status_code == 503
    assert health.json()["reason"] == "RuntimeError: out of luck"


async def test_a_stalled_engine_is_reported_by_health_and_to_new_requests(client, engine):
    engine.state, engine.fault = "stalled", "no token and no prefill progress for 120 s while requests wait"
    health = await client.get("/health")
    assert health.status_code == 503
    assert health.json()["status"] == "stalled"
    assert "no token" in health.json()["reason"]
    refused = await client.post("/v1/completions", json={"prompt": "a"})
    assert refused.status_code == 503
    assert "no token" in assert_error(refused.json(), None, "engine_stalled")
    assert int(refused.headers["retry-after"]) >= 1


async def test_a_server_bug_is_a_500_and_the_server_keeps_working(client, engine, caplog):
    def broken(*_):
        raise ZeroDivisionError("a fault")

    engine.tokenizer.render_chat, working = broken, engine.tokenizer.render_chat
    response = await client.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"])
    assert response.status_code == 500
    assert response.headers["x-request-id"] in assert_error(response.json())
    assert "ZeroDivisionError" in caplog.text
    engine.tokenizer.render_chat = working
    again = await client.post("/v1/chat/completions", json=BODIES["/v1/chat/completions"])
    assert again.status_code == 200


@pytest.mark.parametrize(
    ("script", "refusal", "error"),
    [
        (fake_engine.fail_first, None, openai.InternalServerError),
        (fake_engine.echo, "draining", openai.InternalServerError),
        (fake_engine.wait_first, "queue_full", openai.RateLimitError),
    ],
)
def test_the_sdk_raises_the_error_class_that_the_status_means(url, engine, script, refusal, error):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    engine.script, engine.refusal = script, refusal
    with pytest.raises(error):
        client.completions.create(model="alias", prompt="a", n=2)


async def test_an_output_without_tokens_is_a_valid_response(client, engine):
    engine.script = lambda _engine, _job: Finished("stop", Usage(num_prompt_tokens=5, total_s=0.1))
    response = await client.post("/v1/completions", json={"prompt": "hello"})
    assert response.json()["choices"][0]["text"] == ""
    assert response.json()["usage"]["completion_tokens"] == 0
