"""The Responses API over the fake engine, validated with the openai package's models."""

import json

import httpx
import pytest
from openai.types.responses import response_create_params

from reprise.config.settings import Settings
from reprise.engine.interface.events import Delta, Finished, TokenLogprob, Usage
from reprise.server.app import create_app
from reprise.server.generation import answer
from reprise.server.http.request_log import endpoint_of
from reprise.server.openai_api.responses.schemas import ResponsesRequest
from tests.server.fake_engine import THINKING, fail_first, fail_midway, says, wait_midway
from tests.server.openai_api.responses.responses_shapes import valid_events, valid_response
from tests.server.openai_shapes import assert_error
from tests.server.served import served

PATH, CHAT = "/v1/responses", "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "name": "weather",
    "description": "Tell it.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
ROME = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
OSLO = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
THOUGHT = "<think>\nhm, so\n</think>\n\nHi!"


async def ask(client, **fields):
    response = await client.post(PATH, json={"input": "hello", **fields})
    assert response.status_code == 200, response.text
    return valid_response(response.json())


async def stream(client, **fields):
    response = await client.post(PATH, json={"input": "hello", "stream": True, **fields})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return valid_events(response.text)


def seen(engine):
    """Return the messages that were rendered last."""
    return engine.tokenizer.rendered[-1][0]


async def assert_unknown(client, response_id, **fields):
    asked = {"input": "x", "previous_response_id": response_id}
    response = await client.post(PATH, json=asked, **fields)
    assert response.status_code == 404
    return assert_error(response.json(), "previous_response_id", "previous_response_not_found")


async def test_an_answer_is_what_the_sdk_expects(client):
    response = await ask(client, model="alias", metadata={"a": "b"}, user="me", instructions="Be brief.")
    assert (response.model, response.status, response.object) == ("alias", "completed", "response")
    assert response.output_text == "system: Be brief.\nuser: hello\n"
    assert response.error is response.incomplete_details is None
    assert (response.metadata, response.user, response.instructions) == ({"a": "b"}, "me", "Be brief.")
    assert response.completed_at >= response.created_at
    assert response.id.startswith("resp_")
    (message,) = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert message.content[0].annotations == message.content[0].logprobs == []


async def test_times_are_integers(client):
    response = (await client.post(PATH, json={"input": "hello"})).json()
    assert (type(response["created_at"]), type(response["completed_at"])) == (int, int)


async def test_usage_has_the_names_of_this_api(client):
    usage = (await ask(client)).usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (12, 12, 24)
    assert usage.input_tokens_details.cached_tokens == 3
    assert usage.output_tokens_details.reasoning_tokens == 0


async def test_a_stream_equals_a_whole_response(client):
    whole = await ask(client)
    events = await stream(client)
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert last.response.usage == whole.usage
    assert events[0].response.output == []
    assert events[0].response.id == last.response.id
    names = [event.type.removeprefix("response.") for event in events]
    kept = [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    assert kept == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]


async def test_a_response_that_was_cut_off_is_incomplete(client):
    whole = await ask(client, max_output_tokens=4)
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (whole.output_text, whole.output[0].status, whole.max_output_tokens) == ("user", "incomplete", 4)
    last = (await stream(client, max_output_tokens=4))[-1]
    assert last.type == "response.incomplete"
    assert last.response.output[0].content == whole.output[0].content


async def test_an_empty_output_is_an_empty_message(client, engine):
    engine.script = says("")
    for response in (await ask(client), (await stream(client))[-1].response):
        assert response.output_text == ""
        assert [item.type for item in response.output] == ["message"]


async def test_reasoning_is_a_separate_item(client, engine):
    engine.tokenizer.markers = THINKING
    engine.script = says(*THOUGHT)
    whole = await ask(client)
    events = await stream(client)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    assert whole.output[0].content[0].text == "hm, so"
    assert whole.output_text == "Hi!"
    assert whole.usage.output_tokens_details.reasoning_tokens > 0
    streamed = events[-1].response
    assert [item.content for item in streamed.output] == [item.content for item in whole.output]
    reasoning = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert reasoning == "hm, so"


async def test_a_response_cut_off_in_the_reasoning_has_only_a_reasoning_item(client, engine):
    engine.tokenizer.markers = THINKING
    engine.script = says("<think>hm", reason="length")
    for response in (await ask(client), (await stream(client))[-1].response):
        assert [(item.type, item.status) for item in response.output] == [("reasoning", "incomplete")]


async def test_function_calls_are_separate_items(client, engine):
    engine.script = says(*("Let me see." + ROME + OSLO))
    whole = await ask(client, tools=[WEATHER])
    events = await stream(client, tools=[WEATHER])
    for response in (whole, events[-1].response):
        assert [item.type for item in response.output] == ["message", "function_call", "function_call"]
        calls = response.output[1:]
        assert [json.loads(call.arguments) for call in calls] == [{"city": "Rome"}, {"city": "Oslo"}]
        assert {call.name for call in calls} == {"weather"}
        assert len({call.call_id for call in calls}) == 2
        assert response.status == "completed"
    assert whole.tools[0].name == "weather"
    assert whole.tool_choice == "auto"
    shown = engine.tokenizer.rendered_tools[-1]
    assert shown[0]["function"]["parameters"] == WEATHER["parameters"]


@pytest.mark.parametrize(
    "choice",
    [
        "none",
        "required",
        {"type": "function", "name": "weather"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
    ],
)
async def test_tool_choice_is_returned_in_the_response(client, engine, choice):
    engine.script = says(ROME)
    response = await client.post(PATH, json={"input": "hello", "tools": [WEATHER], "tool_choice": choice})
    valid_response(response.json())
    assert response.json()["tool_choice"] == choice
    assert (engine.tokenizer.rendered_tools[-1] is None) == (choice == "none")


@pytest.mark.parametrize(
    "given",
    [
        {"type": "text"},
        {"type": "json_object"},
        {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
    ],
    ids=lambda given: given["type"],
)
async def test_text_format_reaches_the_engine_and_is_returned(client, engine, given):
    response = await client.post(PATH, json={"input": "JSON, please", "text": {"format": given}})
    valid_response(response.json())
    assert response.json()["text"]["format"] == given
    grammar = engine.requests[-1].grammar
    assert (grammar is None) == (given["type"] == "text")


async def test_reasoning_effort_reaches_the_template(client, engine):
    response = await ask(client, reasoning={"effort": "low", "summary": "auto"})
    assert engine.tokenizer.rendered[-1][1]["reasoning_effort"] == "low"
    assert response.reasoning.effort == "low"


async def test_logprobs_have_bytes_in_items_but_not_in_events(client, engine):
    entry = TokenLogprob(104, b"h", -0.5, ((104, b"h", -0.5), (105, b"\xff", float("-inf"))))

    def script(_, job):
        job.sink(Delta("h", (entry,)))
        return Finished("stop", Usage(num_prompt_tokens=1, num_completion_tokens=1, total_s=0.1), (104,))

    engine.script = script
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (shown,) = (await ask(client, **fields)).output[0].content[0].logprobs
    assert (shown.token, shown.bytes, shown.logprob) == ("h", [104], -0.5)
    assert [(top.token, top.bytes, top.logprob) for top in shown.top_logprobs] == [
        ("h", [104], -0.5),
        ("\ufffd", [255], -9999.0),
    ]
    assert engine.requests[-1].top_logprobs == 2
    events = await stream(client, **fields)
    logprobs = [event.logprobs for event in events if event.type == "response.output_text.delta"]
    assert [entry.token for entries in logprobs for entry in entries] == ["h"]


async def test_extra_chat_fields_are_accepted(client, engine):
    extras = {"seed": 7, "top_k": 5, "min_p": 0.1, "stop": ["x"], "draft": {"type": "none"}, "temperature": 0}
    await ask(client, **extras, chat_template_kwargs={"a": 1})
    request = engine.requests[-1]
    assert (request.sampling.seed, request.sampling.top_k, request.stop) == (7, 5, ("x",))
    assert (request.draft.type, request.sampling.temperature) == ("none", 0)
    assert engine.tokenizer.rendered[-1][1] == {"a": 1}


@pytest.mark.parametrize(
    "harmless",
    [
        {"user": "u"},
        {"safety_identifier": "s"},
        {"prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h"},
        {"prompt_cache_options": {"mode": "explicit", "ttl": "30m"}},
        {"service_tier": "ultrafast"},
        {"max_tool_calls": 3},
        {"truncation": "disabled"},
        {"truncation": "auto"},
        {"background": False},
        {"conversation": None, "prompt": None, "tools": None, "text": None, "include": None},
        {"parallel_tool_calls": False},
        {"store": False},
        {"text": {"format": None, "verbosity": "low"}},
        {"reasoning": {"summary": "detailed"}},
        {"stream": True, "stream_options": {"include_obfuscation": True}},
    ],
    ids=str,
)
async def test_fields_without_effect_are_accepted(client, harmless):
    response = await client.post(PATH, json={"input": "hello", **harmless})
    assert response.status_code == 200, response.text


def test_every_parameter_of_the_sdk_is_known():
    known = response_create_params.ResponseCreateParamsStreaming.__annotations__
    assert known.keys() <= ResponsesRequest.model_fields.keys()


def test_response_ids_are_left_out_of_metric_labels():
    known = f"{PATH}/{{id}}"
    for path, label in (
        (PATH, PATH),
        (f"{PATH}/resp_1", known),
        (f"{PATH}/resp_1/input_items", f"{known}/input_items"),
        (f"{PATH}/resp_1/cancel", f"{known}/cancel"),
        (f"{PATH}/input_tokens", f"{PATH}/input_tokens"),
        ("/v1/models/org/name", "/v1/models/{name}"),
        ("/v1/response", "other"),
    ):
        assert endpoint_of(path) == label


async def test_a_failed_stream_reports_the_error_and_stores_nothing(client, engine):
    engine.script = fail_midway
    events = await stream(client)
    error, failed = events[-2:]
    assert (error.type, error.code) == ("error", "request_failed")
    assert "the roof is on fire" in error.message
    assert failed.type == "response.failed"
    assert (failed.response.error.code, failed.response.output_text) == ("server_error", "well ")
    assert failed.response.output[0].status == "incomplete"
    await assert_unknown(client, failed.response.id)


async def test_a_failure_before_the_first_token_has_its_status(client, engine):
    engine.script = fail_first
    for is_streaming in (True, False):
        response = await client.post(PATH, json={"input": "hello", "stream": is_streaming})
        assert response.status_code == 500
        assert_error(response.json(), None, "request_failed")


def test_the_response_of_a_client_that_left_is_not_stored(url, engine, app):
    engine.script = wait_midway
    with httpx.Client(base_url=url) as http:
        with http.stream("POST", PATH, json={"input": "hello", "stream": True}) as response:
            lines = response.iter_lines()
            assert next(lines) == "event: response.created"
            created = json.loads(next(lines).removeprefix("data: "))
        engine.wait_until_cancelled(1)
        assert http.get(f"{PATH}/{created['response']['id']}").status_code == 404
    assert len(app.state.responses) == 0


def test_events_are_sent_during_silence(engine, monkeypatch):
    monkeypatch.setattr(answer, "KEEP_ALIVE_S", 0.05)
    engine.script = wait_midway
    body = ""
    asked = {"input": "hello", "stream": True}
    with (
        served(create_app(engine, Settings())) as url,
        httpx.stream("POST", f"{url}{PATH}", json=asked) as response,
    ):
        for piece in response.iter_text():
            body += piece
            if body.count("event: response.in_progress") > 2:
                engine.release()
    valid_events(body)
