import pytest

from reprise.server.requests.chat import ChatRequest
from tests.server.openai_shapes import valid_chat

HELLO = [{"role": "user", "content": "hello"}]
PATH = "/v1/chat/completions"


async def test_a_response_is_what_the_sdk_expects(client):
    response = await client.post(PATH, json={"messages": HELLO})
    assert response.status_code == 200
    answer = valid_chat(response.json())
    assert answer.object == "chat.completion"
    assert answer.model == "org/fake-model"
    assert answer.choices[0].message.content == "user: hello\n"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id == "chatcmpl-" + response.headers["x-request-id"].removeprefix("req-")
    assert "service_tier" not in response.json()


async def test_usage_counts_a_prompt_once_and_every_answer(client):
    response = await client.post(PATH, json={"messages": HELLO, "n": 3})
    answer = valid_chat(response.json())
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        12,
        36,
        48,
    )
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


async def test_the_answer_names_the_model_as_the_request_did(client):
    response = await client.post(PATH, json={"messages": HELLO, "model": "alias"})
    assert valid_chat(response.json()).model == "alias"


async def test_a_service_tier_is_returned_only_if_requested(client):
    response = await client.post(PATH, json={"messages": HELLO, "service_tier": "flex"})
    assert valid_chat(response.json()).service_tier == "default"


async def test_null_means_default_for_every_field(client, engine):
    fields = dict.fromkeys(ChatRequest.model_fields.keys() - {"messages"})
    response = await client.post(PATH, json={"messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    (request,) = engine.requests
    assert (request.sampling.temperature, request.sampling.top_p, request.stop) == (1.0, 1.0, ())


@pytest.mark.parametrize(
    "field",
    [
        {"user": "me"},
        {"metadata": {"a": "b"}},
        {"store": True},
        {"service_tier": "auto"},
        {"safety_identifier": "x"},
        {"prompt_cache_key": "x"},
        {"parallel_tool_calls": True},
        {"tools": []},
        {"tool_choice": "none"},
        {"response_format": {"type": "text"}},
        {"logprobs": False},
        {"modalities": ["text"]},
    ],
    ids=str,
)
async def test_accepted_fields_without_effect_change_nothing(client, field):
    response = await client.post(PATH, json={"messages": HELLO, **field})
    assert response.status_code == 200, response.text


async def test_text_parts_are_joined(client, engine):
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    await client.post(PATH, json={"messages": [{"role": "user", "content": parts}]})
    assert engine.tokenizer.rendered == [([{"role": "user", "content": "one two"}], None)]


async def test_a_developer_is_rendered_as_the_system(client, engine):
    await client.post(PATH, json={"messages": [{"role": "developer", "content": "be kind"}, *HELLO]})
    assert engine.tokenizer.rendered[0][0][0] == {"role": "system", "content": "be kind"}


async def test_tool_calls_reach_the_template_with_arguments_as_objects(client, engine):
    messages = [
        *HELLO,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": [1, 2]}'}},
                {"id": "c2", "type": "function", "function": {"name": "wait", "arguments": ""}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    ]
    response = await client.post(PATH, json={"messages": messages})
    assert response.status_code == 200, response.text
    _, assistant, tool = engine.tokenizer.rendered[0][0]
    assert assistant["content"] == ""
    assert [call["function"]["arguments"] for call in assistant["tool_calls"]] == [{"at": [1, 2]}, {}]
    assert tool == {"role": "tool", "tool_call_id": "c1", "content": "a cat"}


async def test_an_answer_may_be_sent_back_as_it_came(client):
    answer = (await client.post(PATH, json={"messages": HELLO})).json()
    typed = valid_chat(answer).choices[0].message
    for message in (answer["choices"][0]["message"], typed.model_dump(), typed.model_dump(exclude_none=True)):
        response = await client.post(PATH, json={"messages": [*HELLO, message, *HELLO]})
        assert response.status_code == 200, response.text


async def test_template_arguments_reach_the_template(client, engine):
    await client.post(PATH, json={"messages": HELLO, "chat_template_kwargs": {"enable_thinking": False}})
    assert engine.tokenizer.rendered[0][1] == {"enable_thinking": False}


async def test_a_template_that_refuses_is_the_callers_fault(client):
    response = await client.post(PATH, json={"messages": [{"role": "user", "content": "refuse me"}]})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "template_error"
    assert "roles must alternate" in response.json()["error"]["message"]


async def test_every_sampling_field_reaches_the_engine(client, engine):
    body = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.05,
        "seed": -1,
        "presence_penalty": 1,
        "frequency_penalty": -2,
        "repetition_penalty": 1.1,
        "logit_bias": {"7": -100, "8": 2.5},
        "stop": ["a", "b"],
        "max_completion_tokens": 5,
    }
    await client.post(PATH, json={"messages": HELLO, **body})
    (request,) = engine.requests
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.05)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (
        1,
        -2,
        1.1,
    )
    assert sampling.seed == 2**64 - 1
    assert sampling.logit_bias == ((7, -100.0), (8, 2.5))
    assert request.stop == ("a", "b")
    assert request.max_tokens == 5


@pytest.mark.parametrize("top_k", [0, -1, 256, 10**9])
async def test_a_top_k_without_effect_is_no_limit(client, engine, top_k):
    await client.post(PATH, json={"messages": HELLO, "top_k": top_k})
    assert engine.requests[0].sampling.top_k == 0


@pytest.mark.parametrize(("asked", "given"), [(None, 988), (10, 10), (10**9, 988)])
async def test_max_tokens_is_capped_by_the_room_left(client, engine, asked, given):
    await client.post(PATH, json={"messages": HELLO, "max_tokens": asked})
    assert engine.requests[0].max_tokens == given


async def test_an_answer_that_is_cut_says_length(client):
    answer = valid_chat((await client.post(PATH, json={"messages": HELLO, "max_tokens": 4})).json())
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("user", "length")
