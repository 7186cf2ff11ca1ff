"""Fields, paths and names as other servers have them."""

import httpx
import pytest

from config.settings import Settings
from server.app import create_app
from tests.server.openai_shapes import assert_error

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HELLO = [{"role": "user", "content": "hello"}]
IGNORED = "x-reprise-ignored"


async def ask(client, path=CHAT, **fields):
    body = {"messages": HELLO} if path in (CHAT, "/v1/messages") else {"prompt": "hello"}
    return await client.post(path, json=body | fields)


@pytest.fixture
def free(engine):
    """A client of a server that ignores unknown fields and answers to any name."""
    return create_app(engine, Settings(unknown_fields="ignore", served_model_name=("*",)))


@pytest.fixture
async def free_client(free):
    async with (
        free.router.lifespan_context(free),
        httpx.AsyncClient(transport=httpx.ASGITransport(free), base_url="http://localhost") as http,
    ):
        yield http


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"repeat_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"options": {"repeat_penalty": 1.5, "num_ctx": 4096}}, "repetition_penalty", 1.5),
        ({"options": {"top_k": 7}}, "top_k", 7),
    ],
)
async def test_a_field_with_a_meaning_here_works(client, engine, path, fields, name, value):
    assert (await ask(client, path, **fields)).status_code == 200
    assert getattr(engine.requests[-1].sampling, name) == value


@pytest.mark.parametrize(("limit", "num"), [(3, 3), (-1, 992)])
async def test_n_predict_limits_the_answer(client, engine, limit, num):
    assert (await ask(client, COMPLETIONS, n_predict=limit)).status_code == 200
    assert engine.requests[-1].max_tokens == (num if num == 3 else 1000 - len("hello"))


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"json_schema": {"type": "integer"}}, "json_schema", "integer"),
        ({"format": {"type": "integer"}}, "json_schema", "integer"),
        ({"format": "json"}, "json_schema", "object"),
        ({"structured_outputs": {"regex": "[ab]+"}}, "regex", "[ab]+"),
        ({"structured_outputs": {"json_object": True}}, "json_schema", "object"),
        ({"grammar": 'root ::= "a" [0-9]+'}, "lark", "start"),
    ],
)
async def test_constraints_of_other_servers_are_enforced(client, engine, fields, kind, text):
    assert (await ask(client, **fields)).status_code == 200
    (grammar,) = engine.compiled_grammars
    assert grammar.kind == kind
    assert text in grammar.text


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({"enable_thinking": False}, {"enable_thinking": False}),
        ({"think": True}, {"enable_thinking": True}),
        ({"think": "high"}, {"reasoning_effort": "high"}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"enabled": False}}, {"enable_thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"enable_thinking": False, "chat_template_kwargs": {"a": 1}}, {"enable_thinking": False, "a": 1}),
    ],
)
async def test_thinking_is_switched_as_other_servers_do(client, engine, fields, arguments):
    assert (await ask(client, **fields)).status_code == 200
    assert engine.tokenizer.rendered[-1][1] == arguments


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/v1/messages"])
async def test_a_field_without_a_meaning_here_is_left_out_and_named(client, path):
    response = await ask(client, path, max_tokens=9, provider={"order": []}, mirostat=2, repeat_penalty=1.0)
    assert response.status_code == 200
    ignored = response.headers[IGNORED]
    assert ignored == ("provider, mirostat, repeat_penalty" if "messages" in path else "provider, mirostat")


async def test_a_request_in_this_api_s_own_fields_has_no_such_header(client):
    assert IGNORED not in (await ask(client)).headers


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"grammar": "root ::= ("}, "grammar", "invalid_value"),
        ({"grammar": 5}, "grammar", "invalid_type"),
        ({"enable_thinking": "yes"}, "enable_thinking", "invalid_type"),
        ({"reasoning": "high"}, "reasoning", "invalid_type"),
        ({"structured_outputs": []}, "structured_outputs", "invalid_type"),
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.2}, "repetition_penalty", "invalid_value"),
        ({"nobody_has_this": 1}, "nobody_has_this", "unknown_parameter"),
        ({"options": {"nobody_has_this": 1}}, "nobody_has_this", "unknown_parameter"),
    ],
)
async def test_malformed_and_unknown_fields_are_refused_by_name(client, engine, fields, param, code):
    response = await ask(client, **fields)
    assert response.status_code == 400
    assert_error(response.json(), param, code)
    assert not engine.requests


async def test_unknown_fields_are_ignored_only_if_the_setting_says_so(free_client):
    messages = [{"role": "user", "content": "hello", "nobody": 1}]
    body = {"messages": messages, "has": {"this": 1}, "model": "gpt-99", "mirostat": 1}
    response = await free_client.post(CHAT, json=body)
    assert response.status_code == 200
    assert response.json()["model"] == "gpt-99"
    assert set(response.headers[IGNORED].split(", ")) == {"mirostat", "has", "messages[0].nobody"}
    refused = await free_client.post(CHAT, json=body | {"temperature": "hot"})
    assert_error(refused.json(), "temperature", "invalid_type")


async def test_a_name_that_is_not_served_is_told_how_it_could_be(client):
    response = await ask(client, model="gpt-99")
    assert response.status_code == 404
    assert "--served-model-name '*'" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chat/completions", {"messages": HELLO}),
        ("/completions", {"prompt": "x"}),
        ("/responses", {"input": "x"}),
        ("/messages", {"messages": HELLO, "max_tokens": 5}),
    ],
)
async def test_paths_work_without_their_prefix(client, path, body):
    response = await client.post(path, json=body)
    assert response.status_code == 200
    names = (await client.get("/models")).json()["data"]
    assert (await client.get(f"/models/{names[0]['id']}")).status_code == 200


async def test_errors_have_the_api_s_format_without_the_prefix_too(client):
    assert (await client.post("/messages", json={})).json()["type"] == "error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_is_scored_without_an_answer(client, engine, stream):
    body = {"prompt": "abc", "max_tokens": 0, "echo": True, "logprobs": 1}
    response = await client.post(COMPLETIONS, json=body | {"stream": stream})
    assert response.status_code == 200
    assert engine.requests[-1].max_tokens == 1
    if not stream:
        whole = response.json()
        (choice,) = whole["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
        assert len(choice["logprobs"]["token_logprobs"]) == 3
        assert (whole["usage"]["completion_tokens"], whole["usage"]["total_tokens"]) == (0, 3)


async def test_no_tokens_without_echo_are_refused(client):
    response = await client.post(COMPLETIONS, json={"prompt": "abc", "max_tokens": 0})
    assert_error(response.json(), "max_tokens", "invalid_value")
