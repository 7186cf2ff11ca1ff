"""A field that cannot change the answer is no reason to refuse; a value that is certain is understood."""

import pytest

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hello"}]},
    COMPLETIONS: {"prompt": "hello"},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9},
    "/v1/responses": {"input": "hello"},
}
RESULT = ("input[2].output", "input[2].call_id")
MENDED = [
    (CHAT, {"max_tokens": 40.0, "top_k": 5.0}, "max_tokens (understood), top_k (understood)"),
    (CHAT, {"max_tokens": -1}, "max_tokens (understood)"),
    (CHAT, {"max_tokens": 5, "max_completion_tokens": 9}, "max_completion_tokens"),
    (CHAT, {"stop": ["", "x", None]}, "stop[0] (understood), stop[2] (understood)"),
    (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs"),
    (CHAT, {"nobody": {"has": "this"}}, "nobody"),
    (CHAT, {"extra_body": {"nobody": 1, "top_k": 5}}, "nobody"),
    (CHAT, {"draft": {"type": "magic"}}, "draft"),
    (CHAT, {"prediction": "hello"}, "prediction"),
    (CHAT, {"modalities": ["text", "audio"], "audio": {"voice": "alloy"}}, "modalities, audio"),
    (CHAT, {"response_format": {"type": "text", "json_schema": None}}, "response_format.json_schema"),
    (CHAT, {"reasoning_effort": "ultra"}, "reasoning_effort"),
    (CHAT, {"user": 5, "metadata": {"a": [1]}, "store": "yes", "service_tier": "gold"}, None),
    (CHAT, {"logit_bias": {"foo": 0}}, None),
    (COMPLETIONS, {"best_of": 3}, "best_of"),
    ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
    ("/v1/messages", {"stop_sequences": "END", "temperature": 1.5, "top_k": -1}, None),
    ("/v1/messages", {"context_management": {"edits": [{"type": "clear"}]}}, "context_management"),
    (CHAT, {"tools": [{"name": "f", "input_schema": {"type": "object"}}]}, "tools[0] (understood)"),
    (CHAT, {"tool_choice": {"type": "auto"}}, "tool_choice (understood)"),
    ("/v1/messages", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0] (understood)"),
    ("/v1/messages", {"tool_choice": "auto"}, "tool_choice (understood)"),
    ("/v1/responses", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0] (understood)"),
    ("/v1/responses", {"tool_choice": {"type": "none"}}, "tool_choice (understood)"),
    (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        "input[0].content[0].type (understood)",
    ),
    (
        "/v1/responses",
        {
            "input": [
                {"role": "user", "content": "x"},
                {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": {"a": 1}},
                {"type": "custom_tool_call_output", "output": {"content": "y", "success": True}},
            ]
        },
        ", ".join(f"{at} (understood)" for at in ("input[1].input", "input[2]", *RESULT)),
    ),
    ("/v1/responses", {"include": ["x", "reasoning.encrypted_content"]}, "include[0]"),
    ("/v1/responses", {"background": True, "reasoning": {"mode": "pro"}}, "background, reasoning.mode"),
]


@pytest.mark.parametrize(("path", "fields", "named"), MENDED, ids=lambda value: repr(value)[:60])
async def test_what_cannot_change_the_answer_is_left_out_and_named(client, path, fields, named):
    response = await client.post(path, json=BODIES[path] | fields)
    assert response.status_code == 200, response.text
    given = response.headers.get("x-reprise-ignored")
    assert given is named or set(given.split(", ")) == set(named.split(", "))


@pytest.mark.parametrize(
    ("path", "fields"), [(path, fields) for path, fields, named in MENDED if named], ids=repr
)
async def test_a_strict_server_refuses_it(strict_client, engine, path, fields):
    response = await strict_client.post(path, json=BODIES[path] | fields)
    assert response.status_code == 400, response.text
    assert engine.requests == []


async def test_the_smaller_of_two_limits_holds(client, engine):
    await client.post(CHAT, json=BODIES[CHAT] | {"max_tokens": 5, "max_completion_tokens": 9})
    assert engine.requests[-1].max_tokens == 5


@pytest.mark.parametrize("num", [64, 65])
async def test_as_many_stop_strings_are_taken_as_cost_nothing(client, num):
    response = await client.post(CHAT, json=BODIES[CHAT] | {"stop": [f"stop-{i}" for i in range(num)]})
    assert response.status_code == (200 if num == 64 else 400)


@pytest.mark.parametrize(
    "fields", [{"max_tokens": "5"}, {"temperature": "hot"}, {"stream": 1}, {"max_tokens": 5.5}, {"stop": 5}]
)
async def test_a_wrong_type_that_means_nothing_is_refused(client, engine, fields):
    response = await client.post(CHAT, json=BODIES[CHAT] | fields)
    assert response.status_code == 400
    assert engine.requests == []


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (rb"cut \ud83d", "cut \ufffd"),
        (rb"\udc00 and \ud83d\ude00", "\ufffd and \U0001f600"),
        (rb"\ud83d\ud83d\ude00\\ud83d\\\ud83d", "\ufffd\U0001f600\\ud83d\\\ufffd"),
    ],
)
async def test_half_a_character_is_replaced(client, engine, written, shown):
    raw = b'{"messages": [{"role": "user", "content": "' + written + b'"}]}'
    response = await client.post(CHAT, content=raw, headers={"Content-Type": "application/json"})
    assert response.status_code == 200, response.text
    assert response.headers["x-reprise-ignored"] == "lone surrogates (understood)"
    assert engine.tokenizer.rendered[-1][0][-1]["content"] == shown


async def test_the_mark_that_some_editors_write_before_text_is_no_part_of_it(client):
    raw = b'\xef\xbb\xbf{"prompt": "hello"}'
    response = await client.post(COMPLETIONS, content=raw, headers={"Content-Type": "application/json"})
    assert response.status_code == 200, response.text
