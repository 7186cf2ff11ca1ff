"""Items are converted to chat messages, and stored responses can be continued, listed and deleted."""

import json

import pytest
from openai.types.responses import InputTokenCountResponse

from tests.server.fake_engine import THINKING, says
from tests.server.openai_api.responses.responses_shapes import valid_items, valid_response
from tests.server.openai_api.responses.test_responses import (
    CHAT,
    OSLO,
    PATH,
    ROME,
    WEATHER,
    ask,
    assert_unknown,
    seen,
    stream,
)
from tests.server.openai_shapes import assert_error


async def test_items_become_the_messages_of_a_chat(client, engine):
    await ask(
        client,
        instructions="Be brief.",
        tools=[WEATHER],
        input=[
            {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "message", "role": "user", "content": "b"},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "c"}],
            },
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "d", "annotations": [], "logprobs": []},
                    {"type": "refusal", "refusal": "e"},
                ],
            },
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
            {"type": "function_call", "call_id": "c2", "name": "weather", "arguments": "{}", "id": "fc_1"},
            {"type": "function_call_output", "call_id": "c2", "output": "f"},
            {
                "type": "function_call_output",
                "call_id": "c1",
                "output": [{"type": "input_text", "text": "g"}, {"type": "input_text", "text": "h"}],
            },
            {"role": "assistant", "content": "i"},
            {"role": "assistant", "content": "j"},
            {"type": "reasoning", "summary": []},
            {"role": "user", "content": []},
        ],
    )
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
        {"id": "c2", "type": "function", "function": {"name": "weather", "arguments": {}}},
    ]
    assert seen(engine) == [
        {"role": "system", "content": "Be brief.\n\na"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "de", "reasoning_content": "c", "tool_calls": calls},
        {"role": "tool", "content": "f", "tool_call_id": "c2"},
        {"role": "tool", "content": "gh", "tool_call_id": "c1"},
        {"role": "assistant", "content": "i"},
        {"role": "assistant", "content": "j"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": ""},
    ]


@pytest.mark.parametrize("is_streaming", [False, True], ids=["whole", "streamed"])
async def test_a_chain_of_responses_equals_the_whole_chat(client, engine, is_streaming):
    """Compare both for reasoning, text, two function calls and their outputs, and another question."""
    engine.tokenizer.markers = THINKING
    first = "<think>hm</think>Let me see." + ROME + OSLO

    async def respond(**fields):
        if is_streaming:
            return (await stream(client, **fields, tools=[WEATHER]))[-1].response
        return await ask(client, **fields, tools=[WEATHER])

    engine.script = says(*first)
    one = await respond(input="Weather?", instructions="Dropped.")
    calls = [item for item in one.output if item.type == "function_call"]
    engine.script = says("<think>so</think>Fine.")
    outputs = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"sun {i}"}
        for i, call in enumerate(calls)
    ]
    two = await respond(input=outputs, previous_response_id=one.id)
    assert two.previous_response_id == one.id
    await respond(input="Thanks", previous_response_id=two.id, instructions="New.")
    chained, prompt = seen(engine), engine.requests[-1].prompt

    chat_tools = [{"type": "function", "function": {k: v for k, v in WEATHER.items() if k != "type"}}]
    messages = [{"role": "system", "content": "New."}, {"role": "user", "content": "Weather?"}]

    async def chat():
        response = await client.post(CHAT, json={"messages": messages, "tools": chat_tools})
        messages.append(response.json()["choices"][0]["message"])

    engine.script = says(*first)
    await chat()
    for i, call in enumerate(messages[-1]["tool_calls"]):
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"sun {i}"})
    engine.script = says("<think>so</think>Fine.")
    await chat()
    messages.append({"role": "user", "content": "Thanks"})
    await chat()

    def without_ids(rendered):
        names = {call["id"]: str(i) for m in rendered for i, call in enumerate(m.get("tool_calls", ()))}
        text = json.dumps(rendered)
        for call_id, name in names.items():
            text = text.replace(call_id, name)
        return json.loads(text)

    assert without_ids(chained) == without_ids(seen(engine))
    assert prompt == engine.requests[-1].prompt


async def test_sending_the_output_back_equals_a_chain_of_responses(client, engine):
    engine.tokenizer.markers = THINKING
    engine.script = says("<think>hm</think>Let me see." + ROME)
    include = ["reasoning.encrypted_content"]
    raw = (await client.post(PATH, json={"input": "Q", "tools": [WEATHER], "include": include})).json()
    result = {"type": "function_call_output", "call_id": raw["output"][-1]["call_id"], "output": "sun"}
    await ask(client, input=[result], previous_response_id=raw["id"])
    chained = seen(engine)
    question = {"role": "user", "content": "Q"}
    await ask(client, input=[question, *raw["output"], result], store=False)
    assert seen(engine) == chained
    # Some clients keep only the encrypted_content of reasoning.
    del raw["output"][0]["content"]
    await ask(client, input=[question, *raw["output"], result], store=False)
    assert seen(engine) == chained


async def test_item_references_resolve_to_stored_items(client, engine):
    one = await ask(client, input="Q")
    item = one.output[0]
    await ask(
        client, input=[{"role": "user", "content": "Q"}, {"id": item.id}, {"role": "user", "content": "R"}]
    )
    assert [message["content"] for message in seen(engine)] == ["Q", one.output_text, "R"]
    await ask(client, input=[{"type": "item_reference", "id": item.id}])
    assert seen(engine) == [{"role": "assistant", "content": one.output_text}]


async def test_a_response_can_be_continued_without_input(client, engine):
    one = await ask(client, input="Q", max_output_tokens=4)
    assert (await client.post(PATH, json={"previous_response_id": one.id})).status_code == 200
    assert [message["content"] for message in seen(engine)] == ["Q", "user"]


@pytest.mark.parametrize("is_object", [False, True], ids=["items", "object with items"])
async def test_items_of_a_conversation_come_before_the_input_and_are_kept(client, engine, is_object):
    items = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    one = await ask(client, input="R", conversation={"id": "c", "items": items} if is_object else items)
    assert [message["content"] for message in seen(engine)] == ["Q", "A", "R"]
    await ask(client, input="S", previous_response_id=one.id)
    assert [message["content"] for message in seen(engine)] == ["Q", "A", "R", one.output_text, "S"]
    told = await client.post(PATH, json={"conversation": items[:1]})
    assert told.status_code == 200
    assert [message["content"] for message in seen(engine)] == ["Q"]


@pytest.mark.parametrize("empty", [None, "", {}, [], {"items": []}, {"items": None}], ids=str)
async def test_an_empty_conversation_is_none(client, engine, empty):
    await ask(client, input="Q", conversation=empty)
    assert [message["content"] for message in seen(engine)] == ["Q"]


@pytest.mark.parametrize("given", ["conv_1", {"id": "conv_1"}, {"items": 5}, 5], ids=str)
async def test_a_conversation_that_is_stored_elsewhere_is_refused(client, given):
    told = await client.post(PATH, json={"input": "Q", "conversation": given})
    assert told.status_code == 400
    assert "previous_response_id" in assert_error(told.json(), "conversation", "unsupported_parameter")


async def test_one_response_can_be_continued_twice(client, engine):
    one = await ask(client, input="Q")
    for text in ("left", "right"):
        await ask(client, input=text, previous_response_id=one.id)
        assert [message["content"] for message in seen(engine)] == ["Q", one.output_text, text]


async def test_the_tokens_of_an_input_are_counted(client):
    one = await ask(client, input="Q", instructions="Be brief.")
    asked = {"input": "R", "previous_response_id": one.id}
    counted = (await client.post(f"{PATH}/input_tokens", json=asked)).json()
    assert counted.keys() == InputTokenCountResponse.model_fields.keys()
    assert counted["object"] == "response.input_tokens"
    assert counted["input_tokens"] == (await ask(client, **asked)).usage.input_tokens
    response = await client.post(f"{PATH}/input_tokens", json={"input": "refuse me"})
    assert_error(response.json(), "input", "template_error")


async def test_a_stored_response_is_returned_unchanged(client):
    for response in (await ask(client), (await stream(client))[-1].response):
        kept = await client.get(f"{PATH}/{response.id}")
        assert valid_response(kept.json()) == response


async def test_cancelling_a_stored_response_returns_it_as_it_is(client):
    stored = await ask(client)
    for _ in range(2):
        kept = await client.post(f"{PATH}/{stored.id}/cancel")
        assert valid_response(kept.json()) == stored
    unknown = await client.post(f"{PATH}/resp_0/cancel")
    assert unknown.status_code == 404
    assert_error(unknown.json(), "response_id", None)


async def test_a_response_asked_for_in_the_background_comes_at_once(client):
    told = await client.post(PATH, json={"input": "hello", "background": True})
    response = valid_response(told.json())
    assert (response.status, response.background) == ("completed", False)
    assert told.headers["x-reprise-ignored"] == "background"


async def test_input_items_are_listed_in_pages(client):
    messages = [{"role": "user", "content": str(i)} for i in range(5)]
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c", "output": "o"}
    answer = {"role": "assistant", "content": "a"}
    one = await ask(client, input="first")
    two = await ask(client, input=[*messages, answer, call, output], previous_response_id=one.id)
    url = f"{PATH}/{two.id}/input_items"
    whole = valid_items((await client.get(url, params={"order": "asc"})).json())
    kinds = ["message"] * 6 + ["function_call", "function_call_output"]
    assert [item.type for item in whole.data] == kinds
    assert [item.content[0].text for item in whole.data[:6]] == [*"01234", "a"]
    assert not whole.has_more
    page = valid_items((await client.get(url, params={"limit": 2, "after": whole.data[-1].id})).json())
    assert page.data == [whole.data[-2], whole.data[-3]]
    assert (page.first_id, page.last_id) == (whole.data[-2].id, whole.data[-3].id)
    assert page.has_more
    beyond = (await client.get(url, params={"after": whole.data[0].id})).json()
    assert (beyond["data"], beyond["has_more"], beyond["first_id"]) == ([], False, "")


async def test_deleting_a_response_does_not_break_those_that_continue_it(client, engine):
    one = await ask(client, input="Q")
    two = await ask(client, input="R", previous_response_id=one.id)
    deleted = await client.delete(f"{PATH}/{one.id}")
    assert deleted.json() == {"id": one.id, "object": "response", "deleted": True}
    for method, url in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
        response = await client.request(method, f"{PATH}/{one.id}{url}")
        assert response.status_code == 404
        assert_error(response.json(), "response_id", None)
    await ask(client, input="S", previous_response_id=two.id)
    contents = [message["content"] for message in seen(engine)]
    assert contents == ["Q", one.output_text, "R", two.output_text, "S"]


async def test_store_false_stores_nothing(client):
    for response in (await ask(client, store=False), (await stream(client, store=False))[-1].response):
        assert "store: false" in await assert_unknown(client, response.id)
        assert (await client.get(f"{PATH}/{response.id}")).status_code == 404


async def test_api_keys_separate_stored_responses(client):
    mine, other = ({"headers": {"Authorization": f"Bearer {key}"}} for key in ("mine", "other"))
    raw = (await client.post(PATH, json={"input": "secret"}, **mine)).json()
    await assert_unknown(client, raw["id"])
    await assert_unknown(client, raw["id"], **other)
    assert (await client.get(f"{PATH}/{raw['id']}", **other)).status_code == 404
    assert (await client.post(f"{PATH}/{raw['id']}/cancel", **other)).status_code == 404
    assert (await client.delete(f"{PATH}/{raw['id']}", **other)).status_code == 404
    reference = {"input": [{"type": "item_reference", "id": raw["output"][0]["id"]}]}
    refused = await client.post(PATH, json=reference, **other)
    assert (refused.status_code, "secret" in refused.text) == (400, False)
    assert (await client.post(PATH, json=reference, **mine)).status_code == 200
    assert (await client.get(f"{PATH}/{raw['id']}", **mine)).status_code == 200
