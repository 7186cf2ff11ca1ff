"""Anthropic's Messages API over the fake engine, validated with the anthropic package's models."""

import json

import httpx
import pytest
from anthropic.types import (
    ThreadUnsupportedRequestErrorDetails,
    message_count_tokens_params,
    message_create_params,
)
from anthropic.types.beta.message_create_params import MessageCreateParamsBase as BetaParams

from reprise.config.settings import Settings
from reprise.engine.interface.events import Delta, Finished, Usage
from reprise.server.anthropic_api.schemas import CountTokensRequest, MessagesRequest, to_chat_request
from reprise.server.app import create_app
from reprise.server.requests.fields import Notes
from reprise.server.requests.messages import decode_reasoning
from tests.server.anthropic_api.anthropic_shapes import assert_anthropic_error, valid_events, valid_message
from tests.server.fake_engine import THINKING, FakeEngine, fail_first, fail_midway, wait_midway
from tests.server.openai_shapes import valid

PATH = "/v1/messages"
COUNT = f"{PATH}/count_tokens"
HELLO = [{"role": "user", "content": "hello"}]
LOOK = {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {}}}
CALLED = {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": [1, 2]}}
HEADERS_OF_THE_SDK = {"betas", "user_profile_id", "workspace_id"}
"""Parameters that the SDK's methods send as headers."""


def ask(**fields):
    return {"max_tokens": 50, "messages": HELLO, **fields}


def saying(*pieces, reason="stop", stop=None, num_tokens=5):
    """Return a script that generates these texts."""

    def say(_, job):
        for piece in pieces:
            job.sink(Delta(piece))
        usage = Usage(
            num_prompt_tokens=len(job.request.prompt), num_completion_tokens=num_tokens, total_s=0.1
        )
        return Finished(reason, usage, tuple("".join(pieces).encode()), stop)

    return say


async def test_an_answer_is_what_the_sdk_expects(client):
    response = await client.post(PATH, json=ask(model="alias"))
    assert response.status_code == 200
    message = valid_message(response.json())
    assert (message.model, message.role, message.stop_reason) == ("alias", "assistant", "end_turn")
    assert [block.text for block in message.content] == ["user: hello\n"]
    assert response.headers["request-id"] == response.headers["x-request-id"]
    assert message.id == "msg_" + response.headers["request-id"].removeprefix("req-")


async def test_usage_counts_cached_tokens_separately(client):
    usage = valid_message((await client.post(PATH, json=ask())).json()).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (9, 3, 0)
    assert usage.output_tokens == 12


async def test_a_stream_equals_a_whole_response(client):
    whole = valid_message((await client.post(PATH, json=ask())).json())
    start, *events, delta, _ = valid_events((await client.post(PATH, json=ask(stream=True))).text)
    begun = start.message.usage
    assert begun.input_tokens + begun.cache_read_input_tokens == 12
    assert start.message.content == []
    assert start.message.stop_reason is None
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == whole.content[0].text
    assert delta.delta.stop_reason == whole.stop_reason
    phrase = delta.usage
    assert (phrase.input_tokens, phrase.cache_read_input_tokens, phrase.output_tokens) == (9, 3, 12)


@pytest.mark.parametrize(
    ("script", "reason", "sequence"),
    [
        (saying("yes"), "end_turn", None),
        (saying("yes", stop="END"), "stop_sequence", "END"),
        (saying("yes", reason="length", num_tokens=50), "max_tokens", None),
        (saying("yes", reason="length", num_tokens=49), "model_context_window_exceeded", None),
        (saying('<tool_call>{"name": "look", "arguments": {}}</tool_call>'), "tool_use", None),
        (saying('<tool_call>{"name": "look", "arguments": {"a": "', stop="END"), "stop_sequence", "END"),
        (saying(), "end_turn", None),
    ],
    ids=["end", "stop", "max_tokens", "context", "tool", "stop in a tool", "nothing"],
)
async def test_stop_reason_and_stop_sequence(client, engine, script, reason, sequence):
    engine.script = script
    body = ask(tools=[LOOK], stop_sequences=["END"])
    whole = valid_message((await client.post(PATH, json=body)).json())
    *_, delta, _ = valid_events((await client.post(PATH, json=body | {"stream": True})).text)
    assert (whole.stop_reason, whole.stop_sequence) == (reason, sequence)
    assert (delta.delta.stop_reason, delta.delta.stop_sequence) == (reason, sequence)


async def test_thinking_text_and_tool_use_are_blocks_in_order(client, engine):
    engine.tokenizer.markers = THINKING
    engine.script = saying(
        "<think>hm", " hm</think>", "\n\nI ", "look.",
        '<tool_call>{"name": "look", "arguments": {"at": [1, "ż"]}}</tool_call>',
        '<tool_call>{"name": "look", "arguments": {}}</tool_call>',
    )  # fmt: skip
    body = ask(tools=[LOOK], thinking={"type": "adaptive"})
    message = valid_message((await client.post(PATH, json=body)).json())
    thinking, text, first, second = message.content
    assert (thinking.thinking, text.text) == ("hm hm", "I look.")
    assert (first.name, first.input, second.input) == ("look", {"at": [1, "ż"]}, {})
    assert first.id != second.id
    events = valid_events((await client.post(PATH, json=body | {"stream": True})).text)
    starts = [event.content_block.type for event in events if event.type == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use", "tool_use"]
    streamed = {"thinking": "", "signature": "", "text": "", "partial_json": ""}
    for event in events:
        if event.type == "content_block_delta":
            for field in streamed:
                streamed[field] += getattr(event.delta, field, "")
    assert (streamed["thinking"], streamed["text"]) == ("hm hm", "I look.")
    assert streamed["signature"] == thinking.signature != ""
    assert streamed["partial_json"].endswith("{}")
    assert json.loads(streamed["partial_json"].removesuffix("{}")) == first.input


async def test_omitted_thinking_is_in_the_signature_alone(client, engine):
    """The agent sends the block back as it came, and the model reads its own thought."""
    engine.tokenizer.markers = THINKING
    engine.script = saying("<think>sec", "ret ż\n</think>", "yes")
    body = ask(thinking={"type": "adaptive", "display": "omitted"})
    whole = await client.post(PATH, json=body)
    message = valid_message(whole.json())
    assert [block.type for block in message.content] == ["thinking", "text"]
    stream = await client.post(PATH, json=body | {"stream": True})
    events = valid_events(stream.text)
    assert "secret" not in whole.text + stream.text
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    assert [delta.type for delta in deltas] == ["signature_delta", "text_delta"]
    assert deltas[0].signature == message.content[0].signature
    content = [block.model_dump() for block in message.content]
    history = [*HELLO, {"role": "assistant", "content": content}, *HELLO]
    response = await client.post(PATH, json=ask(messages=history))
    assert response.status_code == 200, response.text
    said = engine.tokenizer.rendered[-1][0][1]
    assert (said["reasoning_content"], said["content"]) == ("secret ż", "yes")
    assert "x-reprise-ignored" not in response.headers


async def test_every_omitted_thought_of_an_answer_has_its_own_signature(client, engine):
    engine.tokenizer.markers = THINKING
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    engine.script = saying("<think>one</think>", call, "<think>two</think>", "yes")
    body = ask(tools=[LOOK], thinking={"type": "adaptive", "display": "omitted"}, stream=True)
    events = valid_events((await client.post(PATH, json=body)).text)
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    signatures = [delta.signature for delta in deltas if delta.type == "signature_delta"]
    assert [decode_reasoning(one).strip() for one in signatures] == ["one", "two"]


@pytest.mark.parametrize(
    "signature", ["unsigned", "EqQBCkYIBRgCKkDx", "reprise:?", "reprise:/w==", "reprise:aG0", 5, ["x"]]
)
@pytest.mark.parametrize("thinking", ["", "hm"])
async def test_a_signature_that_carries_no_thought_is_named_if_there_is_no_text(
    client, strict_client, engine, signature, thinking
):
    block = {"type": "thinking", "thinking": thinking, "signature": signature}
    content = [block, {"type": "text", "text": "yes"}]
    for one in (client, strict_client):
        response = await one.post(
            PATH, json=ask(messages=[*HELLO, {"role": "assistant", "content": content}, *HELLO])
        )
        assert response.status_code == 200, response.text
        named = response.headers.get("x-reprise-ignored")
        assert named == (None if thinking else "messages[1].content[0].signature")
        assert engine.tokenizer.rendered[-1][0][1].get("reasoning_content", "") == thinking


async def test_a_response_can_be_sent_back_unchanged(client, engine):
    engine.tokenizer.markers = THINKING
    engine.script = saying("<think>hm</think>yes", '<tool_call>{"name": "look", "arguments": {}}</tool_call>')
    answer = (await client.post(PATH, json=ask(tools=[LOOK]))).json()
    typed = valid_message(answer)
    result = {"type": "tool_result", "tool_use_id": typed.content[2].id, "content": "a cat"}
    for content in (answer["content"], typed.model_dump()["content"]):
        history = [*HELLO, {"role": "assistant", "content": content}, {"role": "user", "content": [result]}]
        response = await client.post(PATH, json=ask(messages=history))
        assert response.status_code == 200, response.text
    *_, rendered, _ = engine.tokenizer.rendered[-1][0]
    assert (rendered["content"], rendered["reasoning_content"]) == ("yes", "hm")


async def test_the_conversation_reaches_the_template_as_a_chat(client, engine):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "I look."}, CALLED, CALLED | {"id": "t2"}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a cat"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no light", "is_error": True},
                {"type": "text", "text": "And?"},
            ],
        },
        {"role": "system", "content": "hurry"},
    ]
    system = [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be brief."}]
    response = await client.post(PATH, json=ask(messages=messages, system=system))
    assert response.status_code == 200, response.text
    calls = [
        {"id": name, "type": "function", "function": {"name": "look", "arguments": {"at": [1, 2]}}}
        for name in ("t1", "t2")
    ]
    assert engine.tokenizer.rendered[0][0] == [
        {"role": "system", "content": "Be kind.\nBe brief."},
        {"role": "user", "content": "one\ntwo\nthree"},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "t1", "content": "a cat"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no light"},
        {"role": "user", "content": "And?"},
        {"role": "system", "content": "hurry"},
    ]


async def test_tools_reach_the_template_with_their_examples(client, engine):
    tool = LOOK | {"input_examples": [{"at": 1}], "cache_control": {"type": "ephemeral"}, "type": "custom"}
    await client.post(PATH, json=ask(tools=[tool]))
    (shown,) = engine.tokenizer.rendered_tools[0]
    assert shown["function"] == {
        "name": "look",
        "description": 'Looks.\n\nExamples of input:\n{"at":1}',
        "parameters": LOOK["input_schema"],
    }


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any"}, "required", None),
        ({"type": "tool", "name": "look"}, "required", ("look",)),
        ({"type": "none"}, "none", None),
    ],
    ids=lambda value: value.get("type") if isinstance(value, dict) else "",
)
def test_tool_choice_is_converted(choice, mode, names):
    for is_single in (False, True) if mode != "none" else (None,):
        more = {} if is_single is None else {"disable_parallel_tool_use": is_single}
        chat = to_chat_request(MessagesRequest(**ask(tools=[LOOK], tool_choice=choice | more)), Notes())
        assert (chat.tool_choice.mode, chat.tool_choice.names) == (mode, names)
        assert chat.parallel_tool_calls is not bool(is_single)


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({}, {"enable_thinking": False}),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
            {"enable_thinking": True},
        ),
        ({"thinking": {"type": "adaptive"}}, {"enable_thinking": True}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"output_config": {"effort": "max"}}, {"enable_thinking": False, "reasoning_effort": "max"}),
    ],
    ids=str,
)
async def test_thinking_and_effort_reach_the_template(client, engine, fields, arguments):
    response = await client.post(PATH, json=ask(**fields))
    assert response.status_code == 200, response.text
    assert (engine.tokenizer.rendered[0][1] or {}) == arguments


async def test_every_sampling_field_reaches_the_engine(client, engine):
    stops = [f"stop {i}" for i in range(64)]
    await client.post(
        PATH,
        json=ask(
            temperature=0.5, top_p=0.9, top_k=40, stop_sequences=stops, max_tokens=7, draft={"max_tokens": 3}
        ),
    )
    (request,) = engine.requests
    assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.9, 40)
    assert (request.stop, request.max_tokens, request.draft.max_tokens) == (tuple(stops), 7, 3)


def test_every_field_of_the_sdk_is_known():
    create = (
        message_create_params.MessageCreateParamsBase.__annotations__.keys()
        | BetaParams.__annotations__.keys()
    )
    count = message_count_tokens_params.MessageCountTokensParams.__annotations__.keys()
    assert create - HEADERS_OF_THE_SDK <= MessagesRequest.model_fields.keys()
    assert count - HEADERS_OF_THE_SDK <= CountTokensRequest.model_fields.keys()


async def test_null_means_default_for_every_field(client, engine):
    fields = dict.fromkeys(MessagesRequest.model_fields.keys() - {"messages", "max_tokens"})
    response = await client.post(PATH, json=ask(**fields))
    assert response.status_code == 200, response.text
    assert engine.requests[0].sampling.temperature == 1.0


@pytest.mark.parametrize(
    "field",
    [
        {"metadata": {"user_id": "me"}},
        {"service_tier": "auto"},
        {"speed": "fast"},
        {"inference_geo": "eu"},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {"tools": []},
        {"tool_choice": {"type": "auto"}},
        {"mcp_servers": []},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
    ],
    ids=str,
)
async def test_fields_without_effect_are_accepted(client, field):
    response = await client.post(PATH, json=ask(**field))
    assert response.status_code == 200, response.text
    assert "hello" in valid_message(response.json()).content[0].text


async def test_diagnostics_are_unavailable(client):
    response = await client.post(PATH, json=ask(diagnostics={"previous_message_id": "msg_1"}))
    assert valid_message(response.json()).diagnostics.cache_miss_reason.type == "unavailable"


async def test_count_tokens_equals_the_input_tokens_of_a_message(client, engine):
    body = {"messages": HELLO, "system": "be kind", "tools": [LOOK]}
    counted = (await client.post(COUNT, json=body)).json()
    assert not engine.requests
    usage = valid_message((await client.post(PATH, json=ask(**body))).json()).usage
    assert counted == {"input_tokens": usage.input_tokens + usage.cache_read_input_tokens}


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", PATH, 405, "invalid_request_error"),
    ],
)
async def test_unknown_paths_get_anthropics_error_object(client, method, path, status, kind):
    response = await client.request(method, path)
    assert response.status_code == status
    assert_anthropic_error(response.json(), kind)


async def test_thread_is_refused_with_the_error_that_the_sdk_expects(client):
    response = await client.post(PATH, json=ask(thread={"type": "create"}))
    assert response.status_code == 400
    error = response.json()["error"]
    details = valid(ThreadUnsupportedRequestErrorDetails, error.pop("details"))
    assert details.error_code == "thread_unsupported_request"
    assert error["message"].startswith("'thread' is not supported: conversations are not stored here")


async def test_other_paths_get_openais_error_object(client):
    response = await client.get("/v1/messagesx")
    assert set(response.json()) == {"error"}
    assert "request-id" not in response.headers


async def test_body_errors_get_anthropics_error_object(client):
    huge = await client.post(PATH, json=ask(system="x" * 200_000))
    assert huge.status_code == 413
    # Anthropic documents this type, and its package has none for it.
    error = huge.json()["error"]
    assert (error.keys(), error["type"]) == ({"type", "message"}, "request_too_large")
    assert "Send a smaller body" in error["message"]
    plain = await client.post(PATH, content=json.dumps(ask()), headers={"Content-Type": "text/plain"})
    assert plain.status_code == 415
    assert_anthropic_error(plain.json())
    broken = await client.post(PATH, content="{", headers={"Content-Type": "application/json"})
    assert broken.status_code == 400
    assert "not valid JSON" in assert_anthropic_error(broken.json())


@pytest.mark.parametrize(
    ("refusal", "status", "kind"),
    [("draining", 503, "overloaded_error"), ("engine_dead", 503, "overloaded_error")],
)
async def test_an_unavailable_engine_is_an_overloaded_error(client, engine, refusal, status, kind):
    engine.refusal = refusal
    response = await client.post(PATH, json=ask())
    assert response.status_code == status
    assert_anthropic_error(response.json(), kind)


async def test_a_full_queue_is_a_rate_limit(url, engine):
    engine.script, engine.refusal = wait_midway, "queue_full"
    async with httpx.AsyncClient(base_url=url) as http, http.stream("POST", PATH, json=ask(stream=True)):
        response = await http.post(PATH, json=ask())
        assert response.status_code == 429
        assert "retry-after" in response.headers
        assert_anthropic_error(response.json(), "rate_limit_error")
        engine.release()


async def test_a_request_that_fails_is_an_api_error(client, engine):
    engine.script = fail_first
    response = await client.post(PATH, json=ask())
    assert response.status_code == 500
    assert "the roof is on fire" in assert_anthropic_error(response.json(), "api_error")


async def test_a_failure_in_mid_stream_is_an_error_event(client, engine):
    engine.script = fail_midway
    response = await client.post(PATH, json=ask(stream=True))
    assert response.status_code == 200
    *_, last = response.text.strip().split("\n\n")
    name, data = last.split("\n")
    assert name == "event: error"
    assert "the roof is on fire" in assert_anthropic_error(
        json.loads(data.removeprefix("data: ")), "api_error"
    )


async def test_a_key_is_one_tenant_however_it_is_sent():
    engine = FakeEngine()
    transport = httpx.ASGITransport(app := create_app(engine, Settings(ngram_scope="api-key")))
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport) as http:
        for headers in ({"x-api-key": "one"}, {"Authorization": "Bearer one"}, {"x-api-key": "two"}, {}):
            await http.post(f"http://reprise{PATH}", json=ask(), headers=headers)
    first, again, other, nobody = (request.tenant for request in engine.requests)
    assert first == again != other
    assert nobody == ""


async def test_thinking_is_off_unless_it_is_asked_for(client, engine):
    await client.post(PATH, json=ask())
    assert engine.tokenizer.rendered[-1][1] == {"enable_thinking": False}


async def test_the_thinking_budget_reaches_the_engine(client, engine):
    engine.tokenizer.markers = THINKING
    thinking = {"type": "enabled", "budget_tokens": 1024}
    await client.post(PATH, json=ask(thinking=thinking, max_tokens=2000))
    budget = engine.requests[-1].grammar.thinking
    assert (budget.num_tokens, budget.end) == (1024, THINKING.think_end.tokens)
    await client.post(PATH, json=ask(thinking={"type": "adaptive"}))
    assert engine.requests[-1].grammar is None


BILLING = "x-anthropic-billing-header: cc_version=2.1.5.abc; cc_entrypoint=cli; cch=1f2e3;"


@pytest.mark.parametrize(
    "system",
    [
        [{"type": "text", "text": BILLING}, {"type": "text", "text": "You help."}],
        [{"type": "text", "text": f"{BILLING}\nYou help."}],
        f"{BILLING}\n\nYou help.",
    ],
)
async def test_the_line_that_changes_with_every_request_is_taken_out(client, engine, system):
    response = await client.post(PATH, json=ask(system=system))
    assert engine.tokenizer.rendered[-1][0][0] == {"role": "system", "content": "You help."}
    assert response.headers["x-reprise-ignored"] == "system.x-anthropic-billing-header"
    plain, billed = [
        (await client.post(COUNT, json={"messages": HELLO, "system": said})).json()
        for said in ("You help.", system)
    ]
    assert plain == billed
