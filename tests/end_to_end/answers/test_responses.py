"""The Responses API through the official SDK, against the real server and the bundled model."""

import json
from typing import Literal

import httpx
import openai
import pytest
from pydantic import BaseModel

from tests.server.openai_api.responses.responses_shapes import valid_events, valid_response

GREEDY = {"model": "demo", "temperature": 0, "max_output_tokens": 40}
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(BaseModel):
    """Nothing in it can run on: the bundled model is small, and does not end every text it begins."""

    name: Literal["Oslo", "Rome"]
    is_capital: bool


@pytest.fixture
def client(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(server_url):
    async with openai.AsyncOpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_response_is_what_a_chat_says(client):
    chat = client.chat.completions.create(
        model="demo",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}],
        temperature=0,
        max_tokens=40,
    )
    response = client.responses.create(input="Hello!", instructions="Be brief.", **GREEDY)
    assert response.output_text == chat.choices[0].message.content != ""
    assert response.usage.input_tokens == chat.usage.prompt_tokens
    assert response.usage.output_tokens == chat.usage.completion_tokens


async def test_the_async_client_and_the_stream_say_the_same(client, async_client):
    whole = client.responses.create(input="Hello!", **GREEDY)
    answer = await async_client.responses.create(input="Hello!", **GREEDY)
    assert answer.output_text == whole.output_text
    events = [
        event async for event in await async_client.responses.create(input="Hello!", stream=True, **GREEDY)
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == whole.output_text
    assert events[-1].type == f"response.{whole.status}"
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens


def test_the_stream_helper_puts_the_response_together(client):
    with client.responses.stream(input="Hello!", **GREEDY | {"max_output_tokens": 200}) as stream:
        seen = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == seen != ""
    assert final.status == "completed"


def test_every_raw_response_validates(server_url):
    with httpx.Client(base_url=f"{server_url}/v1", timeout=60) as http:
        asked = {"input": "Hello!", "max_output_tokens": 8}
        valid_response(http.post("/responses", json=asked).json())
        valid_events(http.post("/responses", json=asked | {"stream": True}).text)


def test_a_chain_says_what_the_whole_chat_says(client):
    one = client.responses.create(input="My name is Ada.", **GREEDY)
    two = client.responses.create(input="What is my name?", previous_response_id=one.id, **GREEDY)
    messages = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": one.output_text},
        {"role": "user", "content": "What is my name?"},
    ]
    chat = client.chat.completions.create(model="demo", messages=messages, temperature=0, max_tokens=40)
    assert two.output_text == chat.choices[0].message.content
    assert two.usage.input_tokens == chat.usage.prompt_tokens
    sent_back = [messages[0], *one.output, messages[2]]
    stateless = client.responses.create(input=sent_back, store=False, **GREEDY)
    assert stateless.output_text == two.output_text


def test_a_response_is_kept_until_it_is_deleted(client):
    made = client.responses.create(input="Hello!", **GREEDY)
    assert client.responses.retrieve(made.id).output_text == made.output_text
    assert client.responses.cancel(made.id).output_text == made.output_text
    items = list(client.responses.input_items.list(made.id))
    assert [item.content[0].text for item in items] == ["Hello!"]
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError, match="no stored response") as raised:
        client.responses.create(input="And?", previous_response_id=made.id, **GREEDY)
    assert raised.value.code == "previous_response_not_found"


def test_a_stored_response_is_streamed_again(client):
    made = client.responses.create(input="Hello!", **GREEDY)
    events = list(client.responses.retrieve(made.id, stream=True))
    assert events[-1].type == f"response.{made.status}"
    assert events[-1].response.output == made.output
    assert list(client.responses.retrieve(made.id, stream=True, starting_after=2)) == events[3:]
    with client.responses.stream(response_id=made.id) as stream:
        assert stream.get_final_response().output_text == made.output_text != ""


# The package types the users' messages of a compaction as the assistant's.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_conversation_is_compacted_and_continued(client):
    one = client.responses.create(input="My name is Ada.", **GREEDY)
    compacted = client.responses.compact(model="demo", input="Hello!", previous_response_id=one.id)
    assert compacted.object == "response.compaction"
    assert [item.type for item in compacted.output] == ["message", "message", "compaction"]
    assert [item.content[0].text for item in compacted.output[:2]] == ["My name is Ada.", "Hello!"]
    question = {"role": "user", "content": "What is my name?"}
    two = client.responses.create(input=[*compacted.output, question], **GREEDY)
    assert two.output_text
    without = client.responses.create(input=[*compacted.output[:2], question], **GREEDY)
    assert two.usage.input_tokens > without.usage.input_tokens


def test_text_follows_a_pydantic_model(client):
    asked = {"input": "Say where Oslo is.", "text_format": City, "model": "demo", "temperature": 0}
    response = client.responses.parse(**asked, max_output_tokens=200)
    assert isinstance(response.output_parsed, City)
    with client.responses.stream(**asked, max_output_tokens=200) as stream:
        final = stream.get_final_response()
    assert final.output_parsed == response.output_parsed
    assert json.loads(final.output_text) == final.output_parsed.model_dump()


def test_log_probabilities_are_those_of_a_chat(client):
    include = ["message.output_text.logprobs"]
    response = client.responses.create(input="Hello!", include=include, top_logprobs=2, **GREEDY)
    chat = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Hello!"}],
        temperature=0,
        max_tokens=40,
        logprobs=True,
        top_logprobs=2,
    )
    told = [entry.model_dump() for entry in response.output[0].content[0].logprobs]
    assert told == [entry.model_dump() for entry in chat.choices[0].logprobs.content]
    assert "".join(entry["token"] for entry in told).startswith(response.output_text)


def test_the_tokens_of_an_input_are_counted(client):
    counted = client.responses.input_tokens.count(model="demo", input="Hello!")
    made = client.responses.create(input="Hello!", **GREEDY)
    assert counted.input_tokens == made.usage.input_tokens


def test_a_tools_loop_comes_to_its_end(client):
    asked = {"model": "demo", "temperature": 0, "max_output_tokens": 120, "tools": [TOOL]}
    response = client.responses.create(input="What is the weather in Oslo?", tool_choice="required", **asked)
    calls = [item for item in response.output if item.type == "function_call"]
    assert calls
    assert json.loads(calls[0].arguments)["city"] in ("Oslo", "Rome")
    outputs = [
        {"type": "function_call_output", "call_id": call.call_id, "output": '{"sky": "clear"}'}
        for call in calls
    ]
    chained = client.responses.create(
        input=outputs, previous_response_id=response.id, tool_choice="none", **asked
    )
    assert chained.output_text
    question = {"role": "user", "content": "What is the weather in Oslo?"}
    stateless = client.responses.create(
        input=[question, *response.output, *outputs], tool_choice="none", store=False, **asked
    )
    assert stateless.output_text == chained.output_text


def test_a_call_is_streamed(client):
    choice = {"type": "function", "name": "get_weather"}
    with client.responses.stream(
        input="Weather in Rome?", tools=[TOOL], tool_choice=choice, **GREEDY | {"max_output_tokens": 200}
    ) as stream:
        events = list(stream)
        final = stream.get_final_response()
    (call,) = (item for item in final.output if item.type == "function_call")
    told = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta")
    assert told == call.arguments
    assert call.parsed_arguments["city"] in ("Oslo", "Rome")


def test_errors_are_those_of_the_sdk(client):
    with pytest.raises(openai.BadRequestError) as raised:
        client.responses.create(input="x", tool_choice="required", **GREEDY)
    assert (raised.value.param, raised.value.code) == ("tool_choice", "invalid_value")
