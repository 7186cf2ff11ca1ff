"""The official SDK against the real server and the bundled model."""

import json

import httpx
import openai
import pytest

from reprise.config.model_settings import BUNDLED_MODEL
from tests.engine.support import wait_until
from tests.server.openai_shapes import (
    valid_chat,
    valid_chat_chunks,
    valid_completion,
    valid_completion_chunks,
    valid_model,
)

HELLO = [{"role": "user", "content": "Hello!"}]
CONTEXT = "x " * 200_000
END = json.loads((BUNDLED_MODEL / "config.json").read_text())["eos_token_id"]
# Forbidding the end token makes an answer that would run on to the end of the context.
ENDLESS = {"model": "demo", "messages": HELLO, "logit_bias": {str(END): -100}, "temperature": 0}


@pytest.fixture
def client(server_url):
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
async def async_client(server_url):
    async with openai.AsyncOpenAI(base_url=f"{server_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_chat_is_answered(client):
    answer = client.chat.completions.create(model="demo", messages=HELLO, temperature=0)
    valid_chat(answer.model_dump(exclude_unset=True))
    assert answer.model == "demo"
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0


async def test_a_chat_is_answered_to_the_async_client(async_client):
    answer = await async_client.chat.completions.create(model="demo", messages=HELLO, temperature=0)
    assert answer.choices[0].message.content


@pytest.mark.parametrize("settings", [{"temperature": 0}, {"seed": 7}], ids=["greedy", "seeded"])
def test_a_stream_says_what_a_whole_answer_says(client, settings):
    request = {"model": "demo", "messages": HELLO, "max_tokens": 40, **settings}
    whole = client.chat.completions.create(**request)
    chunks = list(
        client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True})
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


async def test_the_async_stream_says_the_same(async_client, client):
    request = {"model": "demo", "messages": HELLO, "temperature": 0, "max_tokens": 40}
    whole = client.chat.completions.create(**request)
    stream = await async_client.chat.completions.create(**request, stream=True)
    assert (
        "".join([c.choices[0].delta.content or "" async for c in stream]) == whole.choices[0].message.content
    )


def test_the_stream_helper_puts_the_answer_together(client):
    with client.chat.completions.stream(model="demo", messages=HELLO, temperature=0) as stream:
        seen = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert final.choices[0].message.content == seen != ""


async def test_the_async_stream_helper_tells_the_same_events(async_client, client):
    request = {"model": "demo", "messages": HELLO, "temperature": 0}
    with client.chat.completions.stream(**request) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    async with async_client.chat.completions.stream(**request) as stream:
        # How much text comes at once may differ from time to time.
        assert {event.type async for event in stream} == set(events)
        again = await stream.get_final_completion()
    assert events[-1] == "content.done"
    assert again.choices == final.choices


def test_a_raw_response_has_the_id_that_the_log_has(client):
    raw = client.chat.completions.with_raw_response.create(model="demo", messages=HELLO, max_tokens=2)
    assert raw.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert raw.request_id.startswith("req-")
    answer = raw.parse()
    assert answer._request_id == raw.request_id
    assert answer.id == raw.request_id.replace("req-", "chatcmpl-")


def test_a_raw_stream_is_events(client):
    with client.chat.completions.with_streaming_response.create(
        model="demo", messages=HELLO, max_tokens=4, stream=True
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        valid_chat_chunks("".join(response.iter_text()))


def test_plain_completions_of_each_form_of_prompt_agree(client):
    request = {"model": "demo", "temperature": 0, "max_tokens": 8}
    alone = [client.completions.create(prompt=prompt, **request).choices[0].text for prompt in ("def", "The")]
    together = client.completions.create(prompt=["def", "The"], **request)
    valid_completion(together.model_dump(exclude_unset=True))
    assert [choice.text for choice in together.choices] == alone
    streamed = client.completions.create(prompt="def", stream=True, **request)
    assert "".join(chunk.choices[0].text for chunk in streamed) == alone[0]


def test_token_ids_are_a_prompt_too(client):
    answer = client.completions.create(model="demo", prompt=[[5, 6, 7], [8]], max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.prompt_tokens == 4
    assert answer.usage.completion_tokens <= 6


def test_every_raw_response_validates(server_url):
    with httpx.Client(base_url=f"{server_url}/v1", timeout=60) as http:
        chat = {"messages": HELLO, "max_tokens": 8, "n": 2}
        valid_chat(http.post("/chat/completions", json=chat).json())
        valid_chat_chunks(http.post("/chat/completions", json=chat | {"stream": True}).text)
        plain = {"prompt": "The", "max_tokens": 8, "n": 2}
        valid_completion(http.post("/completions", json=plain).json())
        valid_completion_chunks(http.post("/completions", json=plain | {"stream": True}).text)


def test_choices_are_seeded_apart_and_the_first_as_if_it_were_alone(client):
    request = {"model": "demo", "prompt": "The", "max_tokens": 12, "seed": 11, "temperature": 2}
    several = client.completions.create(**request, n=3)
    alone = client.completions.create(**request)
    assert several.choices[0].text == alone.choices[0].text
    assert len({choice.text for choice in several.choices}) == 3


def test_a_seeded_answer_is_the_same_alone_and_in_a_crowd(client):
    request = {"model": "demo", "prompt": "The", "max_tokens": 16, "seed": 3}
    alone = client.completions.create(**request).choices[0].text
    crowd = client.completions.create(**request | {"prompt": ["The"] + ["def f"] * 7})
    assert crowd.choices[0].text == alone


def test_a_cut_answer_says_length(client):
    answer = client.chat.completions.create(model="demo", messages=HELLO, max_tokens=1)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 1


def test_a_stop_string_is_not_part_of_the_answer(client):
    request = {
        "model": "demo",
        "prompt": "def add(first, second):",
        "seed": 1,
        "temperature": 2,
        "max_tokens": 40,
    }
    whole = client.completions.create(**request).choices[0].text
    # From the middle of the answer, so that it need not begin or end with a token.
    stop = whole[len(whole) // 2 :][:3]
    for answer in (
        client.completions.create(**request, stop=stop),
        client.completions.create(**request, stop=[stop]),
    ):
        assert answer.choices[0].text == whole[: whole.index(stop)]
        assert answer.choices[0].finish_reason == "stop"


def test_models_are_listed_and_found(client):
    names = [model.id for model in client.models.list()]
    assert "demo" in names
    for name in names:
        valid_model(client.models.retrieve(name).model_dump(exclude_unset=True))


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "gpt-4o"}, openai.NotFoundError, "model_not_found"),
        ({"temperature": 3}, openai.BadRequestError, "invalid_value"),
        ({"messages": []}, openai.BadRequestError, "invalid_value"),
        (
            {"messages": [{"role": "user", "content": CONTEXT}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
        ({"extra_body": {"temperature": "hot"}}, openai.BadRequestError, "invalid_type"),
        ({"logit_bias": {"999999999": 1}}, openai.BadRequestError, "invalid_token_id"),
        ({"tool_choice": "required"}, openai.BadRequestError, "invalid_value"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_the_sdks_own_classes(client, fields, error, code):
    request = {"model": "demo", "messages": HELLO} | fields
    with pytest.raises(error) as caught:
        client.chat.completions.create(**request)
    assert caught.value.code == code


def test_a_prompt_over_the_context_is_told_both_numbers(client):
    with pytest.raises(
        openai.BadRequestError,
        match=r"maximum context length is \d+ tokens. However, your prompt resulted in \d+",
    ):
        client.completions.create(model="demo", prompt=CONTEXT)


def test_who_leaves_in_mid_stream_frees_the_row(client, server_url):
    stream = client.chat.completions.create(**ENDLESS, stream=True)
    next(iter(stream))
    assert httpx.get(f"{server_url}/health").json()["running"] == 1
    stream.close()
    _wait_for_free_rows(server_url)


async def test_who_leaves_the_async_stream_frees_the_row_too(async_client, server_url):
    async with await async_client.chat.completions.create(**ENDLESS, stream=True) as stream:
        await anext(aiter(stream))
    _wait_for_free_rows(server_url)


def test_a_time_limit_of_the_client_frees_the_row(client, server_url):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).chat.completions.create(**ENDLESS)
    _wait_for_free_rows(server_url)


def _wait_for_free_rows(server_url):
    """Wait until nothing runs, and the answer has not come to its own end, that of the context."""

    def is_freed():
        (newest, *_) = httpx.get(f"{server_url}/v1/requests").json()["data"]
        is_running = httpx.get(f"{server_url}/health").json()["running"]
        return newest["finish_reason"] == "cancelled" and not is_running

    wait_until(is_freed)


def test_history_with_tools_is_taken(client):
    function = {"name": "weather", "arguments": json.dumps({"city": "Oslo"})}
    messages = [
        {"role": "system", "content": "You are helpful."},
        {"role": "user", "content": "What is the weather in Oslo?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"sky": "clear"}'},
    ]
    answer = client.chat.completions.create(model="demo", messages=messages, max_tokens=60)
    assert answer.choices[0].message.role == "assistant"
