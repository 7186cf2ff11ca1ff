"""Fields, paths and names as other servers have them."""

import json

import httpx
import pytest

from reprise.config.settings import Settings
from reprise.server.app import create_app
from reprise.server.requests.peer_fields import UNDERSTOOD
from tests.server.fake_engine import THINKING, says, tells
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
    assert ignored == "provider, mirostat"


@pytest.mark.parametrize(
    ("path", "fields", "num_kept"),
    [
        (COMPLETIONS, {"truncate_prompt_tokens": 2}, 2),
        (COMPLETIONS, {"truncate_prompt_tokens": 5000}, 2000),
        (COMPLETIONS, {"truncate_prompt_tokens": -1}, 999),
        (COMPLETIONS, {"truncate_prompt_tokens": -1, "max_tokens": 100}, 900),
        (CHAT, {"truncate_prompt_tokens": 7}, 7),
    ],
)
async def test_only_the_end_of_a_prompt_is_kept(client, engine, path, fields, num_kept):
    text = "abcdefghij" * 200
    body = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    response = await client.post(path, json=body | fields)
    if num_kept >= 1000:
        assert_error(response.json(), "prompt", "context_length_exceeded")
        return
    assert response.json()["usage"]["prompt_tokens"] == num_kept
    whole = text.encode() if path == COMPLETIONS else f"user: {text}\n".encode()
    assert bytes(engine.requests[-1].prompt) == whole[-num_kept:]


PARTIAL = [*HELLO, {"role": "assistant", "content": "Once"}]


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"continue_final_message": True, "add_generation_prompt": False}, "user: hello\nassistant: Once"),
        ({"continue_final_message": True}, "user: hello\nassistant: Once"),
        ({"add_generation_prompt": False}, "user: hello\nassistant: Once\n"),
        ({"add_generation_prompt": True}, "user: hello\nassistant: Once\n>"),
        ({}, "user: hello\nassistant: Once\n>"),
    ],
)
async def test_an_answer_may_continue_the_last_message(client, engine, fields, prompt):
    engine.tokenizer.opening = ">"
    assert (await ask(client, messages=PARTIAL, **fields)).status_code == 200
    assert bytes(engine.requests[-1].prompt).decode() == prompt
    counted = await client.post("/tokenize", json={"messages": PARTIAL, **fields})
    assert counted.json()["count"] == len(prompt)


@pytest.mark.parametrize(
    ("path", "fields", "param", "code"),
    [
        (CHAT, {"continue_final_message": True}, "continue_final_message", "invalid_value"),
        (
            CHAT,
            {"messages": PARTIAL, "continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
            "invalid_value",
        ),
        (CHAT, {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        (CHAT, {"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "invalid_value"),
        (COMPLETIONS, {"truncate_prompt_tokens": 2, "echo": True}, "truncate_prompt_tokens", "invalid_value"),
        (CHAT, {"bad_words": 5}, "bad_words", "invalid_type"),
        (CHAT, {"bad_words": [""]}, "bad_words[0]", "invalid_type"),
        (CHAT, {"bad_words": ["x"] * 101}, "bad_words", "invalid_value"),
        (CHAT, {"bad_words": ["x"], "guided_regex": "a"}, "guided_regex", "invalid_value"),
    ],
)
async def test_what_contradicts_itself_is_refused(client, path, fields, param, code):
    response = await ask(client, path, **fields)
    assert response.status_code == 400
    assert_error(response.json(), param, code)


async def test_bad_words_are_left_out_by_a_grammar(client, engine):
    assert (await ask(client, bad_words=["a.b", "c"], response_format={"type": "text"})).status_code == 200
    assert (await ask(client, COMPLETIONS, bad_words=["a"])).status_code == 200
    assert [grammar.kind for grammar in engine.compiled_grammars] == ["lark"] * 2
    assert (await ask(client, bad_words=[])).status_code == 200
    assert len(engine.compiled_grammars) == 2


async def test_a_request_in_this_api_s_own_fields_has_no_such_header(client):
    assert IGNORED not in (await ask(client)).headers


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"grammar": "root ::= ("}, "grammar", "invalid_value"),
        ({"grammar": 'other ::= "a"'}, "grammar", "invalid_value"),
        ({"grammar": "root ::= other"}, "grammar", "invalid_value"),
        ({"grammar": 'root ::= "\\'}, "grammar", "invalid_value"),
        ({"grammar": "root ::= " + "(" * 9000}, "grammar", "invalid_value"),
        ({"grammar": 5}, "grammar", "invalid_type"),
        ({"enable_thinking": "yes"}, "enable_thinking", "invalid_type"),
        ({"reasoning": "high"}, "reasoning", "invalid_type"),
        ({"structured_outputs": []}, "structured_outputs", "invalid_type"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.2}, "repeat_penalty", "invalid_value"),
        ({"nobody_has_this": 1}, "nobody_has_this", "unknown_parameter"),
        ({"options": {"nobody_has_this": 1}}, "nobody_has_this", "unknown_parameter"),
        ({"options": 3}, "options", "invalid_type"),
        ({"messages": [HELLO[0] | {"nobody": 1, "index": 1}]}, "messages[0].nobody", "unknown_parameter"),
    ],
)
async def test_malformed_and_unknown_fields_are_refused_by_name(strict_client, engine, fields, param, code):
    response = await ask(strict_client, **fields)
    assert response.status_code == 400
    assert_error(response.json(), param, code)
    assert not engine.requests


BODIES = {
    CHAT: {"messages": HELLO, "max_tokens": 9},
    COMPLETIONS: {"prompt": "hello", "max_tokens": 9},
    "/v1/messages": {"messages": HELLO, "max_tokens": 9},
    "/v1/responses": {"input": "hello", "max_output_tokens": 16},
}


@pytest.mark.parametrize("name", UNDERSTOOD)
@pytest.mark.parametrize("path", BODIES)
async def test_null_means_that_a_field_was_left_out(client, path, name):
    response = await client.post(path, json=BODIES[path] | {name: None})
    assert response.status_code == 200, response.text
    assert IGNORED not in response.headers


async def test_null_does_not_contradict_a_field_of_another_server(client, engine):
    assert (await ask(client, max_tokens=None, n_predict=3)).status_code == 200
    assert engine.requests[-1].max_tokens == 3


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MARKED = {"cache_control": {"type": "ephemeral"}}
CALLED = {"role": "assistant", "tool_calls": [CALL | {"index": 0}], "reasoning_details": [], "thinking": "hm"}


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"messages": [{"role": "user", "content": "hello"} | MARKED]}, ["messages[0].cache_control"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"} | MARKED] * 25}]},
            [f"messages[0].content[{at}].cache_control" for at in range(25)],
        ),
        (
            {"messages": [*HELLO, CALLED, {"role": "tool", "tool_call_id": "c1", "content": "ok"}]},
            ["messages[1].tool_calls[0].index", "messages[1].reasoning_details", "messages[1].thinking"],
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}} | MARKED], "tool_choice": "none"},
            ["tools[0].cache_control"],
        ),
        (
            {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            ["stream_options.continuous_usage_stats"],
        ),
        ({"verbosity": "low", "web_search_options": {}}, ["verbosity", "web_search_options"]),
    ],
)
async def test_what_other_servers_have_inside_objects_is_left_out_and_named(client, fields, ignored):
    response = await ask(client, **fields)
    assert response.status_code == 200, response.text
    assert sorted(response.headers[IGNORED].split(", ")) == sorted(ignored)


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_schema_may_stand_where_llama_server_has_it(client, engine, path, kind):
    response = await ask(client, path, response_format={"type": kind, "schema": {"type": "integer"}})
    assert response.status_code == 200
    (grammar,) = engine.compiled_grammars
    assert (grammar.kind, grammar.text) == ("json_schema", '{"type":"integer"}')


async def test_unknown_fields_are_ignored_only_if_the_setting_says_so(free_client):
    messages = [{"role": "user", "content": [{"type": "text", "text": "hello", "no": 2}], "nobody": 1}]
    body = {"messages": messages, "has": {"this": 1}, "model": "gpt-99", "mirostat": 1}
    response = await free_client.post(CHAT, json=body)
    assert response.status_code == 200
    assert response.json()["model"] == "gpt-99"
    assert set(response.headers[IGNORED].split(", ")) == {"mirostat", "has", "messages[0].nobody"} | {
        "messages[0].content[0].no"
    }
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


@pytest.mark.parametrize(
    ("method", "path", "means"),
    [
        ("POST", "//v1/completions", "/v1/completions"),
        ("POST", "/v1/v1/completions", "/v1/completions"),
        ("POST", "/v1//v1//completions/", "/v1/completions"),
        ("POST", "/v1//completions", "/v1/completions"),
        ("POST", "//completions/", "/v1/completions"),
        ("GET", "/v1/models/", "/v1/models"),
        ("GET", "//models/", "/v1/models"),
        ("GET", "/v1/models/org/fake-model/", "/v1/models/org/fake-model"),
        ("GET", "/health/", "/health"),
        ("GET", "//", "/"),
    ],
)
async def test_slashes_and_prefixes_too_many_are_understood(client, method, path, means):
    body = {"json": {"prompt": "x", "max_tokens": 1}} if method == "POST" else {}
    found, meant = [await client.request(method, f"http://reprise{one}", **body) for one in (path, means)]
    assert (found.status_code, meant.status_code) == (200, 200)
    assert found.json().keys() == meant.json().keys()
    assert found.headers["x-reprise-ignored"] == "path (understood)"
    assert "x-reprise-ignored" not in meant.headers


@pytest.mark.parametrize("path", ["/v1//models/org//fake-model", "/v2/v1/models", "/ui//main.js", "/v1/v1"])
async def test_other_paths_are_as_they_are(client, path):
    response = await client.get(f"http://reprise{path}")
    assert response.status_code == 404


async def test_the_page_is_found_with_a_slash_at_its_end(client):
    response = await client.get("http://reprise/ui/")
    assert (response.status_code, response.headers["location"]) == (307, "../ui")


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


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, {"prompt": "abc"}), (CHAT, {"messages": HELLO})])
async def test_no_tokens_are_an_answer_without_text(client, path, body):
    response = await client.post(path, json={**body, "max_tokens": 0})
    (choice,) = response.json()["choices"]
    assert choice.get("text", "") + choice.get("message", {}).get("content", "") == ""
    assert response.json()["usage"]["completion_tokens"] == 0


RESPONSES = "/v1/responses"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
async def test_an_answer_ends_where_the_request_says(client, engine, path):
    fields = {"min_tokens": 3, "ignore_eos": True, "stop_token_ids": [7, 9, 7], "allowed_token_ids": [1, 2]}
    if path == RESPONSES:
        response = await client.post(path, json={"input": "hello"} | fields)
    else:
        response = await ask(client, path, **fields)
    assert response.status_code == 200
    assert IGNORED not in response.headers
    (asked,) = engine.requests
    sampling = asked.sampling
    assert (sampling.min_tokens, sampling.ignores_eos, sampling.allowed) == (3, True, (1, 2))
    assert asked.stop_tokens == (7, 9)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"min_tokens": -1}, "min_tokens", "invalid_value"),
        ({"min_tokens": 2**31}, "min_tokens", "invalid_value"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "invalid_value"),
        ({"min_tokens": "3"}, "min_tokens", "invalid_type"),
        ({"ignore_eos": 1}, "ignore_eos", "invalid_type"),
        ({"stop_token_ids": 5}, "stop_token_ids", "invalid_type"),
        ({"stop_token_ids": [5, True]}, "stop_token_ids[1]", "invalid_type"),
        ({"stop_token_ids": [5, 256]}, "stop_token_ids[1]", "invalid_token_id"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "invalid_token_id"),
        ({"allowed_token_ids": [10**30]}, "allowed_token_ids[0]", "invalid_token_id"),
        ({"allowed_token_ids": [0] * 16_385}, "allowed_token_ids", "invalid_value"),
        ({"return_progress": "yes"}, "return_progress", "invalid_type"),
        ({"timings_per_token": None, "n_cmpl": 0}, "n_cmpl", "invalid_value"),
        ({"n_probs": 21}, "n_probs", "invalid_value"),
        ({"n_probs": "many"}, "n_probs", "invalid_type"),
        ({"json_schema": 5}, "json_schema", "invalid_type"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "invalid_type"),
    ],
)
async def test_values_out_of_bounds_are_refused_by_name(strict_client, engine, path, fields, param, code):
    response = await ask(strict_client, path, **fields)
    assert response.status_code == 400
    assert_error(response.json(), param, code)
    assert not engine.requests


def chunks_of(response):
    lines = response.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_tells_how_far_it_is_only_if_asked(client, engine, path):
    engine.script = tells("abc")
    plain = chunks_of(await ask(client, path, stream=True))
    assert [chunk for chunk in plain if "prompt_progress" in chunk] == []
    assert [chunk for chunk in plain if "timings" in chunk] == plain[-1:]
    told = chunks_of(await ask(client, path, stream=True, return_progress=True, timings_per_token=True, n=2))
    assert {chunk["choices"][0]["index"] for chunk in told if "prompt_progress" in chunk} == {0, 1}
    progress = [chunk["prompt_progress"] for chunk in told if "prompt_progress" in chunk]
    assert all(one["cache"] == 2 and one["time_ms"] == 500.0 for one in progress)
    assert progress[-1]["processed"] == 5
    texts = [chunk for chunk in told if text_of(chunk)]
    assert texts
    assert all(chunk["timings"]["predicted_n"] >= 1 for chunk in texts)
    assert "".join(map(text_of, texts)).replace("abc", "", 2) == ""
    whole = (await ask(client, path, return_progress=True, timings_per_token=True)).json()
    assert "prompt_progress" not in whole
    assert not engine.requests[-1].reports_progress


def text_of(chunk):
    (choice,) = chunk["choices"]
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_the_stop_string_is_shown_if_asked_for(client, engine, path, stream):
    engine.script = tells("abc")
    for shows in (False, True):
        response = await ask(client, path, stream=stream, stop=["END", "x"], include_stop_str_in_output=shows)
        if stream:
            text = "".join(text_of(chunk) for chunk in chunks_of(response))
        else:
            (choice,) = response.json()["choices"]
            text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
        assert text == ("abcEND" if shows else "abc")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}])
async def test_reasoning_is_left_out_of_the_response_if_asked_for(client, engine, fields, stream):
    engine.tokenizer.markers = THINKING
    engine.script = says("<think>", "hm", "</think>", "abc")
    shown = await ask(client, stream=stream)
    hidden = await ask(client, stream=stream, **fields)
    assert "reasoning_content" in shown.text
    assert "reasoning_content" not in hidden.text
    assert "abc" in hidden.text.replace('"', "") or stream


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_likeliest_tokens_and_choices_are_counted_under_other_names(client, engine, path):
    assert (await ask(client, path, n_probs=3, n_cmpl=2)).status_code == 200
    assert [one.top_logprobs for one in engine.requests] == [3, 3]
    await ask(client, path, n_probs=0)
    assert engine.requests[-1].top_logprobs is None


async def test_token_counts_are_sent_as_openrouter_s_clients_ask_for_them(client):
    told = chunks_of(await ask(client, stream=True, usage={"include": True}))
    assert told[-1]["usage"]["total_tokens"] > 0
    assert IGNORED not in (await ask(client, usage={"include": True})).headers
