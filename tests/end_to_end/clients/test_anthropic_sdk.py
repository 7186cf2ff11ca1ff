"""Anthropic's official SDK against the real server and the bundled model."""

import json
from typing import Literal

import anthropic
import openai
import pytest
from anthropic import beta_tool
from pydantic import BaseModel

from reprise.config.model_settings import BUNDLED_MODEL
from tests.server.anthropic_api.anthropic_shapes import valid_message

HELLO = [{"role": "user", "content": "Hello!"}]
ASK = {"model": "demo", "messages": HELLO, "max_tokens": 40}
GREEDY = {"temperature": 0}
LOOK = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
END = json.loads((BUNDLED_MODEL / "config.json").read_text())["eos_token_id"]


@pytest.fixture
def client(server_url):
    with anthropic.Anthropic(base_url=server_url, api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(server_url):
    async with anthropic.AsyncAnthropic(base_url=server_url, api_key="none", max_retries=0) as made:
        yield made


def test_a_message_is_answered(client):
    answer = client.messages.create(**ASK, extra_body=GREEDY)
    valid_message(answer.model_dump(mode="json", exclude_unset=True))
    assert answer.model == "demo"
    assert answer.stop_reason == "end_turn"
    assert answer.content[0].text
    assert answer.usage.output_tokens > 0
    assert answer._request_id.startswith("req-")


async def test_a_message_is_answered_to_the_async_client(async_client):
    answer = await async_client.messages.create(**ASK, extra_body=GREEDY)
    assert answer.content[0].text


def test_the_openai_api_says_the_same(client, server_url):
    whole = client.messages.create(**ASK, extra_body=GREEDY)
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none") as other:
        same = other.chat.completions.create(**ASK, temperature=0)
    assert same.choices[0].message.content == whole.content[0].text
    assert same.usage.completion_tokens == whole.usage.output_tokens


def test_the_stream_helper_puts_the_answer_together(client):
    whole = client.messages.create(**ASK, extra_body=GREEDY)
    with client.messages.stream(**ASK, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    told, before = final.usage, whole.usage
    assert told.input_tokens + told.cache_read_input_tokens == (
        before.input_tokens + before.cache_read_input_tokens
    )


async def test_the_async_stream_helper_says_the_same(async_client, client):
    whole = client.messages.create(**ASK, extra_body=GREEDY)
    async with async_client.messages.stream(**ASK, extra_body=GREEDY) as stream:
        assert "".join([text async for text in stream.text_stream]) == whole.content[0].text


def test_a_prompt_that_comes_again_is_read_from_the_cache(client):
    client.messages.create(**ASK, extra_body=GREEDY)
    usage = client.messages.create(**ASK, extra_body=GREEDY).usage
    assert usage.cache_read_input_tokens > 0
    assert usage.cache_creation_input_tokens == 0


def test_tokens_are_counted_as_they_are_billed(client):
    prompt = {"model": "demo", "messages": HELLO, "system": "Be brief."}
    usage = client.messages.create(**prompt, max_tokens=1).usage
    counted = client.messages.count_tokens(**prompt)
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_the_stop_sequence_that_ended_an_answer_is_told(client):
    whole = client.messages.create(**ASK, extra_body=GREEDY).content[0].text
    # From the middle of the answer, so that it need not begin or end with a token.
    stop = whole[len(whole) // 2 :][:3]
    answer = client.messages.create(**ASK, stop_sequences=["never said", stop], extra_body=GREEDY)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in answer.content) == whole[: whole.index(stop)]


def test_a_cut_answer_says_so(client):
    answer = client.messages.create(**ASK | {"max_tokens": 1})
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 1)


def test_a_tool_is_called_and_its_result_read(client):
    first = client.messages.create(**ASK, tools=[LOOK], tool_choice={"type": "any"}, extra_body=GREEDY)
    assert first.stop_reason == "tool_use"
    call = first.content[-1]
    assert (call.type, call.name) == ("tool_use", "weather")
    assert call.input["city"] in ("Oslo", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "It rains."}
    history = [*HELLO, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    # What the SDK sends back is what it got; the answer may be any.
    final = client.messages.create(**ASK | {"messages": history}, tools=[LOOK], tool_choice={"type": "none"})
    assert final.stop_reason in ("end_turn", "max_tokens")


def test_a_streamed_call_is_put_together(client):
    request = {**ASK, "tools": [LOOK], "tool_choice": {"type": "tool", "name": "weather"}}
    with client.messages.stream(**request, extra_body=GREEDY) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    assert final.content[-1].input["city"] in ("Oslo", "Rome")


def test_the_tool_runner_takes_its_loop_to_the_end(client):
    asked = []

    @beta_tool
    def weather(city: Literal["Oslo", "Rome"]) -> str:
        """The weather of a city.

        Args:
            city: Which city.
        """
        asked.append(city)
        return "It rains."

    runner = client.beta.messages.tool_runner(
        model="demo",
        max_tokens=60,
        messages=[{"role": "user", "content": "What is the weather in Oslo?"}],
        tools=[weather],
        tool_choice={"type": "any"},
        max_iterations=2,
        extra_body=GREEDY,
    )
    first, second = runner
    assert first.stop_reason == "tool_use"
    assert asked
    assert set(asked) <= {"Oslo", "Rome"}
    assert second.role == "assistant"


class Weather(BaseModel):
    city: Literal["Oslo", "Rome"]
    is_wet: bool


def test_a_parsed_answer_is_a_typed_object(client):
    answer = client.messages.parse(**ASK, output_format=Weather, extra_body=GREEDY)
    assert answer.stop_reason == "end_turn"
    assert answer.parsed_output.city in ("Oslo", "Rome")


@pytest.mark.parametrize(
    ("fields", "error", "kind"),
    [
        ({"model": "claude-opus"}, anthropic.NotFoundError, "not_found_error"),
        ({"messages": []}, anthropic.BadRequestError, "invalid_request_error"),
        ({"extra_body": {"temperature": "hot"}}, anthropic.BadRequestError, "invalid_request_error"),
        ({"extra_body": {"temperature": 3}}, anthropic.BadRequestError, "invalid_request_error"),
        (
            {"messages": [{"role": "user", "content": "x " * 200_000}]},
            anthropic.BadRequestError,
            "invalid_request_error",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_the_sdks_own_classes(client, fields, error, kind):
    with pytest.raises(error) as caught:
        client.messages.create(**ASK | fields)
    assert caught.value.type == kind
    assert caught.value.api_message
    assert caught.value.request_id.startswith("req-")


def test_an_image_alone_is_refused_in_words(client):
    image = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/cat.png"}}
    with pytest.raises(anthropic.BadRequestError, match="this model reads text"):
        client.messages.create(**ASK | {"messages": [{"role": "user", "content": [image]}]})


def test_who_is_told_of_served_names_finds_them(client):
    with pytest.raises(anthropic.NotFoundError, match=r"this server serves .*'demo'"):
        client.messages.count_tokens(model="claude-opus", messages=HELLO)
